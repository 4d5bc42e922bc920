"""Packs constant weights of 4 bits into words that kernels multiply as bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from litegpu.ops.common.lazy_array import LazyArray

NIBBLES = 8
"""Number of 4-bit weights per 32-bit word."""
HIGH_BITS = 0xF0F0F0F0 - (1 << 32)
"""A mask for the high 4 bits of each byte of a word."""


def pack_nibbles(weights: npt.NDArray[Any], channel_blocks: int) -> LazyArray:
    """Pack integers [O, I] from -8 to 7 into words [I / 8, O], zero-padded to channel blocks.

    The low 4 bits of a word's bytes have 4 inputs, and the high 4 bits the next 4 inputs. A kernel
    multiplies 4 of them, shifted to the high bits, as bytes: the products are 16 times as large.
    """
    outputs, depth = weights.shape
    lanes, words = channel_blocks * 4, depth // NIBBLES

    def fill(out: npt.NDArray[np.int32]) -> None:
        halves = weights.astype(np.uint8).reshape(outputs, words, 2, NIBBLES // 2)
        both = (halves[:, :, 0] & 15) | halves[:, :, 1] << 4
        out.reshape(words, lanes)[:, :outputs] = both.view(np.int32)[..., 0].T

    return LazyArray(np.dtype(np.int32), words * lanes, fill)
