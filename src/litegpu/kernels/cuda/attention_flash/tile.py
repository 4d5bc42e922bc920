"""Tiles of cuda/attention_flash: warps per block, and keys per iteration."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from litegpu.kernels.cuda.tiles import Region, Tile, TileTarget, consecutive

_LANES = 32
_ROWS = 16
"""Queries per warp: the number of rows of a matrix instruction."""
_MAX_REGISTERS = 232
"""Maximum number of estimated registers per thread; with more registers, the compiler spills."""
_NARROW = 4
"""Maximum channel groups of a key and its value for which 2 warps load enough data at a time."""
_MIN_BUSY = 4
"""Minimum multiprocessors per block for which dividing the keys among more warps is faster."""

# Clocks, fitted to the times of 14 layers of 49 to 4096 keys on an H100: benchmarks/attention.py.
_TURN_CLOCKS = 60.0
"""Clocks of one iteration of a warp, for 16 keys and 16 channels of a key or a value."""
_WAIT_CLOCKS = 400.0
"""Latency in clocks of an iteration that no other warp hides."""
_BEGIN_CLOCKS = 2300.0
"""Latency in clocks of the first queries, keys and values, and of the results."""
_JOIN_CLOCKS = 800.0
"""Clocks per sum that a block adds over groups that divide the keys."""


@dataclass(frozen=True, slots=True)
class FlashProblem:
    """The sizes that determine the tiles; depths and widths are in groups of 16 channels."""

    products: int
    rows: int
    keys: int
    depths: int
    widths: int


@dataclass(frozen=True, slots=True)
class FlashTile(Tile):
    """A block of `warps` warps with 16 queries each; the warps share `turn` keys per iteration.

    `split` groups of warps divide the keys of the same queries.
    """

    problem: FlashProblem
    warps: int
    turn: int
    split: int = 1

    @property
    def tiles(self) -> int:
        """The number of thread blocks per attention product."""
        return -(-self.problem.rows // (_ROWS * self.warps))

    @property
    def threads(self) -> int:
        return _LANES * self.warps * self.split

    @property
    def blocks(self) -> tuple[int, int]:
        return 1, self.tiles * self.problem.products

    @property
    def pitches(self) -> tuple[int, int]:
        """Distance of keys, and of values, in 16-byte words: odd, to avoid bank conflicts."""
        return 2 * self.problem.depths + 1, 2 * self.problem.widths + 1

    @property
    def sum_pitch(self) -> int:
        """Distance between the sums of two queries, in blocks of 4 sums."""
        return 4 * self.problem.widths + 1

    @property
    def regions(self) -> tuple[Region, ...]:
        """Return the regions of keys and values of an iteration, and of the sums at the end."""
        key_pitch, value_pitch = self.pitches
        step, rows = self.turn * self.split, self.split * self.warps * _ROWS
        turn = consecutive(
            ("keys", "uint4", step * key_pitch), ("values", "uint4", step * value_pitch)
        )
        if self.split == 1:
            return turn
        sums = consecutive(
            ("sums", "float4", rows * self.sum_pitch),
            ("maxima", "float", rows),
            ("totals", "float", rows),
        )
        return (*turn, *sums)

    @property
    def ahead(self) -> int:
        """Blocks of 4 channels of keys and values that a thread prefetches per iteration."""
        problem = self.problem
        return -(-self.turn * 4 * (problem.depths + problem.widths) // (_LANES * self.warps))

    @property
    def registers(self) -> int:
        """Estimate the registers per thread: loads, queries, scores twice, sums and addresses."""
        problem = self.problem
        values = 4 * problem.depths + 8 * problem.widths + self.turn
        return 4 * self.ahead + values + 48

    def clocks(self, target: TileTarget) -> float:
        """Estimate the clocks: the busy time of the warps of a scheduler, or their latency."""
        problem = self.problem
        per_unit = -(-self.blocks[1] // target.compute_units)
        room = target.model.resident_blocks(self.threads, self.registers, self.shared_bytes)
        at_once = max(min(per_unit, room), 1)
        warps = -(-self.warps * self.split // 4) * at_once
        busy = _TURN_CLOCKS * self.turn / 16 * (problem.depths + problem.widths)
        turn = max(warps * busy, busy + _WAIT_CLOCKS)
        turns = -(-problem.keys // (self.turn * self.split))
        once = _BEGIN_CLOCKS + (_JOIN_CLOCKS if self.split > 1 else 0.0)
        return -(-per_unit // at_once) * (once + turns * turn)


def candidates(problem: FlashProblem) -> Iterator[FlashTile]:
    """Yield the tiles that suit a problem and whose threads have enough registers."""
    narrow = problem.depths + problem.widths <= _NARROW
    for warps, split in ((4, 1), (8, 1), (4, 2), *([(2, 4)] if narrow else [])):
        for turn in (64, 32):
            tile = FlashTile(problem, warps, turn, split)
            if tile.registers <= _MAX_REGISTERS and problem.keys > turn * (split - 1):
                yield tile


def is_busy(problem: FlashProblem, compute_units: int) -> bool:
    """Whether a problem has enough queries for blocks of 4 warps to keep the device busy."""
    return FlashTile(problem, 4, 64).blocks[1] * _MIN_BUSY >= compute_units
