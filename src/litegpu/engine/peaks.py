"""Measures a device's limits: bytes and floating-point operations per second."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from litegpu.backends.base import Device, DeviceInfo
from litegpu.backends.program import BufferRange, Launch, Program
from litegpu.codegen import Argument, Epilogue, KernelText, Storage, TensorRef, render
from litegpu.errors import ExecutionError, LitegpuError
from litegpu.graph import DType
from litegpu.ops.common.units import Operations, Unit

_ITEMS = 128
"""Number of work items per work group."""
_GROUPS = 4
"""Number of groups of consecutive items that a work group copies."""
_COPIED = (2 << 20, 16 << 20, 256 << 20)
"""Sizes of the measured copies in bytes, read and written: for the device's caches and for its
memory.
"""
_COPIED_BY_SOFTWARE = (2 << 20, 16 << 20, 64 << 20)
_SUMS, _ROUNDS = 8, 256
_GROUPS_PER_UNIT = 32
"""Number of work groups per compute unit when arithmetic is measured."""
_GROUPS_PER_UNIT_OF_SOFTWARE = 4
"""The same for a software device, whose integer products take a hundred times as long."""
_TF32_RATE = 0.5
"""Ratio of a tf32 instruction's work to that of a half instruction that takes the same time."""
_SAMPLES = 8
_UNIT = 16
"""Size of a float4 in bytes."""


@dataclass(frozen=True, slots=True)
class Peaks:
    """The measured limits of a device."""

    rates: Mapping[Unit, float]
    """Operations per second of each available unit; a multiply-add counts as two operations."""
    copies: tuple[tuple[int, float], ...]
    """For each measured copy, by rising size: the bytes that it moved (read and written), and its
    bytes per second.
    """

    def bandwidth(self, nbytes: int) -> float:
        """Return the peak bytes per second of copies of at least this size, or of the largest."""
        rates = [rate for size, rate in self.copies if size >= nbytes]
        return max(rates, default=self.copies[-1][1])

    @property
    def flops(self) -> float:
        """Float32 operations per second of the device."""
        return self.rates[Unit.FP32]

    @property
    def tensor_flops(self) -> float | None:
        """Operations per second of matrix instructions on halves; None if the device has none."""
        return self.rates.get(Unit.FP16_MATRIX)

    def floor(self, operations: Operations, nbytes: int) -> float | None:
        """Return the minimum time of a kernel in seconds, if its units work in parallel.

        The result is None if the kernel uses a unit that was not measured.
        """
        if not self.rates.keys() >= operations.keys():
            return None
        times = (count / self.rates[unit] for unit, count in operations.items())
        return max([nbytes / self.bandwidth(nbytes), *times])

    def to_dict(self) -> dict[str, Any]:
        """Return the limits as JSON-serializable data."""
        return {
            "flops_per_second": self.flops,
            "tensor_flops_per_second": self.tensor_flops,
            "operations_per_second": {unit.value: rate for unit, rate in self.rates.items()},
            "copies": [{"bytes": size, "bytes_per_second": rate} for size, rate in self.copies],
        }


@cache
def measure(device: Device) -> Peaks:
    """Measure a device, once per process; the measurement takes a fraction of a second.

    Raises ExecutionError when the device fails, for lack of memory for example.
    """
    copies, arithmetic = benchmarks(device.info)
    tests = [*copies, *arithmetic.values()]
    measured = [test.work / s for test, s in zip(tests, _run(device, tests), strict=True)]
    rates = dict(zip(arithmetic, measured[len(copies) :], strict=True))
    if Unit.FP16_MATRIX in rates:
        rates[Unit.TF32_MATRIX] = rates[Unit.FP16_MATRIX] * _TF32_RATE
    moved = [test.work for test in copies]
    return Peaks(rates, tuple(zip(moved, measured, strict=False)))


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A kernel to measure: its work groups, the bytes that it reads and writes, and its work."""

    kernel: KernelText
    groups: int
    read: int
    written: int
    work: int


def benchmarks(info: DeviceInfo) -> tuple[list[Benchmark], dict[Unit, Benchmark]]:
    """Return copies of rising size, and a benchmark for each available unit."""
    wanted = _COPIED_BY_SOFTWARE if info.software else _COPIED
    copies = [_copy(min(size, info.max_allocation_bytes // 2)) for size in wanted]
    per_unit = _GROUPS_PER_UNIT_OF_SOFTWARE if info.software else _GROUPS_PER_UNIT
    groups = info.compute_units * per_unit
    arithmetic = {
        Unit.FP32: _arithmetic("peak_fma", "F32", groups),
        Unit.INT8_DOT: _arithmetic("peak_dot", "I32", groups),
    }
    if info.model.tensor_cores:
        arithmetic[Unit.FP16_MATRIX] = _arithmetic("cuda/peak_mma", "U32", groups)
    return copies, arithmetic


def _copy(nbytes: int) -> Benchmark:
    """Return a benchmark of a copy that moves `nbytes`."""
    run = _ITEMS * _GROUPS * _UNIT
    groups = max(nbytes // 2 // run, 1)
    kernel = _render("peak_copy", "F32", {"GROUPS": _GROUPS}, constant=False)
    return Benchmark(kernel, groups, groups * run, groups * run, 2 * groups * run)


_LANES = {"peak_fma": 4, "peak_dot": 4 * 4, "cuda/peak_mma": 16 * 8 * 16 // 32}
"""Number of multiply-adds per work item and sum in each iteration."""


def _arithmetic(template: str, kind: str, groups: int) -> Benchmark:
    kernel = _render(template, kind, {"SUMS": _SUMS, "ROUNDS": _ROUNDS}, constant=True)
    work = 2 * _LANES[template] * _SUMS * _ROUNDS * _ITEMS * groups
    return Benchmark(kernel, groups, _CONSTANTS.nbytes, groups * _ITEMS * _UNIT, work)


_CONSTANTS = np.full(256, 0.5, np.float16).view(np.uint8)
"""The operands of the arithmetic benchmarks: bytes, pairs of halves, or float32, all finite and
below 1.
"""


def _render(template: str, kind: str, variables: Mapping[str, Any], constant: bool) -> KernelText:
    arguments = (
        Argument("dst", "F32", True, True),
        Argument("src", kind, True, False, constant),
    )
    dst = TensorRef("dst", Storage.create(0, DType.FLOAT32, (1, 1, 1, 4), 4))
    words = {**variables, "ITEMS": _ITEMS}
    return render(template, words, {}, Epilogue(dst, ()), arguments, (_ITEMS, 1, 1))


def program_of(tests: Sequence[Benchmark]) -> Program:
    """Return a program that launches each benchmark, with source and result in separate halves."""
    half = max(max(test.written, test.read) for test in tests)
    launches = tuple(
        Launch(
            test.kernel.name,
            (BufferRange(False, 0, test.written), _source(test, half)),
            (_ITEMS, test.groups, 1),
            (_ITEMS, 1, 1),
        )
        for test in tests
    )
    kernels = tuple({test.kernel.name: test.kernel for test in tests}.values())
    return Program(kernels, launches, 2 * half, _CONSTANTS, (), ())


def _source(test: Benchmark, half: int) -> BufferRange:
    constant = test.kernel.arguments[1].constant
    return BufferRange(constant, 0 if constant else half, test.read)


def _run(device: Device, tests: Sequence[Benchmark]) -> list[float]:
    """Return the minimum time of each benchmark in seconds.

    Raises ExecutionError if the device fails.
    """
    try:
        executable = device.compile(program_of(tests))
        try:
            context = executable.context()
            try:
                profiler = context.profiler()
                samples = [profiler.durations() for _ in range(_SAMPLES)]
            finally:
                context.close()
        finally:
            executable.close()
    except LitegpuError as error:
        raise ExecutionError(
            f"The limits of {device.info.title} cannot be measured: {error} Profile without these "
            "limits: peaks=False, or --peaks=false."
        ) from error
    return [min(each) for each in zip(*samples, strict=True)]
