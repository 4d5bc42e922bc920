"""Attention of few queries: right on every device, in both layouts of values, in parts or whole."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from answering import answers
from cases.attention import Attention
from cases.base import Case
from dice import Seeded
from every_backend import device_of, on_backends
from litegpu.backends.base import DeviceInfo
from litegpu.engine.target import DeviceTarget
from litegpu.kernels.base import Rejected
from litegpu.kernels.examples import AttentionExample
from litegpu.kernels.portable import attention
from litegpu.kernels.portable.attention import AttentionSplit
from litegpu.numeric_policy import FP32
from litegpu.ops.common import work_groups
from litegpu.ops.common.work_groups import divide_keys
from litegpu.zoo.writer import ModelWriter
from op_runner import MODES, check_kernel
from paper_device import DEVICE, planned
from random_decoders import Decoder
from random_decoders import check as check_decoder

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
    *(
        Attention(
            batch=batch,
            heads=6,
            share=share,
            repeat=repeat,
            queries=queries,
            keys=70,
            depth=24,
            across=across,
            mask=(batch, mask, queries, 70) if mask else None,
        )
        for batch, share, queries, across, repeat, mask in (
            (1, 3, 1, True, "BROADCAST_TO", 1),
            (2, 3, 1, False, "GATHER", 6),
            (2, 2, 3, False, "TILE", 6),
            (1, 6, 1, False, "", 1),
            (2, 3, 2, False, "BROADCAST_TO", 1),
            (1, 3, 1, True, "BROADCAST_TO", 0),
        )
    ),
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


@pytest.mark.parametrize("seed", range(3))
@on_backends(("opencl", "webgpu", "opengl"))
def test_decoders_with_divided_caches(backend: str, seed: int, tmp_path: Path) -> None:
    device_of(backend)
    pytest.importorskip("tokenizers", reason="needs litegpu[llm]")
    with divided(24):
        decoder = Decoder.draw(Seeded(seed))
        check_decoder(decoder, seed, tmp_path, backend=backend, precision="fp32", cache=False)


_NAN, _INF = float("nan"), float("inf")


@pytest.mark.parametrize("units", [1, 24])
@on_backends(("opencl", "webgpu"))
def test_nan_and_infinity_give_what_separate_kernels_give(backend: str, units: int) -> None:
    """OpenGL lets compilers ignore NaN in maxima."""
    random, (rows, keys, depth) = np.random.default_rng(0), (5, 203, 24)
    shapes = ((1, 1, rows, depth), (1, 1, keys, depth), (1, 1, depth, keys), (1, 1, rows, keys))
    query, key, value, mask = (random.uniform(-1, 1, each).astype(np.float32) for each in shapes)
    mask[..., 150:] = -_INF
    mask[0, 0, 1] = -_INF
    mask[0, 0, 2, 3] = _INF
    query[0, 0, 3, 5] = _NAN
    value[0, 0, 7, 20], value[0, 0, 8, 30], value[0, 0, 9, 202] = _INF, _NAN, _INF
    writer = ModelWriter()
    q, k, v, m = (writer.input(shape) for shape in shapes)
    options = {"adj_x": False, "adj_y": True}
    scores = writer.op("BATCH_MATMUL", [q, k], [(1, 1, rows, keys)], options=options)
    plain = {"fused_activation_function": "NONE"}
    masked = writer.op("ADD", [scores, m], [(1, 1, rows, keys)], options=plain)
    weights = writer.op("SOFTMAX", [masked], [(1, 1, rows, keys)], options={"beta": 1.0})
    writer.output(writer.op("BATCH_MATMUL", [weights, v], [(1, 1, rows, depth)], options=options))
    content = writer.build()
    # The CPU's exponential of NaN is a number: separate kernels give what is expected.
    device = device_of(backend)
    (expected,) = answers(content, device, query, key, value, mask)
    with divided(units):
        (found,) = answers(content, device, query, key, value, mask)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("info", "example", "reason"),
    [
        (GPU, AttentionExample(4, 2048, 256), ""),
        (replace(GPU, local_memory_bytes=16 << 10), AttentionExample(8, 2048, 256), ""),
        (GPU, AttentionExample(9, 2048, 64), "there are more than 8 queries per head"),
        (GPU, AttentionExample(4, 31, 64), "there are too few keys"),
        (GPU, AttentionExample(4, 2048, 513), "heads have more than 512 channels"),
        (
            replace(GPU, software=True),
            AttentionExample(4, 2048, 64),
            "local memory of the device is not faster",
        ),
        (replace(GPU, max_arguments=3), AttentionExample(4, 2048, 64), "permits 3"),
        (replace(GPU, local_memory_bytes=256), AttentionExample(4, 2048, 64), "too few work items"),
    ],
)
def test_reasons(info: DeviceInfo, example: AttentionExample, reason: str) -> None:
    found = planned(AttentionSplit(), info, example)
    if reason:
        assert isinstance(found, Rejected)
        assert reason in found.reason
    else:
        assert not isinstance(found, Rejected)


@pytest.mark.parametrize(
    ("products", "keys", "units", "parts"),
    [
        (1, 2048, 132, 128),
        (8, 2048, 132, 16),
        (3, 2048, 132, 43),
        (1, 2049, 8, 16),
        (32, 2048, 132, 16),
        (200, 2048, 132, 2),
        (600, 2048, 132, 1),
        (1, 127, 132, 1),
        (1, 128, 132, 8),
    ],
)
def test_each_compute_unit_gets_parts(products: int, keys: int, units: int, parts: int) -> None:
    target = DeviceTarget(replace(GPU, compute_units=units), FP32)
    assert divide_keys(products, keys, target) == parts
    length = -(-keys // 4 // parts)
    assert (parts - 1) * length < -(-keys // 4), "no part is empty"
