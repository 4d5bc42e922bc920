"""Python's own time in an invoke, apart from copies, device work and the OpenCL calls themselves.

    python benchmarks/python_overhead.py [--output FILE]

For each case, in microseconds, medians of many short rounds that take turns:

- total: `interpreter.invoke()` on the device.
- bridge: the same with the run replaced by an empty function: what the interpreter does, and the
  step into Python and back.
- calls: the OpenCL calls of one invoke, written out one after the other. Before each round of
  them comes a pause as long as Python's own time, which is then subtracted: a device that gets no
  pause does not fall asleep, and answers sooner than in real use.
- own: Python's own time, total - calls.

The device's time is in both total and calls, and varies more than what is sought. So both are also
measured with every function of OpenCL replaced by a C function that does nothing, called through
the same prototypes ("idle"); own idle = total idle - calls idle is the steadier figure.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import datetime
import gc
import importlib.metadata
import json
import logging
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from ai_edge_litert.interpreter import Interpreter

import no_cache  # noqa: F401
from litegpu import GpuDelegate
from litegpu.backends.opencl.commands import CommandBuffer, EnqueueLoop
from litegpu.runtime_abi import kernel_slots
from litegpu.zoo.writer import ModelWriter

TARGET_MICROSECONDS = 10.0
ROUNDS, INVOKES = 41, 500
DEFAULT_OUTPUT = Path(__file__).parent / "results" / "python_overhead.json"
SHAPE = (1, 4, 4, 4)


@dataclass(frozen=True, slots=True)
class Case:
    """A model by its number of inputs, outputs and kernels, and how its kernels are submitted."""

    name: str
    inputs: int
    outputs: int
    kernels: int
    command_buffer: bool


CASES = (
    Case("1 input, 1 output", 1, 1, 1, True),
    Case("1 input, 4 outputs", 1, 4, 4, True),
    Case("4 inputs, 1 output", 4, 1, 1, True),
    Case("1 input, 1 output, enqueue loop of 1", 1, 1, 1, False),
    Case("1 input, 16 outputs, enqueue loop of 16", 1, 16, 16, False),
)


@dataclass(frozen=True, slots=True)
class Figures:
    """Microseconds an invoke; see the module's text."""

    total: float
    bridge: float
    calls: float
    own: float
    total_idle: float
    calls_idle: float
    own_idle: float


def main() -> None:
    """Measure all cases, print them as a table and write them as JSON."""
    parser = argparse.ArgumentParser(description="Python's own time per invoke.")
    parser.add_argument("--output", type=Path, default=DEFAULT_OUTPUT, help="JSON file to write")
    output = parser.parse_args().output
    log = logging.getLogger("litegpu")
    level = log.level
    log.setLevel(logging.ERROR)  # a software device is warned about at each delegate
    try:
        measured = {case.name: measure(case) for case in CASES}
    finally:
        log.setLevel(level)
    results = {name: figures for name, figures in measured.items() if figures}
    print_table(results)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(json.dumps(as_json(results), indent=2) + "\n", encoding="utf-8")
    print(f"written to {output}")


def measure(case: Case) -> Figures | None:
    """Measure one case on the first OpenCL device; None if it lacks command buffers."""
    with _submission(case.command_buffer):
        target = Interpreter(
            model_content=build_model(case),
            experimental_delegates=[GpuDelegate(backend="opencl")],
        )
        target.allocate_tensors()
    kernel: Any = kernel_slots.kernels()[-1]
    commands = kernel.compiled.context._commands
    expected = CommandBuffer if case.command_buffer else EnqueueLoop
    if not isinstance(commands, expected):
        print(f"{case.name}: left out, for this device has no cl_khr_command_buffer")
        return None
    target.invoke()  # binds the calls
    bound = kernel._run
    idle = [_idle(call) for call in bound.args[0]]
    kernel._run = partial(bound.func, tuple(idle), *bound.args[1:])
    total_idle, calls_idle = medians(target.invoke, written_out(idle))
    own_idle = total_idle - calls_idle
    kernel._run = bound
    total, paused = medians(target.invoke, after_pause(own_idle, written_out(bound.args[0])))
    calls = paused - own_idle
    kernel._run = lambda: None
    (bridge_only,) = medians(target.invoke)
    figures = (total, bridge_only, calls, total - calls)
    return Figures(*figures, total_idle, calls_idle, own_idle)


def build_model(case: Case) -> bytes:
    """Return a model of small element-wise operations with so many inputs and outputs."""
    writer = ModelWriter()
    inputs = [writer.input(SHAPE, name=f"input{i}") for i in range(case.inputs)]
    x = inputs[0]
    for other in inputs[1:]:
        x = writer.op("ADD", [x, other], [SHAPE])
    if case.inputs > 1:
        writer.output(x)
        return writer.build()
    functions = ("ABS", "NEG", "EXP", "TANH", "SIN", "COS", "SQUARE", "LOGISTIC")
    for i in range(case.outputs):
        x = writer.op(functions[i % len(functions)], [inputs[0] if i % 2 else x], [SHAPE])
        writer.output(x)
    return writer.build()


def written_out(calls: Sequence[Callable[[], int]]) -> Callable[[], None]:
    """Return a function that makes the calls of one invoke with no other work between them."""
    names: dict[str, Any] = {f"call{number}": call for number, call in enumerate(calls)}
    parameters = ", ".join(f"{name}={name}" for name in names)
    body = "; ".join(f"{name}()" for name in names)
    exec(f"def written({parameters}): {body}", names)
    function: Callable[[], None] = names["written"]
    return function


def after_pause(microseconds: float, function: Callable[[], None]) -> Callable[[], None]:
    """Return a function that spins for a while before each call of `function`."""
    clock, seconds = time.perf_counter, microseconds * 1e-6

    def paused() -> None:
        end = clock() + seconds
        while clock() < end:
            pass
        function()

    return paused


def medians(*functions: Callable[[], object]) -> tuple[float, ...]:
    """Return the median time of one call of each function in microseconds; they take turns."""
    for function in functions:
        for _ in range(INVOKES):
            function()
    times: list[list[float]] = [[] for _ in functions]
    gc.disable()
    try:
        for _ in range(ROUNDS):
            for function, found in zip(functions, times, strict=True):
                start = time.perf_counter()
                for _ in range(INVOKES):
                    function()
                found.append((time.perf_counter() - start) / INVOKES * 1e6)
    finally:
        gc.enable()
    return tuple(statistics.median(found) for found in times)


@contextlib.contextmanager
def _submission(command_buffer: bool) -> Iterator[None]:
    """Record without command buffers while this lasts, if so wanted."""
    create = CommandBuffer.create
    if not command_buffer:
        CommandBuffer.create = lambda *_: None  # type: ignore[method-assign]
    try:
        yield
    finally:
        CommandBuffer.create = create  # type: ignore[method-assign]


def _idle(call: Any) -> Any:
    """Return the same call of a function that does nothing."""
    prototype = ctypes.CFUNCTYPE(call.func.restype, *call.func.argtypes)
    address = ctypes.cast(ctypes.CDLL(None).abs, ctypes.c_void_p).value or 0
    # abs(0): takes no notice of further arguments and returns 0.
    return partial(prototype(address), type(call.args[0])(0), *call.args[1:])


def print_table(results: Mapping[str, Figures]) -> None:
    """Print one line for each case."""
    columns = ("total", "bridge", "calls", "own", "total idle", "calls idle", "own idle")
    width = max(map(len, results))
    print(f"{'microseconds per invoke':{width}}", *(f"{name:>10}" for name in columns))
    for name, figures in results.items():
        print(f"{name:{width}}", *(f"{value:10.2f}" for value in asdict(figures).values()))


def as_json(results: Mapping[str, Figures]) -> dict[str, Any]:
    """Return the figures and where and with what they were measured."""
    device = GpuDelegate(backend="opencl").device
    packages = ("ai-edge-litert", "numpy", "pyopencl")
    return {
        "date": datetime.date.today().isoformat(),
        "machine": f"{platform.system()} {platform.machine()}, {_processor()}",
        "device": f"{device.title} ({device.platform}, {device.driver})",
        "python": platform.python_version(),
        "packages": {name: importlib.metadata.version(name) for name in packages},
        "unit": "microseconds per invoke, medians",
        "target": f"own <= {TARGET_MICROSECONDS}",
        "results": {
            name: {column: round(value, 2) for column, value in asdict(figures).items()}
            for name, figures in results.items()
        },
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(": ")[1] for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()


if __name__ == "__main__":
    main()
