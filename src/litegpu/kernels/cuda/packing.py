"""Weights [O, H, W, I] in the order in which matrix instructions take them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from litegpu.codegen import round_up
from litegpu.kernels.cuda.halves import as_tf32_parts, spread_taps
from litegpu.ops.halves import as_halves

_FLOATS = npt.NDArray[np.float32]
STEP = 16
"""Inputs that one instruction sums up."""
CHUNKS = 4
"""Chunks of 16 bytes in a row of a k-tile."""
PART = {False: 8, True: 4}
"""Channels of a chunk: halves, or floats."""


def pack_halves(parts: Sequence[_FLOATS], steps: int, columns: int) -> npt.NDArray[np.uint32]:
    """Arrange [O, H, W, I] as mma.m16n8k16 has it: [step, part, pair of 8 columns, lane] of 4.

    A lane holds inputs 2 * (lane % 4) + {0, 1} and those 8 further, of column lane / 4.
    """
    ordered = []
    for weights in parts:
        flat = as_halves(_flatten(weights, steps, columns))
        # [pair, tile, column, step, half of the inputs, lane % 4, two inputs]
        split = flat.reshape(columns // 16, 2, 8, steps, 2, 4, 2)
        ordered.append(split.transpose(3, 0, 2, 5, 1, 4, 6))
    return np.stack(ordered, axis=1).reshape(-1).view(np.uint32)


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
    tiles = np.stack(parts).reshape(len(parts), -1, columns, k_tiles, CHUNKS, part)
    rows = np.arange(columns)[:, None]
    from_chunk = np.arange(CHUNKS)[None, :] ^ (rows >> 1 & 3)
    shuffled = tiles.transpose(1, 3, 0, 2, 4, 5)[:, :, :, rows, from_chunk]
    return np.ascontiguousarray(shuffled).reshape(-1).view(np.uint32)
