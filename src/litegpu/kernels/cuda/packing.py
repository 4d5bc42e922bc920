"""Weights [O, H, W, I] in the order in which matrix instructions take them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from litegpu.codegen import round_up
from litegpu.kernels.cuda.halves import as_tf32_parts, spread_taps
from litegpu.ops.halves import as_halves

_FLOATS = npt.NDArray[np.float32]
_BYTES = npt.NDArray[np.int8]
STEP = 16
"""Inputs that one instruction sums up."""
CHUNKS = 4
"""Chunks of 16 bytes in a row of a k-tile."""
PART = {False: 8, True: 4}
"""Channels of a chunk: halves, or floats."""
BYTE_PART = 16
"""Channels of a chunk of bytes."""
BYTE_STEP = 32
"""Inputs that one instruction sums up, of bytes: as long as a step of halves."""


def pack_halves(parts: Sequence[_FLOATS], steps: int, columns: int) -> npt.NDArray[np.uint32]:
    """Arrange [O, H, W, I] as mma.m16n8k16 has it: [step, part, pair of 8 columns, lane] of 4.

    A lane holds inputs 2 * (lane % 4) + {0, 1} and those 8 further, of column lane / 4.
    """
    return _in_lanes([as_halves(_flatten(weights, steps, columns)) for weights in parts])


def pack_bytes(weights: _BYTES, part: int, steps: int, columns: int) -> npt.NDArray[np.uint32]:
    """Arrange [O, H, W, I] as mma.m16n8k32 has it: as halves of two bytes each.

    Each tap takes up whole parts of `part` channels.
    """
    return _in_lanes([spread_taps(weights, columns, part, steps * BYTE_STEP).view(np.uint16)])


def pack_ones(weights: _BYTES, part: int, steps: int) -> npt.NDArray[np.uint32]:
    """Return 8 like columns that hold 1 for each input there is: [step, lane % 4] of 2."""
    ones = spread_taps(np.ones_like(weights[:1]), 1, part, steps * BYTE_STEP)
    # [step, half of the inputs, lane % 4, four inputs]
    return ones.reshape(steps, 2, 4, 4).transpose(0, 2, 1, 3).reshape(-1).view(np.uint32)


def _in_lanes(parts: Sequence[npt.NDArray[Any]]) -> npt.NDArray[np.uint32]:
    """Arrange words of 16 bits [columns, inputs] as [step, part, pair of 8 columns, lane] of 4."""
    columns, inputs = parts[0].shape
    ordered = np.empty((inputs // 16, len(parts), columns // 16, 8, 4, 2, 2, 2), parts[0].dtype)
    for number, flat in enumerate(parts):
        # [pair, tile, column, step, half of the inputs, lane % 4, two inputs]
        split = flat.reshape(columns // 16, 2, 8, -1, 2, 4, 2)
        ordered[:, number] = split.transpose(3, 0, 2, 5, 1, 4, 6)
    return ordered.reshape(-1).view(np.uint32)


def pack_tf32(weights: _FLOATS, steps: int, columns: int) -> npt.NDArray[np.uint32]:
    """Arrange [O, H, W, I] as mma.m16n8k8 has it: [half step, pair of 8 columns, lane] of 4.

    A lane holds inputs lane % 4 + {0, 4} of column lane / 4.
    """
    flat = _flatten(weights, steps, columns)
    # [pair, tile, column, half step, half of the inputs, lane % 4]
    split = flat.reshape(columns // 16, 2, 8, steps * 2, 2, 4)
    return np.ascontiguousarray(split.transpose(3, 0, 2, 5, 1, 4)).reshape(-1).view(np.uint32)


def _flatten(weights: _FLOATS, steps: int, columns: int) -> _FLOATS:
    """Return [O, H, W, I] as [columns, inputs], with zeros around and between whole blocks."""
    return spread_taps(weights, columns, 4, steps * STEP)


def pack_tiles(
    weights: _FLOATS, k_tiles: int, columns: int, floats: bool = False, split: bool = False
) -> npt.NDArray[np.uint32]:
    """Arrange [O, H, W, I] as k-tiles lie in shared memory: [block, k-tile, column, 16-byte chunk].

    The chunks of a column are shuffled by its number, as the kernel expects them. Of `floats`
    that are `split`, the high parts come first in each k-tile.
    """
    part, total = PART[floats], round_up(weights.shape[0], columns)
    flat = spread_taps(weights, total, part, k_tiles * CHUNKS * part)
    parts = as_tf32_parts(flat)[: 1 + split] if floats else [as_halves(flat)]
    return _in_tiles(parts, k_tiles, columns, part)


def pack_byte_tiles(weights: _BYTES, k_tiles: int, columns: int) -> npt.NDArray[np.uint32]:
    """Arrange bytes [O, H, W, I] as `pack_tiles` does halves."""
    total, length = round_up(weights.shape[0], columns), k_tiles * CHUNKS * BYTE_PART
    return _in_tiles([spread_taps(weights, total, BYTE_PART, length)], k_tiles, columns, BYTE_PART)


def _in_tiles(
    parts: Sequence[npt.NDArray[Any]], k_tiles: int, columns: int, part: int
) -> npt.NDArray[np.uint32]:
    tiles = np.stack(parts).reshape(len(parts), -1, columns, k_tiles, CHUNKS, part)
    rows = np.arange(columns)[:, None]
    from_chunk = np.arange(CHUNKS)[None, :] ^ (rows >> 1 & 3)
    swizzled = tiles.transpose(1, 3, 0, 2, 4, 5)[:, :, :, rows, from_chunk]
    return np.ascontiguousarray(swizzled).reshape(-1).view(np.uint32)
