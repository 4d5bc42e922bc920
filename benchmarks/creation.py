"""Measures how long a start takes, cold and with what an earlier one left (docs/cache.md).

    python benchmarks/creation.py --output benchmarks/results/creation.json [--backends cuda opencl]

A start is the delegate, the interpreter with it, `allocate_tensors` and the first invoke. Each is
timed in a process of its own, after imports and after a tiny model has run on the device: what the
first use of an API costs a process is told apart (`first use`), and so is what the interpreter
takes without a delegate (`plain`), which is part of `cold` and `warm`, too. Drivers keep nothing of
their own: their caches are switched off, or lie in a folder that is new for each process; with
`--driver-caches`, they are on, as they are for users, and new for each model. The first
start of a model finds an empty folder (`cold`), the next ones what it left (`warm`, the median of
`--rounds`). What an installation compiles once is there already: Python's modules, and what Jinja
makes of the kernels' templates.

Where the first answers come from code that was compiled in a hurry (GpuDelegate's `quick_start`),
`first` and `best` are invokes of a cold start before better code is there and after, and `after` is
how long that takes; warm starts find the better code.

`same` tells whether all starts, and the better code, gave the same outputs, bit for bit. The JSON
has the seconds of each phase, too (phases.py), and `--phases` prints them. With `--alone`, a cold
start in which this process compiles all CUDA kernels by itself, or OpenCL's driver all at once, is
measured beside.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

import machine
from litegpu import GpuDelegate, list_devices
from litegpu.pictures import images
from litegpu.runtime_abi import interpreter as runtime
from litegpu.tools.models import find_model
from litegpu.zoo.writer import ModelWriter
from measuring import NO_DRIVER_CACHES
from phases import timed_phases

MODELS = (
    *("zoo:mobilenet_v1_1.0_224", "zoo:resnet50", "zoo:mobilenet_v2_1.0_224"),
    *("deeplabv3_257_mv_gpu", "pose_landmark_lite_float16", "mobilenet_v2_1.0_224_quant"),
)
ALONE = {"LITEGPU_COMPILE_PROCESSES": "0"}
CACHE_FOLDERS = (
    *("CUDA_CACHE_PATH", "MESA_SHADER_CACHE_DIR", "POCL_CACHE_DIR", "__GL_SHADER_DISK_CACHE_PATH"),
)
"""Where drivers keep what they compile."""
NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"
PRECISIONS = ("fp32", "fp16")
COLUMNS = (
    *("backend", "model", "precision", "first use", "plain", "cold", "warm", "share", "same"),
    *("first", "best", "after"),
)
INVOKES = 9


@dataclass(frozen=True)
class Start:
    """The seconds of one process, and a digest of what the first invoke gave."""

    first_use: float
    plain: float
    creation: float
    digest: str
    phases: dict[str, float]
    first_invoke: float
    """The median of invokes right after the first one."""
    best_after: float
    """Until the best code was there, from the first invoke on."""
    best_invoke: float
    best_digest: str


@dataclass(frozen=True)
class Row:
    """The starts of a model on a device."""

    backend: str
    device: str
    model: str
    precision: str
    cold: Start
    warm: tuple[Start, ...]
    alone: Start | None = None
    """A cold start whose kernels were compiled in its own process."""

    @property
    def warm_seconds(self) -> float:
        return statistics.median(each.creation for each in self.warm)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "warm_seconds": self.warm_seconds, "same": self.is_same}

    @property
    def is_same(self) -> bool:
        others = self.warm if self.alone is None else (*self.warm, self.alone)
        digests = [each.digest for each in others] + [
            each.best_digest for each in (self.cold, *others)
        ]
        return all(digest == self.cold.digest for digest in digests)

    def cells(self) -> list[str]:
        """Return the row of the table, in milliseconds."""
        first = statistics.median(each.first_use for each in (self.cold, *self.warm))
        plain = statistics.median(each.plain for each in (self.cold, *self.warm))
        times = (first, plain, self.cold.creation, self.warm_seconds)
        shown = [f"{seconds * 1e3:.0f}" for seconds in times]
        share = f"{self.warm_seconds / self.cold.creation:.1%}"
        later = (self.cold.first_invoke, self.cold.best_invoke, self.cold.best_after)
        of_code = [f"{seconds * 1e3:.2f}" for seconds in later]
        about = (self.backend, self.model, self.precision)
        return [*about, *shown, share, str(self.is_same), *of_code]

    def phase_lines(self) -> list[str]:
        """Return a line for each kind of start, with the milliseconds of its phases."""
        kinds = {"cold": self.cold, "alone": self.alone, "warm": self.warm[-1]}
        return [
            f"  {kind} {each.creation * 1e3:.0f}: "
            + ", ".join(f"{name} {took * 1e3:.1f}" for name, took in each.phases.items())
            for kind, each in kinds.items()
            if each is not None
        ]


def tiny_model() -> bytes:
    """Return a model of one number."""
    writer = ModelWriter()
    x = writer.input((1, 1, 1, 4))
    writer.output(writer.op("ABS", [x], [x.shape]))
    return writer.build()


def started(content: bytes, delegate: GpuDelegate) -> Any:
    """Make an interpreter, and run it once on seeded noise."""
    interpreter = runtime.interpreter(content, delegate)
    details = interpreter.get_input_details()
    runtime.set_inputs(interpreter, [images.random_tensor(each) for each in details])
    interpreter.invoke()
    return interpreter


def digest(interpreter: Any) -> str:
    """Return what tells outputs apart."""
    outputs = [np.array(each.values).tobytes() for each in runtime.outputs(interpreter)]
    return hashlib.sha256(b"".join(outputs)).hexdigest()


def invoke_seconds(interpreter: Any) -> float:
    """Return the median time of some invokes."""
    found = []
    for _ in range(INVOKES):
        began = time.perf_counter()
        interpreter.invoke()
        found.append(time.perf_counter() - began)
    return statistics.median(found)


def in_this_process(backend: str, model: str, precision: str, folder: str) -> Start:
    """Time one start."""
    content = find_model(model).content
    began = time.perf_counter()
    started(tiny_model(), GpuDelegate(backend=backend, cache=False))
    opened = time.perf_counter()
    runtime.interpreter(content)
    plain = time.perf_counter() - opened
    with timed_phases() as phases:
        began_creation = time.perf_counter()
        delegate = GpuDelegate(
            backend=backend, precision=precision, serialization_dir=folder, model_token="creation"
        )
        interpreter = started(content, delegate)
        first = digest(interpreter)
        ended = time.perf_counter()
    if delegate.report is None or not delegate.report.partitions:
        raise SystemExit(f"{model} does not run on the device: {delegate.report}")
    first_invoke = invoke_seconds(interpreter)
    delegate.wait_for_best_code()
    after = time.perf_counter() - ended
    best_invoke = invoke_seconds(interpreter)
    times = (opened - began, plain, ended - began_creation)
    later = (first_invoke, after, best_invoke, digest(interpreter))
    return Start(*times, first, dict(phases), *later)


def in_a_process(
    backend: str, model: str, precision: str, folder: str, alone: bool = False, drivers: str = ""
) -> Start:
    """Time one start in a new process; its driver has nothing of its own but what `drivers` has.

    It compiles `alone`, or has processes that do.
    """
    with tempfile.TemporaryDirectory() as empty:
        environment = {**_environment(), **_caches(drivers, empty), **(ALONE if alone else {})}
        command = [sys.executable, __file__, "--child", backend, model, precision, folder]
        done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise RuntimeError(f"{model} on {backend}: {done.stderr[-2000:]}")
    return Start(**json.loads(done.stdout))


def _caches(drivers: str, empty: str) -> dict[str, str]:
    """Return where drivers keep what they compile: in a folder, else nowhere that lasts."""
    if drivers:
        on = {name: "0" if name.endswith("DISABLE") else "1" for name in NO_DRIVER_CACHES}
        return {**on, **dict.fromkeys(CACHE_FOLDERS, drivers)}
    # PoCL's own switch would keep kernels out of its binaries, too.
    return {**NO_DRIVER_CACHES, "POCL_KERNEL_CACHE": "1", "POCL_CACHE_DIR": empty}


def _environment() -> dict[str, str]:
    """Return the environment in which Python may keep what it compiles."""
    return {name: value for name, value in os.environ.items() if name != NO_BYTECODE}


def compile_once() -> None:
    """Let Python and Jinja compile what they keep of an installation."""
    code = (
        "import compileall, pathlib, litegpu\n"
        "from litegpu.codegen.render import compile_templates\n"
        "compileall.compile_dir(pathlib.Path(litegpu.__file__).parent, quiet=2)\n"
        "compile_templates()\n"
    )
    subprocess.run([sys.executable, "-c", code], env=_environment(), check=True)


def measure(
    backend: str, model: str, precision: str, rounds: int, alone: bool = False, cached: bool = False
) -> Row:
    """Measure a model: once cold, `rounds` times warm, and once cold and `alone` if wanted.

    Drivers have caches of their own if these are to be `cached`.
    """
    there = [each for each in list_devices() if each.backend == backend]
    device = min(there, key=lambda each: each.software).name  # as delegates choose
    about = backend, model, precision
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryDirectory() as own:
        drivers = own if cached else ""
        first = in_a_process(*about, folder, drivers=drivers)
        warm = [in_a_process(*about, folder, drivers=drivers) for _ in range(rounds)]
    beside = None
    if alone:
        with tempfile.TemporaryDirectory() as folder:
            beside = in_a_process(*about, folder, alone)
    return Row(*about[:1], device, *about[1:], first, tuple(warm), beside)


def import_seconds(rounds: int) -> float:
    """Return the median time that `import litegpu` takes a process that has imported nothing."""
    code = "import time; t = time.perf_counter(); import litegpu; print(time.perf_counter() - t)"
    found = [
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout)
        for _ in range(rounds)
    ]
    return statistics.median(found)


def table(rows: Sequence[Row]) -> str:
    """Return the rows as a table in Markdown; times in milliseconds."""
    lines = [COLUMNS, ["---"] * len(COLUMNS), *(row.cells() for row in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def main() -> None:
    """Measure all, and write the results after each model."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--output", type=Path, default=None, help="JSON file for the results")
    parser.add_argument("--backends", nargs="+", default=None)
    parser.add_argument("--models", nargs="+", default=MODELS)
    parser.add_argument("--precisions", nargs="+", default=PRECISIONS)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--alone", action="store_true", help="also compile in one process")
    parser.add_argument("--driver-caches", action="store_true", help="let drivers keep theirs")
    parser.add_argument("--phases", action="store_true", help="print what takes the time")
    parser.add_argument("--child", nargs=4, default=None, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child is not None:
        print(json.dumps(asdict(in_this_process(*args.child))))
        return
    compile_once()
    about = machine.about(args) | {"import_seconds": import_seconds(args.rounds)}
    print(f"import litegpu: {about['import_seconds'] * 1e3:.0f} ms")
    rows: list[Row] = []
    for backend in args.backends or dict.fromkeys(each.backend for each in list_devices()):
        for model in args.models:
            for precision in args.precisions:
                kinds = args.alone, args.driver_caches
                rows.append(measure(backend, model, precision, args.rounds, *kinds))
                lines = rows[-1].phase_lines() if args.phases else []
                print(" | ".join(rows[-1].cells()), *lines, sep="\n", flush=True)
                if args.output:
                    found = {**about, "rows": [row.to_dict() for row in rows]}
                    args.output.write_text(json.dumps(found, indent=1) + "\n")
    print(table(rows))


if __name__ == "__main__":
    main()
