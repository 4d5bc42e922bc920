"""Tiles of cuda/inverted_split: patches of pixels, and groups of the expanded channels."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from litegpu.codegen import round_up
from litegpu.codegen.storage import Shape4
from litegpu.kernels.base import Rejected
from litegpu.kernels.cuda.packing import STEP
from litegpu.kernels.cuda.tiles import (
    Region,
    Tile,
    TileFacts,
    TileTarget,
    choose,
    consecutive,
    units_for,
)
from litegpu.ops.common.window import Pair, Window

_LINES, _COLUMNS = (1, 2, 4, 7, 8), (4, 7, 8, 14, 16, 28)
"""The possible numbers of lines and pixels of a patch."""
_DEPTHS = range(1, 9)
"""The possible numbers of blocks that divide the channels."""
_WARPS, _KINDS_OF_WARPS = (6, 12, 8, 10, 14), 2
"""Warps per block, preferred numbers first: each thread has fixed channels, and the warps must
divide all channels evenly.
"""
_MAX_PIXELS = 128
_MAX_WEIGHTS = 96
"""Maximum number of registers per thread for the weights of one of the convolutions."""
_MAX_SUMS = 96
_OTHER_REGISTERS = 64
"""Registers per thread in addition to weights, taps and sums."""
_REGISTERS, _MAX_REGISTERS = 64 << 10, 255
"""Registers of a multiprocessor with tensor cores, and maximum registers per thread."""

# Clocks in addition to device_model.Clocks, fitted to the times of 179 kernels of 12 blocks on an
# H100 (benchmarks/split_tiles.py, at 1755 MHz, including a launch): the mean error is 6 %, and the
# selected tile takes 2 % longer than the best one of a block.
_INSTRUCTION_CLOCKS = 2.0
"""Clocks between two instructions of a thread, with other instructions of its warp between them."""
_PRODUCT_CLOCKS = 2.7
"""Clocks per warp product of 16 x 16 halves by 16 x 8, with other warps active."""
_PRODUCT_WAIT_CLOCKS = 3.0
"""Latency in clocks per product of a warp without other products to overlap."""
_BLOCK_CLOCKS = 600.0
"""Latency in clocks of the blocks of a multiprocessor when they start and end."""
_SPLIT_CLOCKS, _SPLIT_CLOCKS_EACH = 285.0, 151.0
"""Overhead in clocks of blocks for synchronization and addition: fixed, and per block."""
_BEGIN_CLOCKS = 12.0
"""Clocks between the starts of two blocks, anywhere on the device."""
_OF_PIECE, _OF_EXPANDED, _OF_MADE, _OF_SEEN = 10, 35, 7, 19
"""Number of instructions per 4 channels of a pixel in a thread: for loading, for expanding, for the
depthwise convolution, and for reading its input.
"""
_LOADS_AT_ONCE = 10
"""Number of loads per thread in flight at the same time."""


@dataclass(frozen=True, slots=True)
class SplitProblem:
    """The sizes that determine the tiles, and which operands are split into two halves."""

    inputs: int
    """Number of inputs of an expanded channel: a pixel's channels (in fours) times the taps."""
    middle: Shape4
    """The depthwise convolution's result [N, H, W, C]; its input has as many channels."""
    outputs: int
    """Number of stored channels, including zero padding."""
    window: Window
    parts: int
    """Number of halves into which an image value is split."""
    weight_parts: Pair
    """Number of halves per weight of the expansion, and of the pointwise convolution."""
    ranged: bool

    @property
    def steps(self) -> int:
        """Number of products per sum of an expanded pixel."""
        return -(-self.inputs // STEP)

    @property
    def groups(self) -> int:
        """Number of groups of 16 expanded channels."""
        return -(-self.middle[3] // STEP)

    @property
    def taps(self) -> int:
        return math.prod(self.window.kernel)


@dataclass(frozen=True, slots=True)
class SplitTile(Tile):
    """A cluster that computes `patch` lines x pixels; its `depth` blocks divide the channels."""

    problem: SplitProblem
    patch: Pair
    depth: int
    groups: int
    warps: int
    units: int
    """Number of multiprocessors of the device among which the blocks are distributed."""

    @property
    def threads(self) -> int:
        return 32 * self.warps

    @property
    def cluster_size(self) -> int:
        return self.depth

    @property
    def patches(self) -> Pair:
        """Return the number of patches of an image vertically and horizontally."""
        _, height, width, _ = self.problem.middle
        return -(-height // self.patch[0]), -(-width // self.patch[1])

    @property
    def blocks(self) -> Pair:
        return self.depth, self.problem.middle[0] * math.prod(self.patches)

    @property
    def seen(self) -> Pair:
        """Return the lines x pixels of the input that the windows of a patch read."""
        return self.problem.window.seen_by(self.patch)

    @property
    def seen_tiles(self) -> int:
        """Number of products of 16 pixels that expand the input pixels."""
        return -(-math.prod(self.seen) // STEP)

    @property
    def m_tiles(self) -> int:
        return -(-math.prod(self.patch) // STEP)

    @property
    def run(self) -> int:
        """Number of adjacent pixels of the depthwise convolution that a thread computes."""
        return 2 if self.patch[1] % 2 == 0 else 1

    @property
    def warps_first(self) -> int:
        """Number of warps that divide the expanded channels; other warps process other pixels."""
        return math.gcd(self.groups, self.warps)

    @property
    def warps_n(self) -> int:
        """Number of warps that divide the outputs; other warps process other pixels."""

        def busy(across: int) -> tuple[int, int]:
            tiles = -(-self.m_tiles // (self.warps // across))
            return tiles * -(-self.output_pairs // across), -across

        return min((n for n in range(1, self.warps + 1) if self.warps % n == 0), key=busy)

    @property
    def output_pairs(self) -> int:
        """Number of pairs of instructions (8 columns each) that compute all outputs."""
        return -(-self.problem.outputs // STEP)

    @property
    def pairs(self) -> int:
        """Number of pairs of instructions per warp."""
        return -(-self.output_pairs // self.warps_n)

    @property
    def columns(self) -> int:
        return STEP * self.pairs * self.warps_n

    @property
    def weights_first(self) -> int:
        """Number of registers per thread for the expansion's weights."""
        problem = self.problem
        return 4 * problem.steps * problem.weight_parts[0] * self.groups // self.warps_first

    @property
    def weights(self) -> int:
        """Number of registers per thread for the pointwise weights."""
        return 4 * self.groups * self.problem.weight_parts[1] * self.pairs

    @property
    def sums(self) -> int:
        """Number of registers per thread for one kind of pointwise sums."""
        return 8 * self.pairs * -(-self.m_tiles // (self.warps // self.warps_n))

    @property
    def _room(self) -> int:
        """Number of registers per thread that remain for weights and sums."""
        most = min(_REGISTERS // (self.threads * self.resident) // 8 * 8, _MAX_REGISTERS)
        return most - 4 * self.problem.taps - _OTHER_REGISTERS

    @property
    def resident(self) -> int:
        """Number of resident blocks per multiprocessor: all blocks, if registers permit."""
        share = -(-math.prod(self.blocks) // self.units)
        wanted = (
            self.weights_first + 2 * self._sums_first + 4 * self.problem.taps + _OTHER_REGISTERS
        )
        return max(min(share, _REGISTERS // (self.threads * wanted)), 1)

    @property
    def early(self) -> bool:
        """Whether the kernel loads all weights before its first wait."""
        return self.weights_first + self.weights + 2 * self._sums_first <= self._room

    @property
    def _sums_first(self) -> int:
        """Number of registers per thread for one kind of sums of 16 expanded pixels."""
        return 8 * self.groups // self.warps_first

    @property
    def kinds(self) -> Pair:
        """Maximum number of kinds of sums: fewer kinds would serialize products of remainders."""
        weights = self.weights_first + self.weights * self.early
        first = 3 if weights + 3 * self._sums_first <= self._room else 2
        return first, 3 if self.weights + 3 * self.sums <= self._room else 2

    @property
    def tiles_first(self) -> int:
        """Number of products of 16 pixels that a warp expands at a time."""
        left = self._room - self.weights_first - self.weights * self.early
        turns = -(-self.seen_tiles // (self.warps // self.warps_first))
        return max(min(turns, left // (self.kinds[0] * self._sums_first)), 1)

    @property
    def pitch(self) -> int:
        """Distance between expanded pixels in floats: an offset of half of the banks."""
        return round_up(self.groups * STEP, 32) + (16 if self.groups % 2 == 0 else -16)

    @property
    def all_sums(self) -> int:
        """Number of blocks of 4 sums of a patch."""
        return math.prod(self.patch) * self.problem.outputs // 4

    @property
    def each_sums(self) -> int:
        """Number of blocks of 4 sums that each thread block of a cluster adds."""
        return -(-self.all_sums // self.depth)

    @property
    def regions(self) -> tuple[Region, ...]:
        """Return the regions: input pixels, expanded pixels, pointwise input, all blocks' sums."""
        seen = self.seen_tiles * STEP * (self.problem.steps * STEP + 8)
        operand = self.m_tiles * STEP * (self.groups * STEP + 8)
        return consecutive(
            ("seen", "unsigned short", seen * self.problem.parts),
            ("expanded", "float", math.prod(self.seen) * self.pitch),
            ("operand", "unsigned short", 2 * operand),
            ("sums", "float4", self.depth * self.each_sums),
            ("inbox", "unsigned long long", int(self.depth > 1)),
        )

    def min_blocks(self, target: TileTarget) -> int:
        return self.resident

    def fits(self, target: TileTarget) -> bool:
        return (
            super(SplitTile, self).fits(target)
            and max(self.weights_first, self.weights) <= _MAX_WEIGHTS
            and 2 * self.sums <= _MAX_SUMS
            and self.weights_first + 2 * self._sums_first <= self._room
        )

    def clocks(self, target: TileTarget) -> float:
        """Estimate the clocks of a tile: the multiprocessor's busy time, and its latency."""
        problem, clocks = self.problem, target.model.clocks
        blocks = math.prod(self.blocks)
        per_unit = -(-blocks // units_for(self.depth, target))
        waves = -(-per_unit // self.min_blocks(target))
        pixels, seen, fours = math.prod(self.patch), math.prod(self.seen), self.groups * 4
        window = problem.window
        seen_by_run = window.kernel[0] * (
            window.kernel[1] + (self.run - 1) * min(window.stride[1], window.kernel[1])
        )
        pieces = seen * problem.steps * 4
        # Pairs: instructions for each piece, and the number of pieces.
        loops = (
            (_OF_PIECE, pieces),
            (_OF_EXPANDED, self.seen_tiles * STEP * fours),
            (_OF_MADE, pixels * fours),
            (_OF_SEEN * seen_by_run, pixels / self.run * fours),
        )
        # Either many warps keep a multiprocessor busy, or few warps wait for their own
        # instructions.
        busy = sum(
            each
            * max(
                per_unit * count * clocks.instruction,
                waves * math.ceil(count / self.threads) * _INSTRUCTION_CLOCKS,
            )
            for each, count in loops
        )
        first = 2 * problem.steps * (problem.parts + problem.weight_parts[0] - 1)
        last = 2 * self.groups * (1 + problem.weight_parts[1])
        products = first * self.groups * self.seen_tiles
        products += last * self.m_tiles * self.warps_n * self.pairs
        own = (
            first
            * (self.groups // self.warps_first)
            * -(-self.seen_tiles // (self.warps // self.warps_first))
        )
        own += last * self.pairs * -(-self.m_tiles // (self.warps // self.warps_n))
        waits = _BLOCK_CLOCKS + _PRODUCT_WAIT_CLOCKS * own
        waits += clocks.load * math.ceil(pieces / self.threads / _LOADS_AT_ONCE)
        if self.depth > 1:
            waits += _SPLIT_CLOCKS + _SPLIT_CLOCKS_EACH * self.depth
        return busy + per_unit * products * _PRODUCT_CLOCKS + waves * waits + blocks * _BEGIN_CLOCKS


def best_tiles(problem: SplitProblem, target: TileTarget) -> list[SplitTile] | Rejected:
    """Return the tiles for a problem that should be measured; see tiles.choose."""
    found = _best_tiles(problem, TileFacts.of(target))
    return found if isinstance(found, Rejected) else list(found)


@lru_cache(maxsize=256)
def _best_tiles(problem: SplitProblem, target: TileFacts) -> tuple[SplitTile, ...] | Rejected:
    found = choose(candidates(problem, target), target)
    return found if isinstance(found, Rejected) else tuple(found)


def candidates(problem: SplitProblem, target: TileTarget) -> Iterator[SplitTile]:
    """Yield the tiles for a problem."""
    _, height, width, _ = problem.middle
    depths = _DEPTHS if target.model.clusters else (1,)
    for depth in depths:
        groups = -(-problem.groups // depth)
        if -(-problem.groups // groups) < depth:
            continue  # fewer blocks would do as well
        some_warps = [each for each in _WARPS if 8 * each % groups == 0][:_KINDS_OF_WARPS]
        for lines in {min(lines, height) for lines in _LINES}:
            for columns in {min(columns, width) for columns in _COLUMNS}:
                if lines * columns <= _MAX_PIXELS:
                    for warps in some_warps:
                        yield SplitTile(
                            problem, (lines, columns), depth, groups, warps, target.compute_units
                        )
