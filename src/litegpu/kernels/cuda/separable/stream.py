"""Tiles of cuda/separable_stream: blocks that stay and make one patch after the other."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from litegpu.codegen import round_up
from litegpu.device_model import DeviceModel
from litegpu.kernels.cuda.separable.tile import (
    CHANNELS,
    ITEM,
    REGISTERS,
    SUM_INSTRUCTIONS,
    SUMS_BYTES,
    SeparableProblem,
    item_instructions,
    loads_of,
    tiles_of,
)
from litegpu.kernels.cuda.tiles import Tile, TileTarget
from litegpu.ops.window import LOADS_AT_ONCE, Pair

GROUP_ROWS = 64
"""Pixels that four warps multiply together."""
AHEAD = 2
"""Turns that a block's patches are asked for before they are made."""
_FEWEST_TURNS = 3
"""Patches of a block that pay for its beginning, in which there is nothing to overlap."""
_MOST_RING = 6
_WARPS = ((12, 4), (8, 8), (4, 4))
"""Warps that make, and that multiply."""

# Clocks by the hardware's rates, where others fill most gaps; not measured yet.
_ISSUE_CLOCKS = 0.35
"""Of a multiprocessor, for an instruction of a warp."""
_LOAD_CLOCKS = 1000
"""What a warp waits for the loads that are on their way at once."""
_OWN_CLOCKS = 1.3
"""Of a warp, for an instruction while others have nothing to do."""
_START_CLOCKS = 4000
_MEMORY_BYTES = 18.0
"""Bytes per clock from and to memory, of a multiprocessor that always has some on their way."""


@dataclass(frozen=True, slots=True)
class StreamTile(Tile):
    """A block makes patches of `patch` lines x pixels, `columns` outputs at a time."""

    problem: SeparableProblem
    patch: Pair
    columns: int
    makers: int
    """Warps that compute depthwise convolutions."""
    multipliers: int
    """Warps that multiply and store."""
    ring: int
    """Patches that are in shared memory at a time."""
    units: int
    """Multiprocessors of the device."""
    resident: int = 1
    """Blocks that share a multiprocessor."""
    ahead: int = AHEAD
    """Turns that patches are asked for before they are made; 0: they are not."""

    @property
    def threads(self) -> int:
        return 32 * (self.makers + self.multipliers)

    @property
    def pixels(self) -> int:
        return math.prod(self.patch)

    @property
    def rows(self) -> int:
        """Return the rows of a patch that are multiplied."""
        return round_up(self.pixels, GROUP_ROWS)

    @property
    def tiles(self) -> Pair:
        """Return how many patches lie below each other, and side by side."""
        return tiles_of(self.patch, self.problem.middle)

    @property
    def turns(self) -> int:
        """Return the most patches that a block makes."""
        return -(-math.prod(self.tiles) // (self.units * self.resident))

    @property
    def blocks(self) -> tuple[int, int]:
        return 1, -(-math.prod(self.tiles) // self.turns)

    @property
    def column_blocks(self) -> int:
        return -(-self.problem.outputs // self.columns)

    @property
    def k_tiles(self) -> int:
        return -(-self.problem.middle[3] // CHANNELS)

    @property
    def shared_bytes(self) -> int:
        """Bytes for patches, weights, sums on their way, bias, gates and makers' words."""
        columns = self.column_blocks * self.columns
        tiles = self.k_tiles * (self.ring * self.rows + columns) * CHANNELS * 2
        words = self.ring * (16 + 4 * self.makers)
        return tiles + 32 * self.multipliers * SUMS_BYTES + 4 * columns + round_up(words, 16)

    def min_blocks(self, model: DeviceModel) -> int:
        return self.resident

    def fits(self, target: TileTarget) -> bool:
        room = target.model.resident_blocks(self.threads, REGISTERS, self.shared_bytes)
        groups = self.multipliers // 4
        even = self.rows // GROUP_ROWS * self.column_blocks % groups == 0
        pays = self.turns >= _FEWEST_TURNS and even
        return super(StreamTile, self).fits(target) and room >= self.resident and pays

    def clocks(self, target: TileTarget) -> float:
        """Estimate the clocks of a multiprocessor: whichever phase of a patch takes longest."""
        middle, window = self.problem.middle, self.problem.window
        chunks = -(-self.pixels // math.prod(ITEM) * self.k_tiles * CHANNELS // 4 // 32)
        of_chunk = item_instructions(window)
        sums = self.pixels * self.column_blocks * self.columns / 4 / 32 * SUM_INSTRUCTIONS
        issued = self.resident * (chunks * of_chunk + sums) * _ISSUE_CLOCKS
        waits = -(-loads_of(window) // LOADS_AT_ONCE) * _LOAD_CLOCKS
        made = chunks / self.makers * (waits + of_chunk * _OWN_CLOCKS)
        multiplied = sums / self.multipliers * _OWN_CLOCKS * 2
        moved = self.pixels * 2 * (math.prod(window.stride) * middle[3] + self.problem.outputs)
        copied = self.resident * moved / _MEMORY_BYTES
        return self.turns * max(issued, made, multiplied, copied) + _START_CLOCKS


def streams(problem: SeparableProblem, model: DeviceModel, units: int) -> Iterator[StreamTile]:
    """Yield the tiles for a problem on a device of so many multiprocessors."""
    for rows in (128, 64):
        patch = min(_patches(rows), key=lambda each: _cost(each, problem))
        for makers, multipliers in _WARPS:
            columns = 32 if problem.outputs <= 32 else 64
            tile = StreamTile(problem, patch, columns, makers, multipliers, 2, units)
            for resident in range(REGISTERS * 4 // tile.threads, 0, -1):
                rings = (replace(tile, ring=r, resident=resident) for r in range(_MOST_RING, 1, -1))
                room = [each for each in rings if _has_room(each, model)]
                if room:
                    yield room[0]
                    break


def _has_room(tile: StreamTile, model: DeviceModel) -> bool:
    return model.resident_blocks(tile.threads, REGISTERS, tile.shared_bytes) >= tile.resident


def _patches(rows: int) -> Iterator[Pair]:
    """Yield the lines x pixels of patches that fill most of so many rows."""
    for width in range(8, rows // ITEM[0] + 1, ITEM[1]):
        yield rows // width // ITEM[0] * ITEM[0], width


def _cost(patch: Pair, problem: SeparableProblem) -> tuple[int, int, int]:
    """Return what patches are ranked by: how many, what is made, and what is read twice."""
    count = math.prod(tiles_of(patch, problem.middle))
    return count, count * math.prod(patch), sum(patch)
