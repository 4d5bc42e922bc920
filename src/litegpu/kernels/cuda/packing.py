"""Packs weights [O, H, W, I] in the layouts of matrix instructions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from litegpu.codegen import round_up
from litegpu.kernels.cuda.halves import as_tf32_parts, spread_taps
from litegpu.ops.common.halves import as_halves
from litegpu.ops.common.lazy_array import LazyArray

_FLOATS = npt.NDArray[np.float32]
_BYTES = npt.NDArray[np.int8]
_WORDS = npt.NDArray[np.uint32]
_Element = TypeVar("_Element", bound=np.generic)
_AT_ONCE = 1 << 15
"""Number of words that are packed at once, so that these words and their sources fit a core's
cache.
"""
STEP = 16
"""Number of inputs that one instruction sums."""
CHUNKS = 4
"""Number of 16-byte chunks in a row of a k-tile."""
PART = {False: 8, True: 4}
"""Number of channels per chunk of halves, and of floats."""
BYTE_PART = 16
"""Number of channels per chunk of bytes."""
BYTE_STEP = 32
"""Number of byte inputs that one instruction sums: as many bytes as a step of halves."""


def pack_halves(
    parts: Sequence[_FLOATS], steps: int, columns: int, in_fours: bool = False
) -> LazyArray:
    """Arrange [O, H, W, I] for mma.m16n8k16: [step, part, pair of 8 columns, lane] of 4 words.

    A lane holds inputs 2 * (lane % 4) + {0, 1}, and the inputs 8 further, of column lane / 4.
    `in_fours`: whether the columns of a lane are adjacent in each 16 columns, see columns_in_fours.
    """

    def words(weights: _FLOATS, columns: int) -> _WORDS:
        return as_halves(spread_taps(weights, columns, 4, steps * STEP)).view(np.uint32)

    return _in_lanes(parts, words, steps, columns, in_fours)


def pack_bytes(
    weights: _BYTES, part: int, steps: int, columns: int, in_fours: bool = False
) -> LazyArray:
    """Arrange [O, H, W, I] for mma.m16n8k32, in which two bytes replace each half.

    The function pads each tap to whole parts of `part` channels. `in_fours` has the same meaning as
    in pack_halves.
    """

    def words(weights: _BYTES, columns: int) -> _WORDS:
        return spread_taps(weights, columns, part, steps * BYTE_STEP).view(np.uint32)

    return _in_lanes([weights], words, steps, columns, in_fours)


def pack_tf32(weights: _FLOATS, steps: int, columns: int, in_fours: bool = False) -> LazyArray:
    """Arrange [O, H, W, I] for mma.m16n8k8: [half step, pair of 8 columns, lane] of 4 words.

    A lane holds inputs lane % 4 + {0, 4} of column lane / 4. `in_fours` has the same meaning as in
    pack_halves.
    """

    def words(weights: _FLOATS, columns: int) -> _WORDS:
        return spread_taps(weights, columns, 4, steps * STEP).view(np.uint32)

    return _in_lanes([weights], words, steps * 2, columns, in_fours)


def _in_lanes(
    parts: Sequence[npt.NDArray[_Element]],
    words: Callable[[npt.NDArray[_Element], int], _WORDS],
    steps: int,
    columns: int,
    in_fours: bool,
) -> LazyArray:
    """Arrange parts [O, ...] as [step, part, pair of 8 columns, lane] of 4 words.

    `words` returns [columns, steps * 8] for some of the outputs, zero-padded.
    """
    at_once = max(16, _AT_ONCE // (steps * 8) // 16 * 16)

    def fill(out: npt.NDArray[Any]) -> None:
        # [step, part, pair, column, lane % 4, tile, half of the inputs]
        ordered = out.reshape(steps, len(parts), columns // 16, 8, 4, 2, 2)
        for number, weights in enumerate(parts):
            for first in range(0, len(weights), at_once):
                end = min(first + at_once, columns)
                found = words(weights[first:end], end - first)
                if in_fours:
                    found = found.reshape(-1, 4, 2, 2, steps * 8).swapaxes(1, 2)
                # [pair, tile, column, step, half of the inputs, lane % 4]
                split = found.reshape(-1, 2, 8, steps, 2, 4)
                ordered[:, number, first // 16 : end // 16] = split.transpose(3, 0, 2, 5, 1, 4)

    return LazyArray(np.dtype(np.uint32), len(parts) * steps * columns * 8, fill)


def pack_ones(
    weights: _BYTES, part: int, steps: int, grouped: bool = False
) -> npt.NDArray[np.uint32]:
    """Return 8 equal columns of 1 for each real input, 0 for padding: [step, lane % 4] of 2.

    The inputs are in the order of `pack_byte_tiles`; `grouped` has the same meaning there.
    """
    inputs = np.ones_like(weights[:1])
    ordered = group_taps(inputs, part) if grouped else inputs
    ones = spread_taps(ordered, 1, part, steps * BYTE_STEP)
    # [step, half of the inputs, lane % 4, four inputs]
    return ones.reshape(steps, 2, 4, 4).transpose(0, 2, 1, 3).reshape(-1).view(np.uint32)


def group_taps(weights: npt.NDArray[_Element], part: int) -> npt.NDArray[_Element]:
    """Return [O, H, W, I] as [O, 1, 1, inputs]: for each k-tile of channels, all taps.

    Adjacent taps read mostly the same part of a k-tile. The function zero-pads the channels to
    whole k-tiles.
    """
    outputs, height, width, depth = weights.shape
    lanes = CHUNKS * part
    filled = np.zeros((outputs, height * width, round_up(depth, lanes)), weights.dtype)
    filled[..., :depth] = weights.reshape(outputs, -1, depth)
    split = filled.reshape(outputs, height * width, -1, lanes)
    return split.swapaxes(1, 2).reshape(outputs, 1, 1, -1)


def pack_tiles(
    weights: _FLOATS,
    k_tiles: int,
    columns: int,
    floats: bool = False,
    split: bool = False,
    grouped: bool = False,
    in_fours: bool = False,
) -> LazyArray:
    """Arrange [O, H, W, I] as k-tiles in shared memory: [block, k-tile, column, 16-byte chunk].

    The chunks of a column are permuted by its index (swizzled), as the kernel expects. If `floats`
    are `split`, the high parts come first in each k-tile. `grouped` selects the order of
    group_taps; `in_fours` has the same meaning as in pack_halves.
    """
    part, total = PART[floats], round_up(weights.shape[0], columns)

    def parts() -> list[npt.NDArray[Any]]:
        ordered = group_taps(weights, part) if grouped else weights
        flat = spread_taps(ordered, total, part, k_tiles * CHUNKS * part)
        return as_tf32_parts(flat)[: 1 + split] if floats else [as_halves(flat)]

    order = columns_in_fours(columns) if in_fours else np.arange(columns)
    return _in_tiles(parts, 1 + (floats and split), k_tiles, order, total)


def columns_in_fours(columns: int) -> npt.NDArray[np.intp]:
    """Return the output of each column of a tile, such that a lane's sums are adjacent outputs.

    In an instruction of 8 columns, lane q of four has the sums of columns 2 * q and 2 * q + 1. With
    this order, the sums of lane q in two instructions are outputs 4 * q to 4 * q + 3.
    """
    # [16 columns, q, instruction, column of the lane]
    order = np.arange(columns).reshape(-1, 4, 2, 2)
    return order.swapaxes(1, 2).reshape(-1)


def pack_byte_tiles(weights: _BYTES, k_tiles: int, columns: int, grouped: bool) -> LazyArray:
    """Arrange bytes [O, H, W, I] as `pack_tiles` arranges halves."""
    total, length = round_up(weights.shape[0], columns), k_tiles * CHUNKS * BYTE_PART

    def parts() -> list[npt.NDArray[Any]]:
        ordered = group_taps(weights, BYTE_PART) if grouped else weights
        return [spread_taps(ordered, total, BYTE_PART, length)]

    return _in_tiles(parts, 1, k_tiles, np.arange(columns), total)


def _in_tiles(
    make_parts: Callable[[], Sequence[npt.NDArray[Any]]],
    parts: int,
    k_tiles: int,
    order: npt.NDArray[np.intp],
    total: int,
) -> LazyArray:
    """Arrange `parts` arrays [total columns, inputs] in tiles, with the columns in an `order`."""
    columns, rows = len(order), order[:, None]
    from_chunk = np.arange(CHUNKS)[None, :] ^ (np.arange(columns)[:, None] >> 1 & 3)

    def fill(out: npt.NDArray[Any]) -> None:
        # Chunks are copied as pairs of 8-byte words.
        ordered = out.view(np.uint64).reshape(-1, k_tiles, parts, columns, CHUNKS, 2)
        for number, flat in enumerate(make_parts()):
            tiles = flat.view(np.uint64).reshape(-1, columns, k_tiles, CHUNKS, 2)
            ordered[:, :, number] = tiles.transpose(0, 2, 1, 3, 4)[:, :, rows, from_chunk]

    return LazyArray(np.dtype(np.uint32), parts * total * k_tiles * CHUNKS * 4, fill)
