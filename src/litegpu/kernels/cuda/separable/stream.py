"""Tiles of cuda/separable_stream: persistent blocks, which compute one patch after another."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from litegpu.codegen import round_up
from litegpu.device_model import DeviceModel
from litegpu.kernels.cuda.packing import CHUNKS
from litegpu.kernels.cuda.separable.tile import (
    CHANNELS,
    ITEM,
    REGISTERS,
    SUMS,
    SeparableProblem,
    loads_of,
    tiles_of,
)
from litegpu.kernels.cuda.tiles import Region, Tile, TileTarget, consecutive
from litegpu.ops.common.conv_spec import pixels_of
from litegpu.ops.common.window import LOADS_AT_ONCE, Pair, readers

GROUP_ROWS = 64
"""Number of pixels that four warps multiply together."""
_MIN_TURNS = 3
"""Minimum number of patches per block to amortize the start of the block, which overlaps with
nothing.
"""
_MAX_TAPS = 9
"""Maximum number of taps, since their weights are in registers."""
_MIN_BYTES = 32 << 20
"""Minimum bytes of image and result, so that they exceed the L2 cache between two kernels.

For less data, loads are so fast that persistent blocks are not faster.
"""
_MAX_RING = 6
_WARPS = ((12, 4, ITEM), (8, 8, ITEM), (4, 4, ITEM), (8, 4, (4, 4)))
"""Numbers of producer warps and multiplying warps, and item sizes: larger items need fewer loads
per pixel.
"""
_FEW_LOADS = 12
"""Number of loads for which a thread has registers in addition to the sums of a larger item."""

# Instructions per warp, counted in the compiled code.
_ITEM_INSTRUCTIONS = 132
"""Number of instructions per item, in addition to loads and products."""
_OF_LOAD = 5
_UNIT_INSTRUCTIONS = 90
"""Number of instructions per 64 pixels x `columns`, in addition to sums and k-tiles: for positions
and the bias.
"""
_OF_K_TILE = 12
_SUM_INSTRUCTIONS = 19
"""Number of instructions per 4 sums of a thread, from shared memory to memory."""

# Clocks of a multiprocessor, fitted to 58 kernels on an H200 (14 layers, mean error 12 %).
_ISSUE_CLOCKS = 0.5
"""Clocks per instruction of a warp: other warps do not hide all waits."""
_LOAD_CLOCKS = 1180
"""Latency in clocks of a warp's loads in flight."""
_MULTIPLIER_CLOCKS = 4.2
"""Clocks per instruction of a multiplying warp: most instructions depend on the previous one."""
_START_CLOCKS = 4000


@dataclass(frozen=True, slots=True)
class StreamTile(Tile):
    """A persistent block that computes `columns` outputs of a patch of pixels at a time.

    A patch has `patch` lines x pixels.
    """

    problem: SeparableProblem
    patch: Pair
    columns: int
    producers: int
    """Number of warps that compute depthwise convolutions."""
    multipliers: int
    """Number of warps that multiply and store."""
    ring: int
    """Number of patches in shared memory at a time."""
    units: int
    """Number of multiprocessors of the device."""
    item: Pair = ITEM
    """Lines x pixels of the depthwise convolution that a thread computes at a time."""
    resident: int = 1
    """Number of blocks per multiprocessor."""

    @property
    def threads(self) -> int:
        return 32 * (self.producers + self.multipliers)

    @property
    def pixels(self) -> int:
        return math.prod(self.patch)

    @property
    def rows(self) -> int:
        """Return the number of rows of a patch that the block multiplies, including padding."""
        return round_up(self.pixels, GROUP_ROWS)

    @property
    def tiles(self) -> Pair:
        """Return the number of patches vertically and horizontally."""
        return tiles_of(self.patch, self.problem.middle, self.item[0])

    @property
    def loads_at_once(self) -> int:
        """Return the number of loads of a thread that are in flight at the same time."""
        return LOADS_AT_ONCE if self.item == ITEM else _FEW_LOADS

    @property
    def chunks(self) -> int:
        """Return the number of iterations in which a producer warp computes its part of a patch."""
        items = self.pixels // math.prod(self.item) * self.k_tiles * (CHANNELS // 4)
        return -(-items // 32)

    @property
    def turns(self) -> int:
        """Return the maximum number of patches per block."""
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
    def regions(self) -> tuple[Region, ...]:
        """Return the regions: patches, weights, stored sums, bias, gates, producers' words."""
        columns = self.column_blocks * self.columns
        return consecutive(
            ("ring", "uint4", self.ring * self.k_tiles * self.rows * CHUNKS),
            ("weights", "uint4", self.k_tiles * columns * CHUNKS),
            ("sums", "float", self.multipliers * SUMS),
            ("bias", "float", columns),
            ("gates", "unsigned long long", 2 * self.ring),
            ("unheld", "unsigned int", self.ring * self.producers),
        )

    def min_blocks(self, target: TileTarget) -> int:
        return self.resident

    def fits(self, target: TileTarget) -> bool:
        room = target.model.resident_blocks(self.threads, REGISTERS, self.shared_bytes)
        groups, of_rows = self.multipliers // 4, self.rows // GROUP_ROWS
        even = groups <= of_rows or self.column_blocks % (groups // of_rows) == 0
        fits = super(StreamTile, self).fits(target) and room >= self.resident and even
        return fits and self.turns >= _MIN_TURNS

    def clocks(self, target: TileTarget) -> float:
        """Return the estimated clocks of a multiprocessor, whose phases overlap partly."""
        window = self.problem.window
        loads = loads_of(window, self.item)
        products = 4 * math.prod((*self.item, *window.kernel))
        item = products + _OF_LOAD * loads + _ITEM_INSTRUCTIONS * math.prod(self.item) // 8
        unit = _UNIT_INSTRUCTIONS + _OF_K_TILE * self.k_tiles
        unit += self.columns // 8 * _SUM_INSTRUCTIONS
        units = 4 * self.rows // GROUP_ROWS * self.column_blocks
        issued = self.resident * (self.chunks * item + units * unit) * _ISSUE_CLOCKS
        across = len(readers(window, 1, self.item[1]))
        lines = max(self.loads_at_once // across, 1) * across
        produced = self.chunks / self.producers * -(-loads // lines) * _LOAD_CLOCKS
        multiplied = units / self.multipliers * unit * _MULTIPLIER_CLOCKS
        # Even the longest phase does not hide the others completely.
        return self.turns * math.hypot(issued, produced, multiplied) + _START_CLOCKS


def streams(problem: SeparableProblem, model: DeviceModel, units: int) -> Iterator[StreamTile]:
    """Yield the tiles for a problem on a device with `units` multiprocessors."""
    outputs = problem.outputs
    columns = [32] if outputs <= 32 else [64, 128] if outputs > 64 else [64]
    plain = problem.window.stride == (1, 1)
    warps = [each for each in _WARPS if plain or each[2] == ITEM]
    for rows, width, (producers, multipliers, item) in itertools.product((128, 64), columns, warps):
        patch = min(_patches(rows, item), key=lambda each: _cost(each, problem))
        tile = StreamTile(problem, patch, width, producers, multipliers, 2, units, item)
        yield from _with_room(tile, model)


def pays(problem: SeparableProblem) -> bool:
    """Whether persistent blocks may be faster."""
    moved = math.prod(problem.image) + pixels_of(problem.middle) * problem.outputs
    return math.prod(problem.window.kernel) <= _MAX_TAPS and 2 * moved >= _MIN_BYTES


def _with_room(tile: StreamTile, model: DeviceModel) -> Iterator[StreamTile]:
    """Yield a tile with the most blocks per multiprocessor, then the most patches per block."""
    # One patch to multiply, one to start with, and enough for all producers to have work.
    most = min(max(2 + -(-tile.producers // tile.chunks), 3), _MAX_RING)
    for resident in range(model.registers // (REGISTERS * tile.threads), 0, -1):
        for ring in range(most, 1, -1):
            found = replace(tile, ring=ring, resident=resident)
            room = model.resident_blocks(tile.threads, REGISTERS, found.shared_bytes)
            if room >= resident:
                yield found
                return


def _patches(rows: int, item: Pair) -> Iterator[Pair]:
    """Yield the lines x pixels of patches of such items that fill most of `rows` rows."""
    for width in range(8, rows // item[0] + 1, item[1]):
        yield rows // width // item[0] * item[0], width


def _cost(patch: Pair, problem: SeparableProblem) -> tuple[int, int, int]:
    """Return a sort key of patches: their number, computed pixels, pixels read twice."""
    count = math.prod(tiles_of(patch, problem.middle))
    return count, count * math.prod(patch), sum(patch)
