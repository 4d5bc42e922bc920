"""Weights packed in the order in which CUDA kernels read them, with zeros only as padding."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from litegpu.kernels.cuda import packing
from litegpu.kernels.cuda.halves import spread_taps
from litegpu.kernels.cuda.packing import (
    columns_in_fours,
    group_taps,
    pack_bytes,
    pack_halves,
    pack_ones,
    pack_tf32,
    pack_tiles,
)


@pytest.mark.parametrize(
    ("shape", "columns", "part", "length"),
    [
        ((16, 3, 3, 8), 16, 4, 72),  # no room for zeros
        ((16, 3, 3, 8), 32, 4, 80),
        ((5, 2, 3, 6), 16, 4, 48),
        ((5, 1, 1, 6), 5, 4, 8),
        ((3, 1, 2, 7), 4, 4, 16),
    ],
)
def test_taps_are_spread(shape: tuple[int, ...], columns: int, part: int, length: int) -> None:
    weights = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    found = spread_taps(weights, columns, part, length)
    outputs, height, width, depth = shape
    expected = np.zeros((columns, length), np.float32)
    lanes = -(-depth // part) * part
    for tap in range(height * width):
        values = weights.reshape(outputs, -1, depth)[:, tap]
        expected[:outputs, tap * lanes : tap * lanes + depth] = values
    np.testing.assert_array_equal(found, expected)


def test_taps_of_a_k_tile_follow_each_other() -> None:
    weights = np.arange(2 * 2 * 3 * 60, dtype=np.float32).reshape(2, 2, 3, 60)
    found = group_taps(weights, 8).reshape(2, 2, 6, 32)
    for group, tap in np.ndindex(2, 6):
        expected = np.zeros((2, 32), np.float32)
        values = weights.reshape(2, 6, 60)[:, tap, group * 32 : (group + 1) * 32]
        expected[:, : values.shape[1]] = values
        np.testing.assert_array_equal(found[:, group, tap], expected)


def test_ones_stand_where_inputs_do() -> None:
    weights = np.full((3, 1, 2, 100), -5, np.int8)
    inputs = np.arange(128) < 100
    taps_first = np.concatenate([inputs[:64], inputs[:64], inputs[64:], inputs[64:]])
    # With zeros between parts of channels, a tap ends with its 112th place.
    for grouped, expected in ((True, taps_first), (False, np.tile(inputs[:112], 2))):
        packed = pack_ones(weights, 16, 8, grouped).view(np.int8).reshape(8, 4, 2, 4)
        # [step, half of the inputs, lane % 4, four inputs] back from [step, lane % 4, half, four]
        flat = packed.transpose(0, 2, 1, 3).reshape(-1)
        np.testing.assert_array_equal(flat[: len(expected)], expected)
        assert not flat[len(expected) :].any()


def test_halves_lie_as_lanes_take_them() -> None:
    """As the table of fragments of mma.m16n8k16 in the PTX ISA has it, for each lane."""
    rng = np.random.default_rng(2)
    parts = [rng.normal(size=(32, 1, 1, 48)).astype(np.float32) for _ in range(2)]
    packed = pack_halves(parts, 3, 32).make().view(np.float16).reshape(3, 2, 2, 32, 8)
    for step, part, pair, lane in np.ndindex(*packed.shape[:-1]):
        flat = parts[part].reshape(32, 48).astype(np.float16)
        first = 16 * step + 2 * (lane % 4)
        inputs = [first, first + 1, first + 8, first + 9]
        columns = (16 * pair + lane // 4, 16 * pair + 8 + lane // 4)
        expected = [flat[column, k] for column in columns for k in inputs]
        np.testing.assert_array_equal(packed[step, part, pair, lane], expected)


def test_weights_are_packed_in_any_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    weights = rng.normal(size=(83, 3, 1, 6)).astype(np.float32)
    bytes_ = rng.integers(-128, 128, weights.shape).astype(np.int8)

    def packed(at_once: int) -> list[npt.NDArray[Any]]:
        monkeypatch.setattr(packing, "_AT_ONCE", at_once)
        halves = pack_halves([weights, -weights], 2, 112)
        others = pack_tf32(weights, 2, 112), pack_bytes(bytes_, 16, 2, 112)
        return [each.make() for each in (halves, *others)]

    whole = packed(1 << 20)
    for at_once in (1, 512, 1000):
        for found, expected in zip(packed(at_once), whole, strict=True):
            np.testing.assert_array_equal(found, expected)


def test_lanes_meet_four_neighbours() -> None:
    """As the table of sums of mma.m16n8k16 and wgmma in the PTX ISA has it."""
    order = columns_in_fours(32)
    for first, lane in np.ndindex(2, 4):
        mine = [16 * first + 8 * half + 2 * lane + k for half in range(2) for k in range(2)]
        neighbours = 16 * first + 4 * lane + np.arange(4)
        np.testing.assert_array_equal(order[mine], neighbours)


def test_tiles_of_fours_hold_the_same_columns() -> None:
    weights = np.random.default_rng(4).normal(size=(50, 1, 1, 70)).astype(np.float32)
    plain, fours = (
        pack_tiles(weights, 3, 32, in_fours=in_fours)
        .make()
        .view(np.float16)
        .reshape(2, 3, 32, 4, 8)
        for in_fours in (False, True)
    )
    chunks = np.arange(4)
    for column, output in enumerate(columns_in_fours(32)):
        mine, its = (chunks ^ (number >> 1 & 3) for number in (column, output))
        np.testing.assert_array_equal(fours[:, :, column, mine], plain[:, :, output, its])
