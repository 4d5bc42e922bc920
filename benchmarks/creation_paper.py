"""Estimates cold starts on an H200 without a GPU: what the host does, and what NVRTC does.

    python benchmarks/creation_paper.py --output benchmarks/results/creation_paper.json

Both only need a CPU, and are told in its seconds, so that a busy machine tells nearly what an idle
one does. `host` is from the partition to its program; `compile` is the sum over modules, of which
`largest` takes longest. `on 16 cores` and the like is when all of it is done, were each core that
is free to begin the module that should take longest of those whose kernels are written. The
device's own part (loading, uploading, the first run) is not in it. Any device that models run on
will do to read them.
"""

from __future__ import annotations

import argparse
import contextlib
import heapq
import json
import os
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import Any
from unittest import mock

import machine
from creation import MODELS
from litegpu import (
    CompilationError,
    GpuDelegate,
    list_devices,
)
from litegpu.backends.base import Compilation, DeviceInfo
from litegpu.backends.cuda import compiler as cuda_compiler
from litegpu.backends.cuda.compiler import (
    WITH_PROCESSES,
    KernelCompiler,
    compile_source,
    effort_of,
    options_for,
)
from litegpu.backends.failures import Failures
from litegpu.backends.program import Program
from litegpu.codegen import KernelText
from litegpu.codegen.cuda import CUDADialect
from litegpu.device_model import model_of
from litegpu.engine import partition
from litegpu.graph import Graph
from litegpu.numeric_policy import NumericPolicy
from litegpu.runtime_abi import interpreter as runtime
from litegpu.tools.models import find_model

CAPABILITY = (9, 0)
CORES = (4, 8, 16)
PROCESS_SECONDS = 0.03
"""What a process takes that compiles, until it does so as fast as one that has compiled before."""
COLUMNS = ("model", "host", "compile", "modules", "largest", *(f"on {n} cores" for n in CORES))


@dataclass(frozen=True)
class Estimate:
    """The seconds of a model's cold start: of the host, and of each module when and how long."""

    model: str
    host: float
    arrivals: tuple[float, ...]
    efforts: tuple[int, ...]
    """What each module should take, see effort_of."""
    compiling: tuple[float, ...]

    def done(self, cores: int) -> float:
        """Return when host and compilers are done."""
        return max(self.host, finished(self.arrivals, self.efforts, self.compiling, cores))

    def cells(self) -> list[str]:
        """Return the row of the table, in milliseconds."""
        times = (self.host, sum(self.compiling), max(self.compiling), *map(self.done, CORES))
        host, compiling, *others = (f"{seconds * 1e3:.0f}" for seconds in times)
        return [self.model, host, compiling, str(len(self.compiling)), *others]


def finished(
    arrivals: Sequence[float], efforts: Sequence[int], durations: Sequence[float], cores: int
) -> float:
    """Return when the last of some jobs ends; they are told in the order of their arrivals.

    A core that is free begins the job of most effort that is there. All cores but the first start
    a process for their first one.

    >>> finished([0, 0, 1], [1, 2, 9], [2, 3, 2], 1)
    7.0
    """
    coming = deque(sorted(zip(arrivals, efforts, durations, strict=True), key=itemgetter(0)))
    waiting: list[tuple[int, int, float]] = []
    free, end = [(0.0, core and PROCESS_SECONDS) for core in range(cores)], 0.0
    while coming or waiting:
        now, starting = heapq.heappop(free)
        if not waiting:
            now = max(now, coming[0][0])
        while coming and coming[0][0] <= now:
            _, effort, duration = coming.popleft()
            heapq.heappush(waiting, (-effort, -len(coming), duration))
        ends = now + starting + heapq.heappop(waiting)[2]
        heapq.heappush(free, (ends, 0.0))
        end = max(end, ends)
    return end


class _Clocked(KernelCompiler):
    """Notes when each module is begun."""

    def __init__(self) -> None:
        super().__init__(CUDADialect(), CAPABILITY, None)
        self._efforts = WITH_PROCESSES
        self.arrivals: list[float] = []
        self.efforts: list[int] = []

    def _begin(self, kernels: Sequence[KernelText]) -> None:
        self.arrivals.append(time.thread_time())
        self.efforts.append(sum(map(effort_of, kernels)))
        super()._begin(kernels)


class _Forwarding(Compilation):
    """Hands kernels on; there is no device to finish a program for."""

    def __init__(self, compiler: KernelCompiler) -> None:
        self._compiler = compiler

    def expect(self, kernels: int) -> None:
        """Start nothing: modules are compiled later, in this process."""

    def add(self, kernel: KernelText) -> None:
        self._compiler.add(kernel)

    def flush(self) -> None:
        self._compiler.flush()


def paper(like: DeviceInfo) -> DeviceInfo:
    """Return the facts of an H200."""
    model = model_of(CAPABILITY)
    return replace(
        like,
        backend="cuda",
        compute_units=132,
        compute_capability=CAPABILITY,
        max_work_group_size=1024,
        local_memory_bytes=model.shared_bytes_per_block,
        max_allocation_bytes=1 << 37,
        memory_bytes=1 << 37,
        half_arithmetic=True,
        buffer_alignment=256,
        max_arguments=256,
        software=False,
        fast_local_memory=True,
    )


class _PaperDevice:
    """As much of a device as a partition's program takes."""

    dialect = CUDADialect()

    def __init__(self, info: DeviceInfo, compiler: KernelCompiler) -> None:
        self.info, self.failures = info, Failures()
        self.compilation = lambda *_: _Forwarding(compiler)
        self.programs: list[Program] = []


def seconds_of(source: str, options: Sequence[str]) -> bytes:
    """Compile, and return how long that took in place of the binary."""
    began = time.thread_time()
    compile_source(source, options)
    return repr(time.thread_time() - began).encode()


def estimate(model: str, precision: str) -> Estimate:
    """Estimate the cold start of a model that one partition has all nodes of."""
    found: list[Estimate] = []

    def compile_on_paper(graph: Graph, device: Any, policy: NumericPolicy, **_: Any) -> None:
        with _Clocked() as compiler:
            onto: Any = _PaperDevice(paper(device.info), compiler)
            began = time.thread_time()
            with mock.patch.object(
                partition.PlacedPartition, "compile", lambda _, built, __: built
            ):
                built: Any = partition.compile_partition(graph, onto, policy)
            host = time.thread_time() - began
            compiling = [float(each) for each in compiler.cubins(built.program.kernels)]
        arrivals = tuple(min(each - began, host) for each in compiler.arrivals)
        found.append(Estimate(model, host, arrivals, tuple(compiler.efforts), tuple(compiling)))
        raise CompilationError("That was all.")

    with (
        mock.patch.object(partition, "compile_partition", compile_on_paper),
        mock.patch.object(cuda_compiler, "compile_source", seconds_of),
        mock.patch.dict(os.environ, LITEGPU_COMPILE_PROCESSES="0"),
        contextlib.suppress(ValueError),  # where the CPU lacks a kernel
    ):
        # One that is named: where any will do, the next one is tried after an error.
        backend = list_devices()[0].backend
        delegate = GpuDelegate(backend=backend, precision=precision, cache=False)
        runtime.interpreter(find_model(model).content, delegate)
    return found[0]


def table(rows: Iterable[Estimate]) -> str:
    """Return the rows as a table in Markdown; times in milliseconds."""
    lines = [COLUMNS, ["---"] * len(COLUMNS), *(row.cells() for row in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def main() -> None:
    """Estimate all, each in its first compilation of this process, and write the results."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--output", type=Path, default=None, help="JSON file for the results")
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--precision", default="fp16")
    args = parser.parse_args()
    compile_source("", options_for(CAPABILITY))  # loads the compiler
    rows = [estimate(model, args.precision) for model in args.models]
    print(table(rows))
    if args.output:
        found = machine.about(args) | {"rows": [asdict(row) for row in rows]}
        args.output.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
