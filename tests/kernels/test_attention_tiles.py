"""Attention with tiles in local memory: correct on every device, selected where it is faster."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from unittest import mock

import pytest

from cases.attention import Attention
from cases.base import Case
from every_backend import device_of, on_backends
from litegpu.backends.base import DeviceInfo
from litegpu.engine.target import DeviceTarget
from litegpu.kernels.base import Rejected
from litegpu.kernels.examples import AttentionExample
from litegpu.kernels.portable import attention
from litegpu.kernels.portable.attention import AttentionTiles
from litegpu.numeric_policy import FP32
from op_runner import MODES, check_kernel
from paper_device import DEVICE, planned

CASES: tuple[Case, ...] = (
    Attention(queries=33, keys=70, depth=5, columns=9),
    Attention(batch=2, heads=3, queries=20, keys=33, depth=12, across=True, added=True),
    Attention(batch=1, heads=2, queries=9, keys=65, depth=64, mask=(1, 1, 9, 65)),
    Attention(batch=2, heads=2, queries=40, keys=7, depth=20, turned=True),
    Attention(queries=17, keys=32, depth=128),
)
GPU = replace(DEVICE, backend="opencl", compute_units=132, local_memory_bytes=48 << 10)


@pytest.fixture
def tiled() -> Iterator[None]:
    """Let every attention that can use tiles use them."""
    with (
        mock.patch.object(DeviceTarget, "fast_local_memory", property(lambda _: True)),
        mock.patch.multiple(attention, _MIN_KEYS=1, _MIN_QUERIES=1),
    ):
        yield


@pytest.mark.usefixtures("tiled")
@on_backends(("opencl", "webgpu", "opengl"))
def test_tiles_give_what_the_cpu_gives(backend: str) -> None:
    device, mode = device_of(backend), MODES[1 if backend == "opencl" else 3]
    some = CASES if backend == "opencl" else CASES[1:3]
    target = DeviceTarget(device, FP32)
    shares = target.max_work_group_size >= 64 and target.local_memory_bytes >= 48 << 10
    check_kernel(some, device, mode, "attention_tiles", shares)


@pytest.mark.parametrize(
    ("info", "example", "reason"),
    [
        (GPU, AttentionExample(1500, 1500, 64), ""),
        (
            GPU,
            AttentionExample(1500, 1500, 192),
            "heads have 192 channels; at most 128 are supported",
        ),
        (
            replace(GPU, software=True),
            AttentionExample(256, 256, 64),
            "local memory of the device is not faster",
        ),
        (
            replace(GPU, max_work_group_size=32),
            AttentionExample(256, 256, 64),
            "too few work items",
        ),
        (replace(GPU, local_memory_bytes=4096), AttentionExample(256, 256, 64), "too few work"),
        (GPU, AttentionExample(256, 16, 64), "most of a tile would be empty"),
        (GPU, AttentionExample(1, 256, 64), "most of a tile would be empty"),
        (GPU, AttentionExample(64, 4096, 64), "4 tiles are too few to keep the device busy"),
    ],
)
def test_reasons(info: DeviceInfo, example: AttentionExample, reason: str) -> None:
    found = planned(AttentionTiles(), info, example)
    if reason:
        assert isinstance(found, Rejected)
        assert reason in found.reason
    else:
        assert not isinstance(found, Rejected)
