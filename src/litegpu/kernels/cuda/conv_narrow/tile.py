"""What a block of cuda/conv_narrow makes: its part of the image in shared memory, its weights."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from litegpu.codegen import round_up
from litegpu.kernels.cuda.split_conv import SplitProblem
from litegpu.ops.window import Pair

WIDE = 16
"""Pixels of a row that a matrix instruction takes."""
COLUMNS = 16
"""Channels of two matrix instructions: four of them lie in each lane of a pixel."""
_LANES = 4
"""Lanes that hold the inputs of a pixel, two each, in one half of a step."""
_HELD_REGISTERS = 80
"""Registers of a thread that weights may take up; more of them lie in shared memory."""
_OTHER_REGISTERS = 32
"""Registers of a thread beside sums and weights."""
_MOST_REGISTERS = 128
_BANKS = 32
"""Words of shared memory that lie side by side in banks of their own."""
_MOST_SUMS = 64
"""Sums of a thread, in registers."""


Groups = tuple[tuple[Pair, ...], ...]
"""Groups of 4 pairs of values of a window, each (row, pair of its run)."""


@lru_cache(maxsize=64)
def _groups(rows: int, pairs: int) -> Groups:
    """Return groups that hold each of `pairs` pairs of each row.

    The pairs of a group lie side by side, or where runs end below each other. What fills a group up
    repeats a pair; so does what fills up a step, which takes two groups.
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
class Problem(SplitProblem):
    """A convolution whose windows are runs of values; `channels` include the image's padding."""

    stored: str
    whole: bool
    """Whether rows of the image consist of whole groups of 4 values, at multiples of 4."""

    @property
    def run(self) -> int:
        """Values of one row of a window."""
        return self.view.kernel[1] * self.channels

    @property
    def step(self) -> int:
        """Values from one window to the next one in a row."""
        return self.view.stride[1] * self.channels

    @property
    def groups(self) -> Groups:
        """Return what the k axis consists of."""
        return _groups(self.view.kernel[0], -(-self.run // 2))

    def places(self, pitch: int) -> list[tuple[tuple[int, ...], int]]:
        """Return for each group how far its pairs lie from its first, and where that lies.

        Rows of the image lie `pitch` halves apart.
        """
        line = self.view.dilation[0] * pitch
        places = [[y * line + 2 * x for y, x in group] for group in self.groups]
        return [(tuple(at - place[0] for at in place), place[0]) for place in places]

    @property
    def steps(self) -> int:
        return len(self.groups) // 2

    @property
    def parts(self) -> int:
        """Halves that a weight is split into."""
        return 1 + self.split_weights

    @property
    def pairs(self) -> int:
        """Pairs of 8 columns that hold all output channels."""
        return -(-self.outputs // COLUMNS)


@lru_cache(maxsize=64)
def _pitch(problem: Problem, least: int, unit: int) -> int:
    """Return a pitch with which most lanes read from banks of their own."""

    def conflicts(pitch: int) -> int:
        total = 0
        for pattern in {pattern for pattern, _ in problem.places(pitch)}:
            starts = range(0, 8 * problem.step, problem.step)
            words = {(start + offset) // 2 for start in starts for offset in pattern}
            banks = [word % _BANKS for word in words]
            total += max(map(banks.count, banks))
        return total

    return min(range(least, least + 2 * _BANKS, unit), key=conflicts)


@dataclass(frozen=True, slots=True)
class Patch:
    """How the rows of the image that a tile needs lie in shared memory.

    The k axis is read in pairs of halves. Where windows begin at odd places, a second copy lies
    one half further.
    """

    problem: Problem
    rows: int
    width: int
    """Values of a row, from the first window's begin to the last one's end."""

    @property
    def unit(self) -> int:
        """Values that a thread reads and stores together: by one load, or each by itself."""
        return 4 if self.problem.whole else 2

    @property
    def skipped(self) -> int:
        """Values before the first window, so that loads begin where they may."""
        before = self.problem.view.pads[1] * self.problem.channels
        return -before % 4 if self.problem.whole else 0

    @property
    def lead(self) -> int:
        """Halves left free, so that windows begin at even places."""
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
    def units_of_16(self) -> int:
        """Return the shared memory that it takes up, in units of 16 bytes."""
        parts = self.copies * (1 + self.problem.split_values)
        return -(-2 * self.halves * parts // 16)

    def words(self) -> dict[str, Any]:
        """Return what the template needs to know."""
        places = self.problem.places(self.pitch)
        patterns = list(dict.fromkeys(pattern for pattern, _ in places))
        last = self.problem.run // 2
        # Half of a pair belongs to the next pixel where a run is odd.
        odd = self.problem.run % 2 > 0
        cut = [tuple(odd and x == last for _, x in group) for group in self.problem.groups]
        masks = [mask for mask in dict.fromkeys(cut) if any(mask)]
        groups = [
            (patterns.index(pattern), at, masks.index(mask) if any(mask) else None)
            for (pattern, at), mask in zip(places, cut, strict=True)
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
            "groups": groups,
        }


@dataclass(frozen=True, slots=True)
class Tile:
    """A block makes `rows` rows of `across` * 16 pixels with `warps_m` x `warps_n` warps.

    Each warp makes 16 pixels of `pairs` * 16 channels, several times.
    """

    rows: int
    across: int
    warps_m: int
    warps_n: int
    pairs: int

    @property
    def threads(self) -> int:
        return 32 * self.warps_m * self.warps_n

    @property
    def turns(self) -> int:
        """Return how often a warp makes its pixels."""
        return -(-self.rows * self.across // self.warps_m)

    def patch(self, problem: Problem) -> Patch:
        """Return what a block keeps of the image."""
        view = problem.view
        rows = (self.rows - 1) * view.stride[0] + (view.kernel[0] - 1) * view.dilation[0] + 1
        return Patch(problem, rows, (self.across * WIDE - 1) * problem.step + problem.run)

    def blocks(self, problem: Problem) -> tuple[int, int, int]:
        """Return how many tiles lie below each other, side by side, and behind each other."""
        height, width = problem.output
        columns = -(-problem.pairs // (self.warps_n * self.pairs))
        return -(-height // self.rows), -(-width // (self.across * WIDE)), columns

    def held(self, problem: Problem) -> bool:
        """Whether each thread keeps its weights in registers."""
        return problem.steps * problem.parts * self.pairs * 4 <= _HELD_REGISTERS

    def sums(self, problem: Problem) -> int:
        """Return the sums of a thread for 16 pixels: those of the rests are kept apart."""
        return self.pairs * 8 * (1 + (problem.products > 1))

    def together(self, problem: Problem) -> int:
        """Return for how many rows of 16 pixels weights are read from shared memory once."""
        most = max(1, min(_MOST_SUMS // self.sums(problem), self.turns))
        return 1 if self.held(problem) else most

    def registers(self, problem: Problem) -> int:
        """Return the registers of a thread."""
        steps = problem.steps if self.held(problem) else 2
        weights = steps * problem.parts * self.pairs * 4
        sums = self.sums(problem) * self.together(problem)
        return min(round_up(weights + sums + _OTHER_REGISTERS, 8), _MOST_REGISTERS)

    def weight_units(self, problem: Problem) -> int:
        """Return the units of 16 bytes of shared memory for weights."""
        whole = problem.steps * problem.parts * self.warps_n * self.pairs * 32
        return 0 if self.held(problem) else whole

    def units(self, problem: Problem) -> int:
        """Return all the shared memory of a block, in units of 16 bytes."""
        return self.patch(problem).units_of_16 + self.weight_units(problem)
