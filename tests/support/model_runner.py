"""Runs whole models on a device and on the runtime's CPU kernels, and compares them."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from comparing import mismatch
from litegpu import DelegationReport, GpuDelegate
from litegpu.backends.base import DeviceInfo
from litegpu.runtime_abi import interpreter as runtime

Arrays = tuple[npt.NDArray[Any], ...]

ARENA_LIMIT = 1.1
"""Device memory of a partition, as a multiple of what no plan can do without."""


@dataclass(frozen=True)
class Answers:
    """The outputs for each picture, those of the first picture once more, and the report."""

    outputs: tuple[Arrays, ...]
    again: Arrays
    report: DelegationReport


def invoke(interpreter: Any, inputs: Sequence[npt.NDArray[Any]]) -> Arrays:
    """Run on the inputs, with outputs that are NaN before, all bits set or true."""
    for detail, value in zip(interpreter.get_input_details(), inputs, strict=True):
        interpreter.set_tensor(detail["index"], value)
    outputs = interpreter.get_output_details()
    for detail in outputs:
        before = np.asarray(np.nan if detail["dtype"] is np.float32 else -1).astype(detail["dtype"])
        # Where nodes stay on the CPU, some outputs get their memory only during the run.
        with contextlib.suppress(ValueError):
            interpreter.set_tensor(detail["index"], np.full(detail["shape"], before))
    interpreter.invoke()
    return tuple(np.asarray(interpreter.get_tensor(detail["index"])) for detail in outputs)


def cpu_answers(
    model: bytes, pictures: Sequence[Sequence[npt.NDArray[Any]]], *, builtin_kernels: bool = True
) -> tuple[Arrays, ...]:
    """Return the outputs for each picture, by the built-in kernels or by XNNPACK."""
    interpreter = runtime.interpreter(model, builtin_kernels=builtin_kernels)
    return tuple(invoke(interpreter, picture) for picture in pictures)


def device_answers(
    model: bytes, pictures: Sequence[Sequence[npt.NDArray[Any]]], device: DeviceInfo, **options: Any
) -> Answers:
    """Return what a device makes of the pictures."""
    delegate = GpuDelegate(backend=device.backend, device=device.index, **options)
    interpreter = runtime.interpreter(model, delegate, builtin_kernels=True)
    assert delegate.report is not None
    outputs = tuple(invoke(interpreter, picture) for picture in pictures)
    interpreter.reset_all_variables()
    return Answers(outputs, invoke(interpreter, pictures[0]), delegate.report)


def check_delegation(report: DelegationReport, limit: float = ARENA_LIMIT) -> None:
    """Require one partition of the whole graph, in no more memory than it needs."""
    assert report.whole_graph, str(report)
    (partition,) = report.partitions
    assert partition.arena_bytes <= limit * partition.lower_bound_bytes, str(report)


def check_repeats(answers: Answers) -> None:
    """Require the same bits when the same picture comes again after others."""
    for number, (first, second) in enumerate(zip(answers.outputs[0], answers.again, strict=True)):
        assert first.tobytes() == second.tobytes(), f"output {number} changes from run to run"


def check_close(expected: Arrays, got: Arrays, limits: Sequence[float], about: str) -> None:
    """Require every output to be finite and within its relative L2 limit."""
    for number, (wanted, found, limit) in enumerate(zip(expected, got, limits, strict=True)):
        problem = mismatch(wanted, found, limit)
        assert not problem, f"{about}, output {number}: {problem}"
