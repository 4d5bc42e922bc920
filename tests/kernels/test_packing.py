"""Weights in the order in which CUDA's kernels read them: zeros where there is padding alone."""

from __future__ import annotations

import numpy as np
import pytest

from litegpu.kernels.cuda.halves import spread_taps
from litegpu.kernels.cuda.packing import pack_halves


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


def test_halves_lie_as_lanes_take_them() -> None:
    """As the table of fragments of mma.m16n8k16 in the PTX ISA has it, for each lane."""
    rng = np.random.default_rng(2)
    parts = [rng.normal(size=(32, 1, 1, 48)).astype(np.float32) for _ in range(2)]
    packed = pack_halves(parts, 3, 32).view(np.float16).reshape(3, 2, 2, 32, 8)
    for step, part, pair, lane in np.ndindex(*packed.shape[:-1]):
        flat = parts[part].reshape(32, 48).astype(np.float16)
        first = 16 * step + 2 * (lane % 4)
        inputs = [first, first + 1, first + 8, first + 9]
        columns = (16 * pair + lane // 4, 16 * pair + 8 + lane // 4)
        expected = [flat[column, k] for column in columns for k in inputs]
        np.testing.assert_array_equal(packed[step, part, pair, lane], expected)
