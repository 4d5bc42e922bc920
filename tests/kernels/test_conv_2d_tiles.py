"""Convolutions with tiles in local memory: correct on every device, selected where faster."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest

from cases.base import Case
from cases.conv_2d import Conv
from cases.fully_connected import Dense
from every_backend import device_of, needs_device, on_backends
from litegpu.backends.base import DeviceInfo, has_local_memory
from litegpu.engine.target import DeviceTarget
from litegpu.kernels.base import Rejected
from litegpu.kernels.examples import ConvExample
from litegpu.kernels.portable import conv
from litegpu.kernels.portable.conv import ConvTiles
from litegpu.kernels.portable.conv.tiles import Tile, tiles
from litegpu.numeric_policy import FP32
from litegpu.ops.common.portable_tiles import TileProblem
from op_runner import MODES, check_kernel, forced, run
from paper_device import DEVICE, planned

CASES: tuple[Case, ...] = (
    Conv(image=(2, 5, 7, 9), filters=20, kernel=(3, 2)),
    Conv(image=(2, 9, 7, 36), filters=70, kernel=(3, 3), stride=(2, 2), padding="VALID"),
    Conv(
        image=(1, 9, 8, 33), filters=7, kernel=(2, 3), dilation=(2, 1), bias="", activation="RELU"
    ),
    Conv(image=(1, 5, 4, 64), filters=128, kernel=(3, 3), groups=2),
    Conv(image=(2, 3, 5, 12), filters=21, kernel=(3, 3), weights="computed", bias="computed"),
    Conv(image=(2, 9, 7, 5), filters=6, stride=(2, 3), padding="VALID"),
    Dense(shape=(35, 70), units=13),
    Dense(shape=(9, 520), units=12, weights="half"),
)
GPU = replace(DEVICE, backend="opencl", compute_units=132, local_memory_bytes=48 << 10)


@pytest.fixture
def tiled() -> Iterator[None]:
    """Let every convolution that can use tiles use them."""
    with (
        mock.patch.object(DeviceTarget, "fast_local_memory", property(lambda _: True)),
        mock.patch.object(conv, "_MAX_RATIO", math.inf),
    ):
        yield


@pytest.mark.usefixtures("tiled")
@pytest.mark.parametrize("number", [0, 3])
@on_backends(("opencl", "webgpu", "opengl"))
def test_tiles_give_what_the_cpu_gives(number: int, backend: str) -> None:
    device, mode = device_of(backend), MODES[1 + 2 * (number > 0)]
    some = CASES if backend == "opencl" else CASES[1 - bool(number) :: 4]
    shares = DeviceTarget(device, FP32).max_work_group_size >= 32
    with forced(number):
        check_kernel(some, device, mode, "conv_2d_tiles", shares)


def problem(
    rows: int, blocks: int, terms: tuple[int, int, int], group_blocks: int = 0
) -> TileProblem:
    return TileProblem("conv_2d_tiles", rows, blocks, terms, "float32", True, group_blocks)


def best(wanted: TileProblem, info: DeviceInfo = GPU) -> Tile:
    found = tiles(wanted, DeviceTarget(info, FP32))
    return min(found, key=lambda tile: tile.clocks(wanted, info.compute_units))


def test_large_products_use_wide_tiles_and_small_ones_divide_their_sums() -> None:
    large, small = best(problem(50_176, 32, (3, 3, 32))), best(problem(49, 128, (3, 3, 128)))
    assert (large.pixels, large.channel_blocks, large.slices) == (8, 2, 1)
    assert small.slices > 1
    assert small.rows < large.rows


@pytest.mark.parametrize("kib", [2, 4, 8, 16, 48])
@pytest.mark.parametrize("most", [16, 32, 64, 256])
def test_tiles_keep_to_the_limits_of_a_device(kib: int, most: int) -> None:
    info = replace(GPU, local_memory_bytes=kib << 10, max_work_group_size=most)
    found = list(tiles(problem(3136, 64, (3, 3, 16), 16), DeviceTarget(info, FP32)))
    assert all(tile.shared_bytes <= kib << 10 and tile.items <= most for tile in found)
    assert all(16 % tile.columns == 0 for tile in found), "no tile has columns of two groups"
    assert bool(found) == (kib > 2 and most >= 32)


def test_reasons() -> None:
    example = ConvExample((1, 64, 64, 64), 64, 3)
    assert not isinstance(planned(ConvTiles(), GPU, example), Rejected)
    found = planned(ConvTiles(), replace(GPU, fast_local_memory=False), example)
    assert found == Rejected("local memory of the device is not faster than the cache")
    assert planned(ConvTiles(), replace(GPU, software=True), example) == found
    found = planned(ConvTiles(), replace(GPU, max_work_group_size=16), example)
    assert found == Rejected("the device permits too few work items per group")
    found = planned(ConvTiles(), GPU, ConvExample((1, 1, 7, 1024), 64))
    assert found == Rejected("most of a tile would be empty")
    found = planned(ConvTiles(), GPU, ConvExample((1, 4, 4, 8), 8))
    assert isinstance(found, Rejected)
    assert found.reason.endswith("without tiles")


def test_gpus_without_local_memory_are_known_by_name() -> None:
    assert has_local_memory("NVIDIA H100 80GB HBM3")
    assert not has_local_memory("Mali-G52")
    assert not has_local_memory("V3D 7.1.7")


@needs_device("opencl")
def test_sums_of_one_slice_are_those_of_items_alone() -> None:
    """A tile adds the terms in the order of conv_2d: the results are equal to the last bit."""
    case, device = Conv(image=(1, 8, 8, 36), filters=40, kernel=(3, 3)), device_of("opencl")
    mode = MODES[1]
    alone = run((case,), device, mode)[case.name]
    with (
        mock.patch.object(DeviceTarget, "fast_local_memory", property(lambda _: True)),
        mock.patch.object(conv, "_MAX_RATIO", math.inf),
        mock.patch.object(conv, "tiles", lambda *_: [Tile(4, 2, 8, 8)]),
    ):
        together = run((case,), device, mode)[case.name]
    assert not isinstance(alone, Exception)
    assert not isinstance(together, Exception)
    assert np.array_equal(alone.got[0], together.got[0])
