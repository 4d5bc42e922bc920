"""The problem of cuda/conv_narrow, and the patch of the image that a block stores on the chip."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from litegpu.codegen import round_up
from litegpu.graph import DType
from litegpu.kernels.cuda.conv import SplitProblem
from litegpu.ops.common.window import Pair

WIDE = 16
"""Number of pixels of a row per matrix instruction."""
COLUMNS = 16
"""Number of channels of two matrix instructions: four per lane of a pixel."""
_LANES = 4
"""Number of lanes that hold the inputs of a pixel, two each, in one half of a step."""
_BANKS = 32
"""Number of consecutive words of shared memory in distinct banks."""
BYTES_OF_PIXEL = 4
"""Bytes per pixel in shared memory for any channel count: one word, stored like two halves."""


Quads = tuple[tuple[Pair, ...], ...]
"""Groups of 4 pairs of values of a window, called quads; a pair is given as (row, pair in the row).
"""


@lru_cache(maxsize=64)
def _quads(rows: int, pairs: int) -> Quads:
    """Return quads that cover all `pairs` pairs of each row.

    The pairs of a quad are adjacent, or at the ends of consecutive rows. Padding repeats a pair,
    and makes the number of quads even, since a step needs two quads.
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
    """A convolution whose windows are contiguous values; `channels` includes the image's padding.

    Two bytes count as one value; a pixel of bytes counts as two values for any channel count.
    """

    stored: str
    whole: bool
    """Whether rows consist of aligned groups of 4 values (for bytes: of 4 pixels)."""

    @property
    def of_bytes(self) -> bool:
        return DType(self.stored).size == 1

    @property
    def run(self) -> int:
        """Number of values in one row of a window."""
        return self.view.kernel[1] * self.channels

    @property
    def step(self) -> int:
        """Distance in values from one window to the next in a row."""
        return self.view.stride[1] * self.channels

    @property
    def quads(self) -> Quads:
        """Return the inputs along the k axis as quads."""
        return _quads(self.view.kernel[0], -(-self.run // 2))

    def tap_offsets(self, pitch: int) -> list[tuple[tuple[int, ...], int]]:
        """Return the offsets of each quad's pairs from the first pair, and that pair's offset.

        `pitch` is the distance of image rows in halves.
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
        """Number of halves that each weight is split into."""
        return 1 + self.split_weights

    @property
    def pairs(self) -> int:
        """Number of pairs of 8 columns that contain all output channels."""
        return -(-self.outputs // COLUMNS)


@lru_cache(maxsize=64)
def _pitch(problem: NarrowProblem, least: int, unit: int) -> int:
    """Return a pitch with few bank conflicts."""

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
    """The layout of a tile's image rows in shared memory.

    The kernel reads the k axis of a patch in pairs of halves. If windows start at odd offsets, the
    patch has a second copy, shifted by one half.
    """

    problem: NarrowProblem
    rows: int
    width: int
    """Number of values in a row, from the first window's start to the last window's end."""

    @property
    def unit(self) -> int:
        """Number of values that a thread loads and stores together: whole words, or 1."""
        if not self.problem.whole:
            return 2
        return 2 * BYTES_OF_PIXEL if self.problem.of_bytes else 4

    @property
    def skipped(self) -> int:
        """Number of values before the first window, which make loads aligned."""
        before = self.problem.view.pads[1] * self.problem.channels
        return -before % self.unit if self.problem.whole else 0

    @property
    def lead(self) -> int:
        """Number of unused halves at the start, which make windows start at even offsets."""
        return self.skipped % 2

    @property
    def units(self) -> int:
        return -(-(self.skipped + self.width) // self.unit)

    @property
    def copies(self) -> int:
        return 1 + self.problem.step % 2

    @property
    def pitch(self) -> int:
        """Distance between rows in halves."""
        least = round_up(self.lead + self.units * self.unit + 1, self.unit)
        return _pitch(self.problem, least, self.unit)

    @property
    def halves(self) -> int:
        """Number of halves in one copy of one part."""
        return self.rows * self.pitch

    @property
    def all_halves(self) -> int:
        """Number of halves in all copies and parts."""
        return self.halves * self.copies * (1 + self.problem.split_values)

    def words(self) -> dict[str, Any]:
        """Return the template variables of the patch."""
        tap_offsets = self.problem.tap_offsets(self.pitch)
        patterns = list(dict.fromkeys(pattern for pattern, _ in tap_offsets))
        last = self.problem.run // 2
        # In a run of odd length, half of the last pair belongs to the next pixel.
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
