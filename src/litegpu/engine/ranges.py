"""Reads what the kernels of a program reported about the values that they round to half."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import numpy as np

from litegpu.backends.program import BufferRange
from litegpu.codegen import HALF_MAX, HALF_TINY, RANGE_WORDS, round_up

_TOO_LARGE = f"elements beyond {HALF_MAX:.0f}"
_TOO_SMALL = f"no element above {HALF_TINY:.1g}"


@dataclass(frozen=True, slots=True)
class RangeWords:
    """The range words of all launches, `step` bytes apart in `block`.

    `values` are the values that each launch rounds to half, in the order of their range words.
    """

    block: BufferRange
    step: int
    values: tuple[tuple[int, ...], ...]
    most: int
    """The maximum number of values that a single launch rounds."""

    @classmethod
    def place(cls, values: tuple[tuple[int, ...], ...], end: int, alignment: int) -> RangeWords:
        """Allocate the range words after memory that ends at `end` (bytes)."""
        most = max(map(len, values))
        step = round_up(most * RANGE_WORDS * 4, alignment)
        block = BufferRange(False, round_up(end, alignment), step * len(values))
        return cls(block, step, values, most)

    def range_of(self, number: int) -> BufferRange:
        """Return the memory range of the words that launch `number` writes."""
        return BufferRange(False, self.block.offset + number * self.step, self.step)


class RangeWatch:
    """The range words on the host: zeros as the input of every run, and the output of a run."""

    def __init__(self, words: RangeWords) -> None:
        """Initialize both copies of the range words to report no lost values."""
        self._words = words
        self._size = words.block.size
        self._zeros = np.zeros(self._size, np.uint8)
        self._returned = np.zeros(self._size, np.uint8)
        self.source, self.target = self._zeros.ctypes.data, self._returned.ctypes.data
        """Host addresses of the range words before and after a run."""
        self._harmless = bytes(self._size)

    def lost(self) -> dict[int, str]:
        """Return the values of the last run that do not fit half, each with the reason."""
        returned = ctypes.string_at(self.target, self._size)
        if returned == self._harmless:  # most runs report the same as the previous one
            return {}
        words = np.frombuffer(returned, np.uint32).reshape(len(self._words.values), -1)
        kinds = words[:, : self._words.most * RANGE_WORDS].reshape(len(words), -1, RANGE_WORDS)
        large, small, fitting = np.moveaxis(kinds.astype(bool), -1, 0)
        found = np.argwhere(large | (small & ~fitting))
        if not found.size:
            self._harmless = returned
        return {
            self._words.values[launch][offset]: _TOO_LARGE if large[launch, offset] else _TOO_SMALL
            for launch, offset in found
        }
