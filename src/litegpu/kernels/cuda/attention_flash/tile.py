"""Tiles of cuda/attention_flash: warps per block, and keys per turn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from litegpu.kernels.cuda.tiles import Region, Tile, TileTarget, consecutive

_LANES = 32
_ROWS = 16
"""Queries of a warp: the rows of a matrix instruction."""
_PRODUCT_CLOCKS = 13.0
"""Between two matrix instructions of a scheduler, at the rate that single warps reach."""
_SCORE_CLOCKS = 3.0
"""For the softmax of a score of a lane."""
_TURN_CLOCKS = 1200.0
"""Latency of a turn of a block: the loads of keys and values, and two barriers."""


@dataclass(frozen=True, slots=True)
class FlashProblem:
    """What determines the tiles; depths and widths are in groups of 16 channels."""

    products: int
    rows: int
    keys: int
    depths: int
    widths: int


@dataclass(frozen=True, slots=True)
class FlashTile(Tile):
    """A block whose `warps` have 16 queries each; they share `turn` keys and values at a time."""

    problem: FlashProblem
    warps: int
    turn: int

    @property
    def tiles(self) -> int:
        """Blocks of a product."""
        return -(-self.problem.rows // (_ROWS * self.warps))

    @property
    def threads(self) -> int:
        return _LANES * self.warps

    @property
    def blocks(self) -> tuple[int, int]:
        return 1, self.tiles * self.problem.products

    @property
    def pitches(self) -> tuple[int, int]:
        """16-byte words from a key or a value to the next: odd, so that banks differ."""
        return 2 * self.problem.depths + 1, 2 * self.problem.widths + 1

    @property
    def regions(self) -> tuple[Region, ...]:
        """Return the regions of keys and values of a turn, as halves."""
        key_pitch, value_pitch = self.pitches
        return consecutive(
            ("keys", "uint4", self.turn * key_pitch), ("values", "uint4", self.turn * value_pitch)
        )

    @property
    def registers(self) -> int:
        """Estimate the registers per thread: queries, scores twice, sums, and addresses."""
        problem = self.problem
        return min(4 * problem.depths + 8 * problem.widths + self.turn + 56, 255)

    def clocks(self, target: TileTarget) -> float:
        """Estimate the clocks: products and softmax of the warps of a scheduler, or latency."""
        problem = self.problem
        groups = self.turn // 16
        products = 2 * groups * (problem.depths + problem.widths)
        busy = products * _PRODUCT_CLOCKS + 8 * groups * _SCORE_CLOCKS
        per_unit = -(-self.blocks[1] // target.compute_units)
        room = max(target.model.resident_blocks(self.threads, self.registers, self.shared_bytes), 1)
        at_once = min(per_unit, room)
        turns = -(-problem.keys // self.turn)
        warps = -(-self.warps * at_once // 4)
        return -(-per_unit // at_once) * turns * max(warps * busy, busy + _TURN_CLOCKS)


def candidates(problem: FlashProblem) -> Iterator[FlashTile]:
    """Yield the tiles for a problem: fewer keys at a time where heads are deep."""
    deep = max(problem.depths, problem.widths) > 4
    for warps in (4, 8):
        for turn in (32,) if deep else (64, 32):
            yield FlashTile(problem, warps, turn)
