"""The ways to run a .tflite model that rivals.py compares: functions that get one ready."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from litegpu import GpuDelegate
from litegpu.runtime_abi.interpreter import interpreter
from measuring import caller

PRECISIONS = ("fp16", "fp32")
_PROFILED_RUNS = 20
_FIGURES = {
    "kernel_sum_ms": "kernel_seconds",
    "device_ms": "chain_seconds",
    "device_with_copies_ms": "device_seconds",
}
"""Figures of a profile by the names that they get in the results."""


@dataclass(frozen=True, slots=True)
class Model:
    """A model, arrays for its inputs, and what the CPU's built-in kernels make of them."""

    title: str
    content: bytes
    inputs: Sequence[Any]
    expected: Sequence[Any]


@dataclass(frozen=True, slots=True)
class Runner:
    """A model made ready by one way.

    `call` goes from NumPy arrays to NumPy arrays; `device` are device times in seconds, medians of
    the given number of runs, by the name that they get in the results.
    """

    call: Callable[[], Sequence[Any]]
    device: Mapping[str, Callable[[int], float]] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    close: Callable[[], None] = lambda: None


Way = Callable[[Model], Runner]


class LeftOutError(Exception):
    """A way cannot run a model here; the text says why."""


def ways(backends: Iterable[str]) -> dict[str, Way]:
    """Return all ways by their names, litegpu's on these backends first."""
    found: dict[str, Way] = {}
    for backend in backends:
        for precision in PRECISIONS:
            found[f"litegpu {backend} {precision}"] = partial(_litegpu, backend, precision)
    for precision in PRECISIONS:
        found[f"LiteRT accelerator {precision}"] = partial(_accelerator, precision == "fp32")
    for threads in (8, 1):
        found[f"XNNPACK {threads} threads" if threads > 1 else "XNNPACK 1 thread"] = partial(
            _xnnpack, threads
        )
    for precision in PRECISIONS:
        for mode in ("eager", "graph", "compile"):
            found[f"torch {precision} {mode}"] = partial(_torch, mode, precision, False)
        symmetric = f"torch {precision} compile, symmetric padding"
        found[symmetric] = partial(_torch, "compile", precision, True)
    return found


def _litegpu(backend: str, precision: str, model: Model) -> Runner:
    delegate = GpuDelegate(backend=backend, precision=precision)
    target = interpreter(model.content, delegate)
    report = delegate.report
    if report is None or not report.partitions:
        raise LeftOutError(f"Nothing runs on the GPU: {delegate.error or report}")
    return Runner(
        caller(target, model.inputs),
        _device_times(delegate),
        {
            "kernels": sum(part.kernels for part in report.partitions),
            "nodes_on_cpu": len(report.rejected),
        },
    )


def _device_times(delegate: GpuDelegate) -> dict[str, Callable[[int], float]]:
    """Time the kernels by themselves, as a chain and with copies: what the backend can tell."""

    def seconds(name: str, repeats: int) -> float:
        profile = delegate.profile(repeats=min(repeats, _PROFILED_RUNS), peaks=False)
        found: float = getattr(profile, name)
        return found

    once = delegate.profile(repeats=1, peaks=False)
    return {
        title: partial(seconds, name)
        for title, name in _FIGURES.items()
        if getattr(once, name) is not None
    }


def _xnnpack(threads: int, model: Model) -> Runner:
    target = interpreter(model.content, threads=threads)
    return Runner(caller(target, model.inputs))


def _accelerator(float32: bool, model: Model) -> Runner:
    from ai_edge_litert.compiled_model import CompiledModel
    from ai_edge_litert.gpu_options import GpuOptions
    from ai_edge_litert.hardware_accelerator import HardwareAccelerator
    from ai_edge_litert.options import Options

    options = Options(
        hardware_accelerators=HardwareAccelerator.GPU,
        gpu_options=GpuOptions(enforce_f32=float32),
    )
    compiled = CompiledModel.from_buffer(model.content, options=options)
    sources, targets = compiled.create_input_buffers(0), compiled.create_output_buffers(0)
    shapes = [np.shape(array) for array in model.expected]
    sizes = [int(np.prod(shape)) for shape in shapes]
    types = [np.asarray(array).dtype.type for array in model.expected]

    def run() -> list[Any]:
        for buffer, data in zip(sources, model.inputs, strict=True):
            buffer.write(data)
        compiled.run_by_index(0, sources, targets)
        read = [b.read(n, t) for b, n, t in zip(targets, sizes, types, strict=True)]
        return [np.reshape(array, shape) for array, shape in zip(read, shapes, strict=True)]

    return Runner(run, facts={"fully_accelerated": bool(compiled.is_fully_accelerated())})


def _torch(mode: str, precision: str, symmetric: bool, model: Model) -> Runner:
    try:
        import torch
    except ImportError as error:
        raise LeftOutError(f"PyTorch cannot be imported: {error}") from error
    if not torch.cuda.is_available():
        raise LeftOutError(f"PyTorch {torch.__version__} sees no CUDA GPU.")
    from torch_runner import make_runner

    return make_runner(mode, precision, symmetric, model)
