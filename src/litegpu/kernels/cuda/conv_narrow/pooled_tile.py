"""Tiles of cuda/conv_narrow with a fused maximum pool, which store only the pooled result."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from litegpu.codegen import Storage, literal
from litegpu.kernels.cuda.conv_narrow.patch import WIDE, NarrowProblem, Patch
from litegpu.kernels.cuda.conv_narrow.tile import NarrowTile, is_possible, shapes
from litegpu.kernels.cuda.tiles import Region
from litegpu.ops.base import Target
from litegpu.ops.common.window import Pair, PoolAttributes

_HEIGHTS = (1, 2, 4, 7, 8, 14)
"""Maximum number of rows of pooled pixels per block."""
_PADDING = 4
"""Distance of a warp's columns in blocks of 4 numbers: adjacent columns use different banks."""
_KEEP_INSTRUCTIONS = 17.0
"""Number of instructions per 4 channels of a pixel, from the sums to the maxima of halves."""
_FIND_INSTRUCTIONS = 40.0
"""Number of instructions per 4 channels of a pooled pixel, from the columns to the stored value."""


@dataclass(frozen=True, slots=True)
class PooledProblem:
    """A convolution (with the pool's padding added to its own) and the maximum pool after it."""

    conv: NarrowProblem
    pool: PoolAttributes
    pooled: Pair
    """Height and width of the pooled result."""
    size: int
    """Number of bytes per pooled number as stored: half or float."""

    @classmethod
    def of(
        cls, conv: NarrowProblem, pool: PoolAttributes, pooled: Pair, size: int
    ) -> PooledProblem:
        """Return the problem of a separate convolution and pool."""
        view, (y, x) = conv.view, pool.window.pads
        pads = (view.pads[0] + y * view.stride[0], view.pads[1] + x * view.stride[1])
        return cls(replace(conv, view=replace(view, pads=pads)), pool, pooled, size)

    @property
    def strip(self) -> int:
        """Number of adjacent pooled pixels whose windows fit the pixels of a matrix instruction.

        The number is 0 if no window fits. The next strip starts at an even value: see Patch.copies.
        """
        size, stride = self.pool.window.kernel[1], self.pool.window.stride[1]
        found = (WIDE - size) // stride + 1
        return found - (found * stride * self.conv.step) % 2


@dataclass(frozen=True, slots=True)
class PooledTile(NarrowTile):
    """A block that computes `rows` rows of pooled pixels, `across` strips wide.

    Each warp moves down a strip, and holds the maxima of incomplete windows in registers.
    """

    pooled: PooledProblem
    most_registers: ClassVar[int] = 168

    @property
    def lines(self) -> int:
        """Number of rows of the convolution's result that the windows of a block cover."""
        window = self.pooled.pool.window
        return (self.rows - 1) * window.stride[0] + window.kernel[0]

    @property
    def live(self) -> int:
        """Number of windows that are incomplete after a row."""
        window = self.pooled.pool.window
        return max(1, -(-(window.kernel[0] - 1) // window.stride[0]))

    @property
    def turns(self) -> int:
        skipped = max(self.pooled.pool.window.stride[0] - self.pooled.pool.window.kernel[0], 0)
        computed = self.lines - skipped * (self.rows - 1)
        return computed * -(-self.across // self.warps_m)

    @property
    def extent(self) -> Pair:
        down, across = self.pooled.pool.window.stride
        return self.rows * down, self.across * self.pooled.strip * across

    @property
    def patch(self) -> Patch:
        view, down = self.problem.view, self.lines
        rows = (down - 1) * view.stride[0] + (view.kernel[0] - 1) * view.dilation[0] + 1
        starts = (self.across - 1) * self.pooled.strip * self.pooled.pool.window.stride[1]
        width = (starts + WIDE - 1) * self.problem.step + self.problem.run
        return Patch(self.problem, rows, width)

    @property
    def tiles(self) -> Pair:
        height, width = self.pooled.pooled
        return -(-height // self.rows), -(-width // (self.across * self.pooled.strip))

    @property
    def m_tiles(self) -> int:
        return 1

    @property
    def retained(self) -> int:
        return (self.live + 1) * self.pairs * 2 * self.pooled.size

    @property
    def regions(self) -> tuple[Region, ...]:
        """Return the regions, including the columns in which warps compute maxima."""
        before = super(PooledTile, self).regions
        columns = self.warps_m * self.warps_n * WIDE * (self.pairs * 4 + _PADDING)
        kind = "unsigned short" if self.pooled.size == 2 else "float"
        return *before, Region("staged", kind, 4 * columns, before[-1].end)

    @property
    def finishing(self) -> float:
        rounds = -(-self.pooled.strip * self.pairs * 4 // 32)
        found = rounds * _FIND_INSTRUCTIONS * self.rows / self.lines
        return self.pairs * 2 * _KEEP_INSTRUCTIONS + found

    @property
    def stored(self) -> float:
        return self.pooled.strip * self.pairs * 16 * self.pooled.size * self.rows / self.lines

    def together(self, dst: Storage) -> int:
        """Return 0: lanes do not store their own sums."""
        return 0

    @property
    def pool_words(self) -> Mapping[str, Any]:
        window, outside = self.pooled.pool.window, self.pooled.pool.outside
        return {
            "kernel": window.kernel,
            "stride": window.stride,
            "pads": window.pads,
            "outside": "-INFINITY" if outside is None else literal(outside),
            "rows": self.lines,
            "across": self.pooled.strip,
            "padding": _PADDING,
            "live": self.live,
        }


def candidates(problem: PooledProblem, target: Target) -> Iterator[PooledTile]:
    """Yield the tiles for a problem that keep the device busy."""
    if problem.strip < 1:
        return
    strips = -(-problem.pooled[1] // problem.strip)
    for shape in shapes(problem.conv, strips, _HEIGHTS):
        tile = PooledTile(problem.conv, *shape, problem)
        # Rows are read in whole units only if the rows of each block start at a unit.
        if tile.tiles[1] > 1 and tile.extent[1] * problem.conv.step % 4:
            tile = replace(tile, problem=replace(problem.conv, whole=False))
        if is_possible(tile, target):
            yield tile
