"""The problem of cuda/conv_narrow, and the part of the image that a block holds on chip."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from litegpu.codegen import round_up
from litegpu.graph import DType
from litegpu.kernels.cuda.conv import SplitProblem
from litegpu.ops.common.window import Pair

WIDE = 16
"""Pixels of a row per matrix instruction."""
COLUMNS = 16
"""Channels of two matrix instructions, four per lane of a pixel."""
_LANES = 4
"""Lanes that hold the inputs of a pixel, two each, in one half of a step."""
_BANKS = 32
"""Consecutive words of shared memory in distinct banks."""
BYTES_OF_PIXEL = 4
"""Bytes of a pixel in shared memory, whatever its channels: one word, stored like two halves."""


Quads = tuple[tuple[Pair, ...], ...]
"""Quads of 4 pairs of values of a window, each (row, pair of its run)."""


@lru_cache(maxsize=64)
def _quads(rows: int, pairs: int) -> Quads:
    """Return quads that hold each of `pairs` pairs of each row.

    The pairs of a quad are adjacent, or at the ends of consecutive runs. Padding repeats a pair,
    also to complete a step, which takes two quads.
    """
    ends, lanes = pairs // _LANES * _LANES, range(_LANES)
    starts = [(y, x) for y in range(rows) for x in range(0, ends, _LANES)]
    whole = [tuple((y, x + q) for q in lanes) for y, x in starts]
    across = [tuple((y, min(ends + q, pairs - 1)) for q in lanes) for y in range(rows)]
    below = [
        tuple((min(y + q, rows - 1), x) for q in lanes)
        for x in range(ends, pairs)
        for y in range(0, rows, _LANES)
    ]
    found = [*whole, *(min(across, below, key=len) if ends < pairs else [])]
    return tuple(found + found[-1:] * (len(found) % 2))


@dataclass(frozen=True, slots=True)
class NarrowProblem(SplitProblem):
    """A convolution whose windows are runs of values; `channels` include the image's padding.

    Two bytes count as one value; the bytes of a pixel count as two values, whatever its channels.
    """

    stored: str
    whole: bool
    """Whether rows consist of whole groups of 4 values, or 4 pixels of bytes, at multiples of 4."""

    @property
    def of_bytes(self) -> bool:
        return DType(self.stored).size == 1

    @property
    def run(self) -> int:
        """Values of one row of a window."""
        return self.view.kernel[1] * self.channels

    @property
    def step(self) -> int:
        """Values from one window to the next one in a row."""
        return self.view.stride[1] * self.channels

    @property
    def quads(self) -> Quads:
        """Return the elements of the k axis."""
        return _quads(self.view.kernel[0], -(-self.run // 2))

    def tap_offsets(self, pitch: int) -> list[tuple[tuple[int, ...], int]]:
        """Return for each quad the offsets of its pairs from its first, and the offset of that.

        Rows of the image are `pitch` halves apart.
        """
        line = self.view.dilation[0] * pitch
        tap_offsets = [[y * line + 2 * x for y, x in quad] for quad in self.quads]
        return [
            (tuple(at - distances[0] for at in distances), distances[0])
            for distances in tap_offsets
        ]

    @property
    def steps(self) -> int:
        return len(self.quads) // 2

    @property
    def parts(self) -> int:
        """Number of halves that a weight is split into."""
        return 1 + self.split_weights

    @property
    def pairs(self) -> int:
        """Pairs of 8 columns that hold all output channels."""
        return -(-self.outputs // COLUMNS)


@lru_cache(maxsize=64)
def _pitch(problem: NarrowProblem, least: int, unit: int) -> int:
    """Return a pitch with which most lanes read from different banks."""

    def conflicts(pitch: int) -> int:
        total = 0
        for pattern in {pattern for pattern, _ in problem.tap_offsets(pitch)}:
            starts = range(0, 8 * problem.step, problem.step)
            words = {(start + offset) // 2 for start in starts for offset in pattern}
            banks = [word % _BANKS for word in words]
            total += max(map(banks.count, banks))
        return total

    return min(range(least, least + 2 * _BANKS, unit), key=conflicts)


@dataclass(frozen=True, slots=True)
class Patch:
    """The layout of the image rows of a tile in shared memory.

    The k axis is read in pairs of halves. If windows start at odd offsets, a second copy is stored
    one half further.
    """

    problem: NarrowProblem
    rows: int
    width: int
    """Values of a row, from the first window's start to the last one's end."""

    @property
    def unit(self) -> int:
        """Values that a thread reads and stores together: whole words, or single values."""
        if not self.problem.whole:
            return 2
        return 2 * BYTES_OF_PIXEL if self.problem.of_bytes else 4

    @property
    def skipped(self) -> int:
        """Values before the first window, for aligned loads."""
        before = self.problem.view.pads[1] * self.problem.channels
        return -before % self.unit if self.problem.whole else 0

    @property
    def lead(self) -> int:
        """Unused halves at the start, so that windows start at even offsets."""
        return self.skipped % 2

    @property
    def units(self) -> int:
        return -(-(self.skipped + self.width) // self.unit)

    @property
    def copies(self) -> int:
        return 1 + self.problem.step % 2

    @property
    def pitch(self) -> int:
        """Halves from one row to the next."""
        least = round_up(self.lead + self.units * self.unit + 1, self.unit)
        return _pitch(self.problem, least, self.unit)

    @property
    def halves(self) -> int:
        """Halves of one copy of one part."""
        return self.rows * self.pitch

    @property
    def all_halves(self) -> int:
        """Halves of all copies and parts."""
        return self.halves * self.copies * (1 + self.problem.split_values)

    def words(self) -> dict[str, Any]:
        """Return the template variables."""
        tap_offsets = self.problem.tap_offsets(self.pitch)
        patterns = list(dict.fromkeys(pattern for pattern, _ in tap_offsets))
        last = self.problem.run // 2
        # If a run is odd, half of a pair belongs to the next pixel.
        odd = self.problem.run % 2 > 0
        cut = [tuple(odd and x == last for _, x in quad) for quad in self.problem.quads]
        masks = [mask for mask in dict.fromkeys(cut) if any(mask)]
        quads = [
            (patterns.index(pattern), at, masks.index(mask) if any(mask) else None)
            for (pattern, at), mask in zip(tap_offsets, cut, strict=True)
        ]
        return {
            "PATCH_ROWS": self.rows,
            "PITCH": self.pitch,
            "HALVES": self.halves,
            "COPIES": self.copies,
            "UNIT": self.unit,
            "UNITS": self.units,
            "SKIPPED": self.skipped,
            "LEAD": self.lead,
            "patterns": patterns,
            "masks": [["0xffffu" if half else "0xffffffffu" for half in mask] for mask in masks],
            "quads": quads,
        }
