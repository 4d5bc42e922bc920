"""The measured limits: the measured kernels compute correct results on every device."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from backend_suite import ready
from every_backend import open_device
from litegpu import DeviceMemoryError, ExecutionError, MissingDependencyError
from litegpu.backends import BACKENDS
from litegpu.backends.base import Device
from litegpu.backends.buffers import Bindings
from litegpu.backends.cuda.compiler import compile_kernels, compile_source, options_for
from litegpu.backends.execution import Executable
from litegpu.backends.program import BufferRange
from litegpu.codegen.cuda import CUDADialect
from litegpu.engine.peaks import benchmarks, measure, program_of
from litegpu.ops.common.units import Unit
from paper_device import DEVICE


@pytest.fixture(params=BACKENDS)
def device(request: pytest.FixtureRequest) -> Device:
    return open_device(request.param)


def test_copies_copy_all_that_they_count(device: Device) -> None:
    copies, _ = benchmarks(replace(device.info, max_allocation_bytes=1 << 20))
    copy = copies[-1]
    assert copy.work == copy.read + copy.written == 1 << 19
    source = np.random.default_rng(0).normal(size=copy.read // 4).astype(np.float32)
    program = replace(program_of([copy]), inputs=(BufferRange(False, copy.written, copy.read),))
    context = ready(device, program)
    context.run(Bindings.of([source], []))
    output = context.read_memory().view(np.float32)[: source.size]
    np.testing.assert_array_equal(output, source)
    context.close()


def test_multiply_adds_give_what_they_should(device: Device) -> None:
    fma = benchmarks(device.info)[1][Unit.FP32]
    context = ready(device, program_of([fma]))
    context.profiler().durations()
    output = context.read_memory()[: fma.written].view(np.float32)
    scale = float(np.full(2, 0.5, np.float16).view(np.float32)[0])
    # A sum of x * scale + scale, over and over, comes to scale / (1 - scale) at once.
    np.testing.assert_allclose(output, 8 * scale / (1 - scale), rtol=1e-5)
    assert fma.work == 2 * 4 * 8 * 256 * 128 * fma.groups
    context.close()


def test_dot_products_give_what_they_should(device: Device) -> None:
    dot = benchmarks(device.info)[1][Unit.INT8_DOT]
    context = ready(device, program_of([dot]))
    context.profiler().durations()
    output = context.read_memory()[: dot.written].view(np.float32)
    scale = np.full(2, 0.5, np.float16).view(np.int8).astype(np.int32)
    sums = np.arange(8, dtype=np.int32)
    for _ in range(256):
        sums += sums.view(np.int8).reshape(8, 4).astype(np.int32) @ scale
    np.testing.assert_allclose(output, sums.astype(np.float32).sum(), rtol=1e-6)
    assert dot.work == 2 * 16 * 8 * 256 * 128 * dot.groups
    context.close()


def test_rates_are_plausible(device: Device) -> None:
    peaks = measure(device)
    assert 1e8 < peaks.flops < 1e16
    assert all(1e7 < rate < 1e16 for rate in peaks.rates.values())
    assert (peaks.tensor_flops is not None) == device.info.model.tensor_cores
    assert len(peaks.copies) == 3
    assert all(1e7 < rate < 1e15 for _, rate in peaks.copies)
    assert measure(device) is peaks, "measured once"


def test_a_device_that_refuses_is_named_with_the_way_around(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> Executable:
        raise DeviceMemoryError("memory is short.")

    monkeypatch.setattr(type(device), "compile", refuse)
    with pytest.raises(
        ExecutionError, match=r"The limits of .* cannot be measured: memory is short\..*peaks=fa"
    ):
        measure.__wrapped__(device)


@pytest.mark.parametrize("capability", [(7, 5), (8, 0), (9, 0)])
def test_kernels_compile_for_cuda(capability: tuple[int, int]) -> None:
    try:
        compile_source("", options_for(capability))
    except MissingDependencyError as missing:
        pytest.skip(str(missing))
    copies, arithmetic = benchmarks(replace(DEVICE, compute_capability=capability))
    assert len(arithmetic) == (3 if capability >= (8, 0) else 2)
    program = program_of([*copies, *arithmetic.values()])
    assert len(program.kernels) == 1 + len(arithmetic), "copies of all sizes share a kernel"
    assert compile_kernels(CUDADialect(), program.kernels, capability, None)
