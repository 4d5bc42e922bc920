"""Tiles of cuda/inverted: patches of pixels, strips of them for warps, chunks of channels."""

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
"""Neighbours in a line that a warp multiplies at a time: rows of a matrix of 8 x 8."""
ROWS = 16
"""Pixels, and channels, of a product."""
_MOST_SUMS = 64
"""Sums of a thread, in registers."""
_MOST_WEIGHTS = 6
"""Products whose weights a thread holds while pixels are expanded."""
_MOST_GROUPS = 4
"""Groups of channels that are expanded at a time."""
REGISTERS = 128
"""Registers of a thread."""
_LINES, _COLUMNS, _STRIPS = (4, 8, 14, 16), (8, 16, 24, 32), (2, 4, 8)
_WARPS = range(2, 9)

# Clocks of a multiprocessor: not measured yet, but taken over from cuda/separable_stream.
# Instructions are those of the machine's code.
_ISSUE_CLOCKS = 0.5
"""An instruction of a warp, with other warps active."""
_WARP_CLOCKS = 8.0
"""From one instruction of a warp to its next: where there are few warps, nothing fills that."""
_START_CLOCKS = 2000
"""Until the first pixels have come, and what is stored at the end."""
_CHUNK_CLOCKS = 500
"""What warps wait for each other in a chunk."""
_OF_PRODUCT = 20
"""Instructions for 16 x 16 expanded values, apart from the products."""
_OF_TAPS = 9
"""Instructions for two products of two taps, whose operands must lie in neighbouring registers."""
_OF_STORE = 25
"""Instructions for 4 sums of a lane."""
_OF_COPY = 36
"""Instructions for a copy of 8 channels."""


@dataclass(frozen=True, slots=True)
class InvertedProblem:
    """What decides about tiles: the images [N, H, W, C] and the window between two of them."""

    image: Shape4
    middle: Shape4
    """What the depthwise convolution makes; it reads an image with as many channels."""
    outputs: int
    window: Window

    @property
    def steps(self) -> int:
        """Products that sum up the channels of a pixel."""
        return -(-self.image[3] // STEP)

    @property
    def taps(self) -> int:
        return math.prod(self.window.kernel)

    @property
    def tap_pairs(self) -> int:
        """Products that sum up the taps of a window: two taps each."""
        return -(-self.taps // 2)


@dataclass(frozen=True, slots=True)
class InvertedTile(Tile):
    """A block makes `patch` lines x pixels; a warp a strip of it, `strip` lines of 8 pixels.

    `groups` of 16 channels lie in shared memory at a time.
    """

    problem: InvertedProblem
    patch: Pair
    strip: int
    groups: int

    @property
    def strips(self) -> Pair:
        """Return how many strips lie below each other, and side by side."""
        return self.patch[0] // self.strip, self.patch[1] // ACROSS

    @property
    def threads(self) -> int:
        return 32 * math.prod(self.strips)

    @property
    def tiles(self) -> Pair:
        """Return how many patches an image has below each other, and side by side."""
        _, height, width, _ = self.problem.middle
        return -(-height // self.patch[0]), -(-width // self.patch[1])

    @property
    def blocks(self) -> Pair:
        return 1, self.problem.middle[0] * math.prod(self.tiles)

    @property
    def seen(self) -> Pair:
        """Return the lines x pixels that the windows of a patch see."""
        return self.problem.window.seen_by(self.patch)

    @property
    def strip_lines(self) -> int:
        """Return how many lines the windows of a strip see."""
        return self.problem.window.seen_by((self.strip, 1))[0]

    @property
    def plane(self) -> int:
        """Every so many pixels of a line lie together: those that neighbours read by one tap."""
        return -(-self.seen[1] // self.problem.window.stride[1])

    @property
    def line(self) -> int:
        """Places of a line in shared memory."""
        return self.plane * self.problem.window.stride[1]

    @property
    def m_tiles(self) -> int:
        """Products that expand all pixels that are seen."""
        return -(-self.seen[0] * self.line // ROWS)

    @property
    def chunks(self) -> int:
        """Return how often `groups` of channels are expanded."""
        return -(-self.problem.middle[3] // (ROWS * self.groups))

    @property
    def pairs(self) -> int:
        """Pairs of instructions, 8 columns each, that make all outputs."""
        return -(-self.problem.outputs // ROWS)

    @property
    def pitches(self) -> Pair:
        """Chunks of 16 bytes between pixels, of the input and expanded: odd, for all banks."""
        return 2 * self.problem.steps + 1, 2 * self.groups + 1

    @property
    def regions(self) -> tuple[Region, ...]:
        """Return expanded channels of the pixels that are seen, these pixels, and their limits."""
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
        """Estimate the clocks: instructions that are issued, and what all warps wait for."""
        resident = self.min_blocks(target)
        rounds = max(1.0, self.blocks[1] / (target.compute_units * resident))
        warps = resident * math.prod(self.strips)
        issue = max(_ISSUE_CLOCKS, _WARP_CLOCKS / warps)
        waits = _START_CLOCKS + self.chunks * _CHUNK_CLOCKS
        return rounds * (resident * self._instructions * issue + waits)

    @property
    def _instructions(self) -> float:
        """Instructions of the warps of a block."""
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
    """Yield the tiles for a problem, those of small blocks first."""
    groups = -(-problem.middle[3] // ROWS)
    most = max(1, min(_MOST_WEIGHTS // problem.steps, _MOST_GROUPS, groups))
    for lines, pixels, strip in itertools.product(_LINES, _COLUMNS, _STRIPS):
        if lines % strip or lines // strip * (pixels // ACROSS) not in _WARPS:
            continue
        for each in range(most, 0, -1):
            tile = InvertedTile(problem, (lines, pixels), strip, each)
            # Channels that there are not would be computed, too.
            if strip * tile.pairs * 4 <= _MOST_SUMS and (groups % each == 0 or each == most):
                yield tile
