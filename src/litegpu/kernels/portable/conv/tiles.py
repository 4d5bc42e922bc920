"""Tiles that the items of a work group compute together, and their estimated times."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from litegpu.ops.base import Target
from litegpu.ops.common.portable_tiles import TileProblem

STEP = 4
"""Number of channel blocks of the input that a work group loads at a time."""
_PADDING = 2
"""Padding per row in shared memory, so that stores of adjacent items use different banks."""
_VECTOR_BYTES = 16
_LANES = 128
"""Number of lanes of a compute unit that multiply per clock."""
_WARP = 32
_FIXED_CLOCKS = 4600.0
"""Clocks of a launch in addition to its steps."""
_STEP_CLOCKS = 740.0
"""Latency in clocks of the loads of a step, including both barriers."""
_SHARED_CLOCKS = 2.1
"""Clocks per vector that a warp loads from shared memory."""
_LOAD_CLOCKS = 9.3
"""Clocks per vector that a warp loads from memory and stores to shared memory."""
_SERIAL = 1.37
"""Clocks per instruction of a warp that does not share its part of a compute unit with other warps.
"""
_DIRECT_OVERHEAD = 6.0
"""Ratio of a step's clocks to those of its products, if items load their operands directly."""
_DIRECT_CLOCKS = 440.0
"""Latency in clocks of the loads of one term, if items load their operands directly."""

_SIZES = ((8, 2), (4, 2), (4, 1), (2, 1))
_GRIDS = ((16, 16), (16, 8), (8, 8), (8, 4))
_SLICES = (1, 2, 4, 8)
_MAX_ITEMS = 256


@dataclass(frozen=True, slots=True)
class Tile:
    """The division of a tile of pixels, channel blocks and sums among the items of a work group."""

    pixels: int
    """Number of pixels per item."""
    channel_blocks: int
    """Number of channel blocks per item."""
    row_items: int
    column_items: int
    slices: int = 1
    """Number of parts of each sum."""

    @property
    def items(self) -> int:
        """The number of work items in a group."""
        return self.row_items * self.column_items * self.slices

    @property
    def rows(self) -> int:
        """The number of pixels per group."""
        return self.row_items * self.pixels

    @property
    def columns(self) -> int:
        """The number of channel blocks per group."""
        return self.column_items * self.channel_blocks

    @property
    def pixel_pitch(self) -> int:
        """Distance between the pixels of two input blocks in shared memory, in vectors."""
        return self.rows + _PADDING

    @property
    def weight_pitch(self) -> int:
        """Distance between the weights of two inputs in shared memory, in vectors."""
        return self.columns + _PADDING

    @property
    def shared_vectors(self) -> tuple[int, int]:
        """The sizes of the shared-memory arrays of pixels and weights, in vectors."""
        sums = self.items * self.channel_blocks if self.slices > 1 else 0
        pixels = STEP * self.pixel_pitch * self.slices
        return max(pixels, sums), STEP * 4 * self.weight_pitch * self.slices

    @property
    def shared_bytes(self) -> int:
        """The shared memory of a group in bytes."""
        return sum(self.shared_vectors) * _VECTOR_BYTES

    def groups(self, problem: TileProblem) -> int:
        """Return the number of work groups."""
        return -(-problem.rows // self.rows) * -(-problem.channel_blocks // self.columns)

    def clocks(self, problem: TileProblem, compute_units: int) -> float:
        """Return the estimated clocks of the busiest compute unit.

        The constants of the estimate were fitted to 370 launches on an H100.
        """
        height, width, blocks = problem.terms
        items = self.row_items * self.column_items
        steps = -(-height * width * blocks // (STEP * self.slices))
        products = self.pixels * self.channel_blocks * 16 * STEP
        shared = (self.pixels + 4 * self.channel_blocks) * STEP
        loads = (self.rows + 4 * self.columns) * STEP / items
        work = products * _WARP / _LANES + shared * _SHARED_CLOCKS + loads * _LOAD_CLOCKS
        warps = -(-self.groups(problem) // compute_units) * self.items / _WARP
        alone = (products + shared + loads) * _SERIAL + _STEP_CLOCKS
        return _FIXED_CLOCKS + steps * max(warps * work, alone)


def tiles(problem: TileProblem, target: Target) -> Iterator[Tile]:
    """Yield the tiles that fit a device."""
    for pixels, channel_blocks in _SIZES:
        for row_items, column_items in _GRIDS:
            for slices in _SLICES:
                tile = Tile(pixels, channel_blocks, row_items, column_items, slices)
                most = min(target.max_work_group_size, _MAX_ITEMS)
                fits = tile.items <= most and tile.shared_bytes <= target.local_memory_bytes
                divides = tile.rows * STEP % (row_items * column_items) == 0
                whole = problem.group_blocks % tile.columns == 0 if problem.group_blocks else True
                if fits and divides and whole:
                    yield tile


def direct_clocks(problem: TileProblem, compute_units: int) -> float:
    """Return the estimated clocks if each item loads its operands directly."""
    height, width, blocks = problem.terms
    terms = height * width * blocks
    outputs = problem.rows * problem.channel_blocks
    products = outputs * terms * 16 / (compute_units * _LANES)
    return _FIXED_CLOCKS + max(products * _DIRECT_OVERHEAD, terms * _DIRECT_CLOCKS)
