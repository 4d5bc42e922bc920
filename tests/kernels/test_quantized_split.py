"""Sums of bytes that work items divide: equal to the CPU in every bit, chosen where useful."""

from __future__ import annotations

from dataclasses import replace
from unittest import mock

import pytest

from cases.base import Case
from cases.hybrid import HybridConv, HybridMatrix
from cases.quantized import ORDINARY, POWER
from cases.quantized_conv import QuantizedConv, QuantizedMatrix, of_all_types
from comparing import relative_error
from cuda_emulator import INFO, EmulatedBackend, EmulatedDevice, needs_emulator
from every_backend import device_of, on_backends
from litegpu import backends
from litegpu.backends.base import DeviceInfo
from litegpu.engine.target import DeviceTarget
from litegpu.kernels.base import Rejected
from litegpu.kernels.examples import QuantizedConvExample
from litegpu.kernels.portable.quantized_conv import QuantizedConvSplit
from litegpu.numeric_policy import FP32
from op_runner import MODES, check_kernel, run
from paper_device import DEVICE, planned

SUMS: tuple[Case, ...] = (
    *of_all_types(QuantizedMatrix, inputs=1029, outputs=9, kind=POWER),
    *of_all_types(QuantizedMatrix, inputs=640, outputs=70, batch=6, kind=POWER),
    *of_all_types(QuantizedMatrix, inputs=258, outputs=7, batch=3),
    *of_all_types(QuantizedConv, channels=37, filters=10, kernel=(3, 2), size=(3, 2), kind=POWER),
    *of_all_types(QuantizedConv, channels=64, filters=24, groups=2, size=(2, 3), stride=(2, 1)),
    QuantizedConv(bits=4, channels=40, filters=9, size=(3, 4), batch=2, per_channel=True),
    QuantizedMatrix(bits=4, inputs=512, outputs=13, batch=5),
    QuantizedMatrix(bits=4, inputs=515, outputs=13, batch=5),
    HybridMatrix(bits=4, inputs=1024, outputs=21, rows=(1, 3), kind=POWER),
    HybridMatrix(bits=4, inputs=768, outputs=6, rows=(9,), asymmetric=True),
    HybridMatrix(bits=2, inputs=640, outputs=11, rows=(2,), per_channel=True),
    HybridMatrix(inputs=1200, outputs=8, rows=(5,), per_channel=True, kind=POWER),
)
BLOCKS: tuple[Case, ...] = tuple(
    HybridMatrix(bits=4, block=block, inputs=inputs, outputs=outputs, rows=rows, kind=kind)
    for block, inputs, outputs, rows, kind in (
        (32, 1152, 18, (1,), ORDINARY),
        (32, 1024, 5, (1, 3), POWER),
        (64, 2112, 33, (7,), ORDINARY),
        (8, 264, 9, (2, 2), POWER),
    )
)
STORED_AS_HALF: tuple[Case, ...] = (
    *(
        HybridConv(bits=4, channels=256, filters=filters, kernel=(1, 1), size=(2, 1))
        for filters in (1, 4, 9, 17)
    ),
    HybridMatrix(bits=4, inputs=512, outputs=3, rows=(2,)),
)
"""Results with an odd number of channel blocks, which halves pad to an even number."""
GPU = replace(DEVICE, backend="opencl", compute_units=132, local_memory_bytes=48 << 10)


@on_backends(("opencl", "webgpu", "opengl"))
@pytest.mark.parametrize(
    ("cases", "template"),
    [(SUMS, "quantized_conv_split_k"), (BLOCKS, "blockwise_product_split_k")],
    ids=["sums", "blocks"],
)
def test_divided_sums_are_those_of_the_cpu(
    backend: str, cases: tuple[Case, ...], template: str
) -> None:
    device, mode = device_of(backend), MODES[0]
    target = DeviceTarget(device, FP32)
    shares = target.max_work_group_size >= 64 and target.local_memory_bytes >= 16 << 10
    with mock.patch.object(DeviceTarget, "parallel_items", property(lambda _: 1 << 18)):
        check_kernel(cases, device, mode, template, shares)


@on_backends(("opencl", "webgpu", "opengl"))
def test_weights_have_the_padding_of_results_stored_as_half(backend: str) -> None:
    with mock.patch.object(DeviceTarget, "parallel_items", property(lambda _: 1 << 18)):
        outcomes = run(STORED_AS_HALF, device_of(backend), MODES[-1])
    for case in STORED_AS_HALF:
        outcome = outcomes[case.name]
        assert not isinstance(outcome, Exception), outcome
        (expected,), (got,) = outcome.expected, outcome.got
        assert relative_error(got, expected) < 2e-3, case.name


@needs_emulator
def test_divided_sums_of_blocks_are_those_of_the_cpu_in_cuda() -> None:
    emulated = {"cuda": EmulatedBackend(EmulatedDevice())}
    busy = mock.patch.object(DeviceTarget, "parallel_items", property(lambda _: 1 << 18))
    with mock.patch.object(backends, "BACKENDS", emulated), busy:
        check_kernel(BLOCKS[:2], INFO, MODES[0], "blockwise_product_split_k", chosen=True)


@pytest.mark.parametrize(
    ("info", "example", "reason"),
    [
        (GPU, QuantizedConvExample((1, 1, 2, 2048), 256), ""),
        (GPU, QuantizedConvExample((1, 64, 64, 256), 256), "enough elements"),
        (replace(GPU, software=True), QuantizedConvExample((1, 8, 8, 512), 64), "enough elements"),
        (GPU, QuantizedConvExample((1, 1, 2, 64), 256), "the sums are too short"),
        (
            replace(GPU, local_memory_bytes=128),
            QuantizedConvExample((1, 1, 2, 2048), 256),
            "too few work items",
        ),
    ],
)
def test_reasons(info: DeviceInfo, example: QuantizedConvExample, reason: str) -> None:
    found = planned(QuantizedConvSplit(), info, example)
    if reason:
        assert isinstance(found, Rejected)
        assert reason in found.reason
    else:
        assert not isinstance(found, Rejected)
