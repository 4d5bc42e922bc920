"""What the kernels of a program told in a run about the values that they round to half."""

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
    """The words of all launches that note ranges, `step` bytes apart in `block`.

    `values` are those that each of these launches rounds, in the order of their words.
    """

    block: BufferRange
    step: int
    values: tuple[tuple[int, ...], ...]
    most: int
    """Values that a launch rounds at the most."""

    @classmethod
    def place(cls, values: tuple[tuple[int, ...], ...], end: int, alignment: int) -> RangeWords:
        """Lay the words out behind memory that ends at `end` (bytes)."""
        most = max(map(len, values))
        step = round_up(most * RANGE_WORDS * 4, alignment)
        block = BufferRange(False, round_up(end, alignment), step * len(values))
        return cls(block, step, values, most)

    def range_of(self, number: int) -> BufferRange:
        """Return where the launch of that number among them has its words."""
        return BufferRange(False, self.block.offset + number * self.step, self.step)


class RangeWatch:
    """The host's side of range words: zeros for every run to begin with, and what came back."""

    def __init__(self, words: RangeWords) -> None:
        """Begin with words that tell nothing."""
        self._words = words
        self._size = words.block.size
        self._zeros = np.zeros(self._size, np.uint8)
        self._returned = np.zeros(self._size, np.uint8)
        self.source, self.target = self._zeros.ctypes.data, self._returned.ctypes.data
        """Host addresses of the words before and after a run."""
        self._harmless = bytes(self._size)

    def lost(self) -> dict[int, str]:
        """Return the values of the last run that do not fit half, and why."""
        returned = ctypes.string_at(self.target, self._size)
        if returned == self._harmless:  # most runs tell what the one before did
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
