"""Attention of few queries: right on every device, in both layouts of values, in parts or whole."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from unittest import mock

import pytest

from cases.attention import Attention
from cases.base import Case
from every_backend import device_of, on_backends
from litegpu.engine.target import DeviceTarget
from litegpu.kernels.portable import attention
from litegpu.numeric_policy import FP32
from litegpu.ops.common import work_groups
from op_runner import MODES, check_kernel
from paper_device import DEVICE

CASES: tuple[Case, ...] = (
    # Rows, odd numbers of keys and channels, values in both layouts
    *(
        Attention(
            queries=rows, keys=keys, depth=depth, columns=columns, lying_values=lying, mask=mask
        )
        for rows, keys, depth, columns in (
            (1, 1, 40, 40),
            (2, 7, 72, 72),
            (3, 33, 64, 9),
            (4, 300, 256, 256),
            (5, 67, 5, 130),
            (8, 129, 33, 128),
        )
        for lying in (False, True)
        for mask in ((1, 1, rows, keys),)
    ),
    # A cache of many positions, most of them hidden; heads that share keys
    Attention(heads=1, queries=4, keys=2049, depth=40, lying_values=True, mask=(1, 1, 1, 2049)),
    Attention(queries=4, keys=513, depth=64, lying_values=True, mask=(1, 1, 4, 513), hidden=500),
    Attention(queries=2, keys=260, depth=64, mask=(1, 1, 1, 260), hidden=201, choice=True),
    Attention(batch=3, heads=4, share=2, repeat="TILE", queries=1, keys=150, depth=24),
    Attention(batch=2, heads=2, queries=3, keys=200, depth=20, across=True, added=True),
    Attention(batch=2, heads=3, queries=3, keys=200, depth=20, across=True, lying_values=True),
    Attention(queries=4, keys=140, depth=16, lying=True, lying_values=True, cap=2.0),
)
GPU = replace(DEVICE, backend="opencl", compute_units=132, local_memory_bytes=48 << 10)


@contextmanager
def divided(units: int) -> Iterator[None]:
    """Let every attention of few queries use the kernel, on a device with some compute units."""
    with (
        mock.patch.object(DeviceTarget, "fast_local_memory", property(lambda _: True)),
        mock.patch.object(DeviceTarget, "compute_units", property(lambda _: units)),
        mock.patch.object(attention, "_MIN_SPLIT_KEYS", 1),
        mock.patch.object(work_groups, "_MIN_DIVIDED_KEYS", 32),
    ):
        yield


@pytest.mark.parametrize("units", [1, 24])
@on_backends(("opencl", "webgpu", "opengl"))
def test_few_queries_give_what_the_cpu_gives(backend: str, units: int) -> None:
    device, mode = device_of(backend), MODES[1 if backend == "opencl" else 3]
    with divided(units):
        target = DeviceTarget(device, FP32)
        shares = target.max_work_group_size >= 64 and target.local_memory_bytes >= 16 << 10
        check_kernel(CASES, device, mode, "attention_split", shares)
