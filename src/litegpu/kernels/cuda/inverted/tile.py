"""Tiles of cuda/inverted: patches of pixels, their strips per warp, and chunks of channels."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from litegpu.codegen.storage import Shape4
from litegpu.kernels.cuda.packing import STEP
from litegpu.kernels.cuda.tiles import Region, Tile, TileTarget, consecutive
from litegpu.ops.common.window import Pair, Window

ACROSS = 8
"""Number of adjacent pixels of a line that a warp multiplies at a time: rows of an 8 x 8 matrix."""
ROWS = 16
"""Number of pixels per matrix product, and of channels per product."""
_MAX_SUMS = 64
"""Maximum number of sums per thread, in registers."""
_MAX_WEIGHTS = 6
"""Maximum number of products whose weights a thread stores while it expands pixels."""
_MAX_GROUPS = 4
"""Number of channel groups that a warp expands at a time."""
REGISTERS = 128
"""Maximum number of registers per thread."""
_LINES, _COLUMNS, _STRIPS = (4, 8, 14, 16), (8, 16, 24, 32), (2, 4, 8)
_WARPS = range(2, 9)

# Clocks of a multiprocessor: not measured, but copied from cuda/separable_stream. Instruction
# counts are those of the machine code.
_ISSUE_CLOCKS = 0.5
"""Clocks per instruction of a warp, with other warps active."""
_WARP_CLOCKS = 8.0
"""Clocks between two instructions of a warp, if there are few warps."""
_START_CLOCKS = 2000
"""Latency in clocks of the first pixels, and of the final stores."""
_CHUNK_CLOCKS = 500
"""Clocks to synchronize the warps per chunk."""
_OF_PRODUCT = 20
"""Number of instructions per 16 x 16 expanded values, in addition to the products."""
_OF_TAPS = 9
"""Number of instructions per two products of two taps, whose operands must be in adjacent
registers.
"""
_OF_STORE = 25
"""Number of instructions per 4 sums of a lane."""
_OF_COPY = 36
"""Number of instructions per copy of 8 channels."""


@dataclass(frozen=True, slots=True)
class InvertedProblem:
    """The sizes that determine the tiles: images [N, H, W, C], and the depthwise window."""

    image: Shape4
    middle: Shape4
    """The shape of the depthwise convolution's result; its input has as many channels."""
    outputs: int
    window: Window

    @property
    def steps(self) -> int:
        """Number of products per sum over a pixel's channels."""
        return -(-self.image[3] // STEP)

    @property
    def taps(self) -> int:
        return math.prod(self.window.kernel)

    @property
    def tap_pairs(self) -> int:
        """Number of products per sum over a window's taps: each product covers two taps."""
        return -(-self.taps // 2)


@dataclass(frozen=True, slots=True)
class InvertedTile(Tile):
    """A block that computes `patch` lines x pixels; each warp computes a strip 8 pixels wide.

    A strip has `strip` lines; shared memory holds `groups` groups of 16 channels at a time.
    """

    problem: InvertedProblem
    patch: Pair
    strip: int
    groups: int

    @property
    def strips(self) -> Pair:
        """Return the number of strips vertically and horizontally."""
        return self.patch[0] // self.strip, self.patch[1] // ACROSS

    @property
    def threads(self) -> int:
        return 32 * math.prod(self.strips)

    @property
    def tiles(self) -> Pair:
        """Return the number of patches of an image vertically and horizontally."""
        _, height, width, _ = self.problem.middle
        return -(-height // self.patch[0]), -(-width // self.patch[1])

    @property
    def blocks(self) -> Pair:
        return 1, self.problem.middle[0] * math.prod(self.tiles)

    @property
    def seen(self) -> Pair:
        """Return the lines x pixels of the input that the windows of a patch read."""
        return self.problem.window.seen_by(self.patch)

    @property
    def strip_lines(self) -> int:
        """Return the number of input lines that the windows of a strip read."""
        return self.problem.window.seen_by((self.strip, 1))[0]

    @property
    def plane(self) -> int:
        """Number of pixels of a line, one stride apart, that are stored next to each other.

        Adjacent lanes of a warp read these pixels.
        """
        return -(-self.seen[1] // self.problem.window.stride[1])

    @property
    def line(self) -> int:
        """Number of pixels per line in shared memory."""
        return self.plane * self.problem.window.stride[1]

    @property
    def m_tiles(self) -> int:
        """Number of products that expand all input pixels."""
        return -(-self.seen[0] * self.line // ROWS)

    @property
    def chunks(self) -> int:
        """Return the number of iterations over `groups` of channels."""
        return -(-self.problem.middle[3] // (ROWS * self.groups))

    @property
    def pairs(self) -> int:
        """Number of pairs of instructions (8 columns each) that compute all outputs."""
        return -(-self.problem.outputs // ROWS)

    @property
    def pitches(self) -> Pair:
        """Distance of input and of expanded pixels in 16-byte chunks: odd, to use all banks."""
        return 2 * self.problem.steps + 1, 2 * self.groups + 1

    @property
    def regions(self) -> tuple[Region, ...]:
        """Return the regions: expanded channels, input pixels, and the pixels' limits."""
        pixels = self.m_tiles * ROWS
        return consecutive(
            ("expanded", "uint4", pixels * self.pitches[1]),
            ("pixels", "uint4", pixels * self.pitches[0]),
            ("limits", "unsigned int", pixels),
        )

    def min_blocks(self, target: TileTarget) -> int:
        return target.model.resident_blocks(self.threads, REGISTERS, self.shared_bytes)

    def fits(self, target: TileTarget) -> bool:
        return super(InvertedTile, self).fits(target) and self.min_blocks(target) > 0

    def clocks(self, target: TileTarget) -> float:
        """Estimate the clocks of a tile: issued instructions, and the latency of all warps."""
        resident = self.min_blocks(target)
        rounds = max(1.0, self.blocks[1] / (target.compute_units * resident))
        warps = resident * math.prod(self.strips)
        issue = max(_ISSUE_CLOCKS, _WARP_CLOCKS / warps)
        waits = _START_CLOCKS + self.chunks * _CHUNK_CLOCKS
        return rounds * (resident * self._instructions * issue + waits)

    @property
    def _instructions(self) -> float:
        """Number of instructions of a block's warps."""
        problem, warps = self.problem, math.prod(self.strips)
        copies = self.m_tiles * ROWS * 2 * problem.steps / 32 * _OF_COPY
        expanded = 2 * problem.steps + _OF_PRODUCT + (problem.steps + 4) / self.groups
        loads = problem.window.kernel[1] * -(-self.strip_lines // 2)
        of_lines = _OF_TAPS * problem.tap_pairs + 2 * self.pairs + 16
        of_strip = loads + 6 * problem.tap_pairs + self.pairs + self.strip / 2 * of_lines
        groups = self.chunks * self.groups
        by_groups = groups * (self.m_tiles * expanded + warps * of_strip)
        return copies + by_groups + warps * self.strip * self.pairs * _OF_STORE


def candidates(problem: InvertedProblem) -> Iterator[InvertedTile]:
    """Yield the tiles for a problem, small blocks first."""
    groups = -(-problem.middle[3] // ROWS)
    most = max(1, min(_MAX_WEIGHTS // problem.steps, _MAX_GROUPS, groups))
    for lines, pixels, strip in itertools.product(_LINES, _COLUMNS, _STRIPS):
        if lines % strip or lines // strip * (pixels // ACROSS) not in _WARPS:
            continue
        for each in range(most, 0, -1):
            tile = InvertedTile(problem, (lines, pixels), strip, each)
            # Padding channels would be computed, too.
            if strip * tile.pairs * 4 <= _MAX_SUMS and (groups % each == 0 or each == most):
                yield tile
