"""Tiles of cuda/separable: patches of pixels, and the parameters of their multiplication."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

from litegpu.codegen import round_up
from litegpu.codegen.storage import Shape4
from litegpu.device_model import DeviceModel
from litegpu.kernels.cuda.packing import CHUNKS
from litegpu.kernels.cuda.tiles import Region, Tile, TileTarget, consecutive
from litegpu.ops.common.conv_spec import pixels_of
from litegpu.ops.common.window import LOADS_AT_ONCE, Pair, Window, readers

ITEM = (2, 4)
"""Lines x pixels of the depthwise convolution that a thread computes at a time."""
CHANNELS = 32
"""Number of channels per k-tile."""
SUMS = 16 * 40
"""Number of shared floats per warp for its sums: 16 rows, 40 floats apart."""
_MAX_SUMS = 64
"""Maximum number of sums per thread, in registers."""
REGISTERS = 128
"""Maximum number of registers per thread."""

# Clocks of a multiprocessor, fitted to 23 kernels on an H200 (5 layers, mean error 5 %). Sums have
# become cheaper since then.
_INSTRUCTION_CLOCKS = 1.9 / 128
_LOAD_CLOCKS = 1740
"""Latency in clocks of a thread's loads in flight."""
_STEP_CLOCKS = 325
"""Latency in clocks of warp groups: a tile of weights, and synchronization."""
_BLOCK_CLOCKS = 230
_SUM_INSTRUCTIONS = 25
"""Number of instructions per 4 sums, from shared memory to memory."""
_MANY_ROUNDS = 4


@dataclass(frozen=True, slots=True)
class SeparableProblem:
    """The properties that determine the tiles: an image, the result, and the window in between."""

    image: Shape4
    stored: str
    middle: Shape4
    """The shape of the depthwise convolution's result."""
    outputs: int
    window: Window


@dataclass(frozen=True, slots=True)
class SeparableTile(Tile):
    """A block that computes `patch` lines x pixels, `columns` outputs at a time."""

    problem: SeparableProblem
    patch: Pair
    columns: int
    warps: int
    depth: int
    """Number of k-tiles that the block multiplies in one step."""
    prefetch: int
    """Number of steps whose weights are in flight while the block multiplies one step."""
    item: ClassVar[Pair] = ITEM
    loads_at_once: ClassVar[int] = LOADS_AT_ONCE

    @property
    def threads(self) -> int:
        return self.warps * 32

    @property
    def pixels(self) -> int:
        return math.prod(self.patch)

    @property
    def tiles(self) -> Pair:
        """Return the number of patches vertically and horizontally."""
        return tiles_of(self.patch, self.problem.middle)

    @property
    def blocks(self) -> tuple[int, int]:
        return 1, math.prod(self.tiles)

    @property
    def column_blocks(self) -> int:
        """Return the number of passes in which a block multiplies its patch."""
        return -(-self.problem.outputs // self.columns)

    @property
    def k_tiles(self) -> int:
        return -(-self.problem.middle[3] // CHANNELS)

    @property
    def steps(self) -> int:
        return self.k_tiles // self.depth * self.column_blocks

    @property
    def stages(self) -> int:
        """Number of steps whose weights are in shared memory.

        The block refills a stage one step later, since the previous multiplication may still read
        it.
        """
        return min(self.prefetch + 2, self.steps)

    @property
    def regions(self) -> tuple[Region, ...]:
        """Return the regions: the patch, the weights, the sums being stored, and the bias."""
        return consecutive(
            ("patch", "uint4", self.k_tiles * self.pixels * CHUNKS),
            ("weights", "uint4", self.stages * self.depth * self.columns * CHUNKS),
            ("sums", "float", self.warps * SUMS),
            ("bias", "float", self.column_blocks * self.columns),
        )

    def room(self, model: DeviceModel) -> int:
        """Return the number of blocks for which a multiprocessor has memory and registers."""
        return model.resident_blocks(self.threads, REGISTERS, self.shared_bytes)

    def min_blocks(self, target: TileTarget) -> int:
        return self.room(target.model)

    def fits(self, target: TileTarget) -> bool:
        return super(SeparableTile, self).fits(target) and self.min_blocks(target) > 0

    def clocks(self, target: TileTarget) -> float:
        """Estimate the clocks: the multiprocessor's busy time, and the latency of its blocks."""
        middle, window = self.problem.middle, self.problem.window
        resident = self.min_blocks(target)
        rounds = self.blocks[1] / (target.compute_units * resident)
        items = self.pixels // math.prod(ITEM) * -(-middle[3] // 4)
        loads = loads_of(window)
        columns = self.column_blocks * self.columns
        busy = items * _item_instructions(window) + self.pixels * columns / 4 * _SUM_INSTRUCTIONS
        waits = -(-items // self.threads) * -(-loads // LOADS_AT_ONCE) * _LOAD_CLOCKS
        waits += self.steps * _STEP_CLOCKS
        each = resident * busy * _INSTRUCTION_CLOCKS + waits + _BLOCK_CLOCKS
        # Many rounds of blocks overlap; if there are few, the last takes as long as a full one.
        return (rounds if rounds > _MANY_ROUNDS else math.ceil(rounds)) * each


def loads_of(window: Window, item: Pair = ITEM) -> int:
    """Return the number of loads of a thread per item."""
    return math.prod(len(readers(window, axis, item[axis])) for axis in (0, 1))


def _item_instructions(window: Window) -> int:
    """Return the number of instructions of a thread per item."""
    return 4 * math.prod((*ITEM, *window.kernel)) + 9 * loads_of(window) + 150


def tiles_of(patch: Pair, middle: Shape4, of_item: int = ITEM[0]) -> Pair:
    """Return the number of patches vertically and horizontally; `of_item` is the lines per item."""
    n, height, width, _ = middle
    lines = n * round_up(height, of_item)
    return -(-lines // patch[0]), -(-width // patch[1])


def wasted_pixels(patch: Pair, middle: Shape4) -> int:
    """Return the number of pixels of all patches outside the images."""
    return math.prod(tiles_of(patch, middle)) * math.prod(patch) - pixels_of(middle)


def patches(pixels: int) -> list[Pair]:
    """Return the (height, width) of all possible patches with `pixels` pixels."""
    return [(pixels // width, width) for width in (8, 16, 32, 64)]


def candidates(problem: SeparableProblem, model: DeviceModel) -> Iterator[SeparableTile]:
    """Yield the tiles for a problem, small blocks first."""
    middle, outputs = problem.middle, problem.outputs
    for pixels, warps in ((128, 4), (128, 8), (256, 8)):
        # The smaller the border of a patch, the fewer pixels are read twice.
        best = min(patches(pixels), key=lambda patch: (wasted_pixels(patch, middle), sum(patch)))
        for columns in (128, 64, 32):
            few = pixels * columns <= 32 * warps * _MAX_SUMS
            if few and columns < max(2 * outputs, 33):
                yield _with_room(SeparableTile(problem, best, columns, warps, 1, 3), model)


def _with_room(tile: SeparableTile, model: DeviceModel) -> SeparableTile:
    """Return a tile with the most weights in flight for which the resident blocks leave memory."""
    depth = 1 if tile.k_tiles % 2 else 2
    found = [replace(tile, depth=depth, prefetch=prefetch) for prefetch in (3, 2, 1)]
    return max(found, key=lambda each: each.room(model))
