"""Measures prototypes of how a call on CUDA stages its inputs, holds Python's lock, and waits.

    python benchmarks/waiting.py [--out FILE] [--way NAME ...] [--seconds S]

Each way is the product with one thing changed, in a process that does nothing else:

- product: cuStreamSynchronize, as the driver likes it; brief calls keep Python's lock.
- spin, yield, block: the same, with the context told how to wait (cuCtxSetFlags).
- event: an event with CU_EVENT_BLOCKING_SYNC is recorded and waited for.
- query: cuStreamQuery again and again; `query, yielding` lets other threads run between.
- flag: the GPU writes a number to pinned memory (cuStreamWriteValue32), and Python looks for it;
  `flag, yielding` lets other threads run between.
- lock kept, lock released: all calls but the wait keep Python's lock, or none does.
- write-combined, huge pages: the pinned memory that inputs are staged in is of that kind. These are
  measured for `--large`, too.

Of each there are for `--model` the microseconds of a call (median) and of CPU time, with arrays of
NumPy in and out, and for threads calls a second with the CPU's microseconds of each: `contexts N`
is one CompiledModel with N contexts in N threads, `interpreters N` an interpreter for each thread.

`steps` says where the time of a run on pinned buffers goes: each call of the driver, whether it
keeps Python's lock, and how many runs a second the time with the lock held permits at the most.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import datetime
import json
import mmap
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

import machine
from litegpu import CompiledModel, GpuDelegate, LitegpuError
from litegpu.backends.cuda import submission as cuda_submission
from litegpu.backends.cuda.context import CUDAContext
from litegpu.backends.cuda.driver import NOT_READY, call, driver, ready
from litegpu.codegen import round_up
from litegpu.runtime_abi import interpreter as runtime
from litegpu.tools.console import print_table
from litegpu.zoo import resolve_model

DEFAULT_OUTPUT = Path(__file__).parent / "results" / "waiting.json"
MODEL, LARGE = "zoo:mobilenet_v1_0.25_128", "zoo:mobilenet_v1_1.0_224?batch=64"
THREADS = (1, 2, 4, 8)
_AUTO, _SPIN, _YIELD, _BLOCK = 0, 1, 2, 4
"""CU_CTX_SCHED_..."""
_BLOCKING_EVENT = 3
"""CU_EVENT_BLOCKING_SYNC, without times."""
_WRITE_COMBINED = 4
"""CU_MEMHOSTALLOC_WRITECOMBINED."""
_HUGE = 2 << 20
_PATIENCE = 10_000_000
"""Looks at a flag after which something must have gone wrong."""
_KEEPS_LOCK = 4
"""The flag of ctypes' functions that keep Python's lock."""
_pages: list[mmap.mmap] = []
"""Memory that is registered until the process ends."""
Wait = Callable[[], int]
Work = Callable[[], object]


# Ways: each lets models that are compiled meanwhile do one thing in another way.


@contextlib.contextmanager
def waits(make: Callable[[CUDAContext], Wait]) -> Iterator[None]:
    build, devices = CUDAContext._build, set()

    def changed(self: CUDAContext) -> None:
        build(self)
        self.wait = make(self)
        devices.add(self.device)

    try:
        with patch.object(CUDAContext, "_build", changed):
            yield
    finally:
        # The flags are the device's, and the next way is not to wait as this one did.
        for device in devices:
            device.within(partial(call, driver().cuCtxSetFlags, _AUTO))


def synchronizing(flags: int, context: CUDAContext) -> Wait:
    """Return the context's own wait; tell the driver how it is to wait."""
    call(driver().cuCtxSetFlags, flags)
    return context.wait


def by_event(context: CUDAContext) -> Wait:
    cu = driver()
    event = int(context.owned.make(cu.cuEventCreate, cu.cuEventDestroy, _BLOCKING_EVENT))
    record = ready("cuEventRecord", event, int(context.stream), brief=True)
    synchronize = ready("cuEventSynchronize", event)
    return lambda: record() or synchronize()


def by_query(pause: Work, context: CUDAContext) -> Wait:
    query = ready("cuStreamQuery", int(context.stream), brief=True)

    def wait() -> int:
        while (status := query()) == NOT_READY:
            pause()
        return status

    return wait


def by_flag(pause: Work, context: CUDAContext) -> Wait:
    cu, synchronize = driver(), context.wait
    address = int(context.owned.make(cu.cuMemHostAlloc, cu.cuMemFreeHost, 64, 0))
    flag, expected = ctypes.c_uint32.from_address(address), ctypes.c_void_p(0)
    flag.value = 0
    write = ready("cuStreamWriteValue32", int(context.stream), address, expected, 0, brief=True)

    def wait() -> int:
        number = (flag.value + 1) & 0xFFFFFFFF
        expected.value = number
        if status := write():
            return status
        for _ in range(_PATIENCE):
            if flag.value == number:
                return 0
            pause()
        return synchronize()

    return wait


def _nothing() -> None:
    """Look again at once."""


_yielding = partial(time.sleep, 0)


@contextlib.contextmanager
def locked(brief: bool) -> Iterator[None]:
    """Let all calls of a run but the wait keep Python's lock, or none."""

    def changed(name: str, *arguments: Any, **_: Any) -> Any:
        return ready(name, *arguments, brief=brief)

    with patch.object(cuda_submission, "ready", changed):
        yield


@contextlib.contextmanager
def stages(make: Callable[[CUDAContext, int], int]) -> Iterator[None]:
    """Let `make` give the addresses of so many bytes that inputs are staged in."""
    stage = CUDAContext._stage

    def changed(self: CUDAContext, part: Any) -> tuple[int, int]:
        if any(part is each for each in self.program.inputs):
            return make(self, round_up(part.size, 16)), part.size
        return stage(self, part)

    with patch.object(CUDAContext, "_stage", changed):
        yield


def write_combined(context: CUDAContext, nbytes: int) -> int:
    cu = driver()
    making = (cu.cuMemHostAlloc, cu.cuMemFreeHost, nbytes, _WRITE_COMBINED)
    return int(context.owned.make(*making))


def huge_pages(_context: CUDAContext, nbytes: int) -> int:
    size = round_up(nbytes, _HUGE)
    memory = mmap.mmap(-1, size + _HUGE, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    memory.madvise(mmap.MADV_HUGEPAGE)
    _pages.append(memory)
    address = round_up(ctypes.addressof(ctypes.c_char.from_buffer(memory)), _HUGE)
    ctypes.memset(address, 0, size)
    call(driver().cuMemHostRegister, address, size, 0)
    return address


WAYS: dict[str, Callable[[], contextlib.AbstractContextManager[None]]] = {
    "product": lambda: waits(partial(synchronizing, _AUTO)),
    "spin": lambda: waits(partial(synchronizing, _SPIN)),
    "yield": lambda: waits(partial(synchronizing, _YIELD)),
    "block": lambda: waits(partial(synchronizing, _BLOCK)),
    "event": lambda: waits(by_event),
    "query": lambda: waits(partial(by_query, _nothing)),
    "query, yielding": lambda: waits(partial(by_query, _yielding)),
    "flag": lambda: waits(partial(by_flag, _nothing)),
    "flag, yielding": lambda: waits(partial(by_flag, _yielding)),
    "lock kept": lambda: locked(True),
    "lock released": lambda: locked(False),
    "write-combined": lambda: stages(write_combined),
    "huge pages": lambda: stages(huge_pages),
}
STAGING = ("product", "write-combined", "huge pages")


# Measuring


def one_by_one(work: Work, seconds: float) -> dict[str, float]:
    """Return the microseconds of a call, and those of the CPU, after a warm-up."""
    again(work, seconds / 4)
    times = []
    until, cpu = time.perf_counter() + seconds, time.process_time()
    while not times or time.perf_counter() < until:
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    cpu = time.process_time() - cpu
    return {"us": statistics.median(times) * 1e6, "cpu us": cpu / len(times) * 1e6}


def again(work: Work, seconds: float) -> int:
    count, until = 0, time.perf_counter() + seconds
    while not count or time.perf_counter() < until:
        work()
        count += 1
    return count


def in_threads(works: list[Work], seconds: float) -> dict[str, float]:
    """Return calls a second of all threads together, and the CPU's microseconds of each."""
    for work in works:
        work()
    counts = [0] * len(works)
    start = threading.Barrier(len(works) + 1)

    def repeat(number: int) -> None:
        start.wait()
        counts[number] = again(works[number], seconds)

    threads = [threading.Thread(target=repeat, args=(n,)) for n in range(len(works))]
    for each in threads:
        each.start()
    start.wait()
    began, cpu = time.perf_counter(), time.process_time()
    for each in threads:
        each.join()
    wall, cpu = time.perf_counter() - began, time.process_time() - cpu
    return {"calls/s": sum(counts) / wall, "cpu us": cpu / sum(counts) * 1e6}


def interpreter_call(content: bytes, options: dict[str, Any], x: Any) -> Work:
    delegate = GpuDelegate(**options)
    target = runtime.interpreter(content, delegate)
    check_all_on_gpu(delegate)
    source = target.get_input_details()[0]["index"]
    result = target.get_output_details()[0]["index"]

    def work() -> object:
        target.set_tensor(source, x)
        target.invoke()
        return target.get_tensor(result)

    return work


def check_all_on_gpu(delegate: GpuDelegate | None) -> None:
    """Raise LitegpuError with the reasons where the CPU runs a part: a way does not work."""
    report = delegate.report if delegate is not None else None
    if report is None or len(report.delegated_nodes) < report.total_nodes:
        raise LitegpuError(f"The GPU does not run all of the model: {report}")


def input_of(model: CompiledModel) -> Any:
    check_all_on_gpu(model._main.delegate)
    (tensor,) = model.signature.inputs
    return np.random.default_rng(0).uniform(-1, 1, tensor.shape).astype(tensor.dtype)


def calls(content: bytes, options: dict[str, Any], seconds: float) -> dict[str, Any]:
    with CompiledModel.from_buffer(content, **options) as model:
        x = input_of(model)
        return {
            "model(x)": one_by_one(lambda: model(x), seconds),
            "interpreter": one_by_one(interpreter_call(content, options, x), seconds),
        }


def threads(
    content: bytes, options: dict[str, Any], seconds: float, counts: list[int]
) -> dict[str, Any]:
    found = {}
    for count in counts:
        with CompiledModel.from_buffer(content, contexts=count, **options) as model:
            x = input_of(model)
            found[f"contexts {count}"] = in_threads([lambda: model(x)] * count, seconds)  # noqa: B023
        own = [interpreter_call(content, options, x) for _ in range(count)]
        found[f"interpreters {count}"] = in_threads(own, seconds)
    return found


def steps(content: bytes, options: dict[str, Any], repeats: int) -> dict[str, Any]:
    """Return the microseconds of a run, and those of its calls of the driver."""
    with CompiledModel.from_buffer(content, **options) as model:
        ends = model.create_input_buffers(), model.create_output_buffers()
        model.run_by_index(0, *ends)
        submission: Any = model._pool.all[0].bound(0, *ends, None)._submission
        named = [
            ("cuCtxPushCurrent", submission._push),
            *zip(submission._names, submission._work, strict=True),
            ("cuStreamSynchronize", submission._on.wait),
            ("cuCtxPopCurrent", submission._pop),
        ]
        whole, times = [], [[] for _ in named]
        for _ in range(repeats):
            began = time.perf_counter()
            model.run_by_index(0, *ends)
            whole.append(time.perf_counter() - began)
            for (_, step), seconds in zip(named, times, strict=True):
                began = time.perf_counter()
                step()
                seconds.append(time.perf_counter() - began)
        total = statistics.median(whole) * 1e6
        found = [
            {
                "call": name,
                "us": statistics.median(seconds) * 1e6,
                "keeps lock": bool(type(step.func)._flags_ & _KEEPS_LOCK),
            }
            for (name, step), seconds in zip(named, times, strict=True)
        ]
        outside = sum(each["us"] for each in found if not each["keeps lock"])
        locked_us = max(total - outside, 1e-3)
        return {
            "us": total,
            "lock held us": locked_us,
            "most runs/s": 1e6 / locked_us,
            "calls": found,
        }


def measure(way: str, args: argparse.Namespace, options: dict[str, Any]) -> dict[str, Any]:
    """Return a way's figures, or what went wrong."""
    found: dict[str, Any] = {}
    content = resolve_model(args.model)
    try:
        with WAYS[way]():
            found["calls"] = calls(content, options, args.seconds)
            found["threads"] = threads(content, options, args.seconds, args.threads)
            if way in STAGING and args.large:
                found["large"] = calls(resolve_model(args.large), options, args.seconds)
    except (AttributeError, LitegpuError, OSError) as error:  # what this driver or host lacks
        found["error"] = f"{type(error).__name__}: {error}"
    return found


def show(way: str, figures: dict[str, Any]) -> None:
    print(way, figures.get("error", ""))
    rows = [
        (f"{group} {name}", *(f"{one.get(k, 0):.1f}" for k in ("us", "calls/s", "cpu us")))
        for group in ("calls", "large", "threads")
        for name, one in figures.get(group, {}).items()
    ]
    print_table(("what", ">us", ">calls/s", ">cpu us"), rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--large", default=LARGE, help="for ways to stage; empty for none")
    parser.add_argument("--way", action="append", choices=WAYS, help="may be repeated")
    parser.add_argument("--threads", type=int, nargs="+", default=[*THREADS])
    parser.add_argument("--precision", default="fp16")
    parser.add_argument("--seconds", type=float, default=0.4)
    parser.add_argument("--repeats", type=int, default=1000, help="runs of which the steps are")
    parser.add_argument("--output", "--out", type=Path, default=DEFAULT_OUTPUT)
    args = parser.parse_args()
    options = {"backend": "cuda", "precision": args.precision}
    result: dict[str, Any] = {
        "machine": machine.facts(),
        "commit": machine.commit(),
        "settings": machine.settings(args),
        "date": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
        "steps": steps(resolve_model(args.model), options, args.repeats),
        "ways": {},
    }
    print(json.dumps(result["steps"], indent=1))
    for way in args.way or WAYS:
        result["ways"][way] = measure(way, args, options)
        args.output.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        show(way, result["ways"][way])


if __name__ == "__main__":
    main()
