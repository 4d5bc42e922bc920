"""Tiles of cuda/conv_stationary: warps, channels and pixels."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from litegpu.kernels.cuda.packing import BYTE_STEP
from litegpu.kernels.cuda.tiles import PersistentTile, TileTarget
from litegpu.ops.base import Target

CHANNELS = 32
"""Number of output channels of two matrices of 16 rows; each lane computes one word of them."""
_TILE = 8
"""Number of pixels per matrix instruction."""
_MAX_VALUES = 32
"""Number of registers for pixel values in flight."""
_MAX_SUMS = 32
"""Maximum useful number of pixels in flight (pairs of words count twice): more pixels are no
faster.
"""
_OTHER_REGISTERS = 44
"""Registers per thread in addition to weights, values, sums, bias and multipliers."""


@dataclass(frozen=True, slots=True)
class StationaryProblem:
    """The sizes that determine the tiles: pixels, and weights [outputs, inputs]."""

    rows: int
    inputs: int
    outputs: int
    widest: int
    """Number of output words that a lane can store together."""
    zeros: bool
    """Whether weights have a zero point, so that the kernel must also sum the inputs."""

    @property
    def words(self) -> int:
        """Number of words of 4 channels that a lane reads of a pixel at a time."""
        return 4 if self.inputs > BYTE_STEP else 2

    @property
    def steps(self) -> int:
        """Number of instructions per sum."""
        chunk = self.words // 2
        return -(-self.inputs // (BYTE_STEP * chunk)) * chunk

    @property
    def parts(self) -> int:
        """Number of groups of `words` per pixel."""
        return -(-self.inputs // (4 * self.words))


@dataclass(frozen=True, slots=True)
class StationaryTile(PersistentTile):
    """A tile in which each warp computes 32 * `groups` channels of `pixels` pixels at a time."""

    problem: StationaryProblem
    pixels: int
    groups: int
    resident: int
    units: int
    most_warps = 8

    @property
    def warps_of_channels(self) -> int:
        return -(-self.problem.outputs // (CHANNELS * self.groups))

    @property
    def positions(self) -> int:
        """Number of groups of `pixels` pixels."""
        return -(-self.problem.rows // self.pixels)

    @property
    def registers(self) -> int:
        """Estimate the registers per thread."""
        problem, tiles = self.problem, self.pixels // _TILE
        matrices = 2 * self.groups + problem.zeros
        weights = problem.steps * matrices * 4
        values = tiles * problem.steps * 2
        return weights + values + tiles * matrices * 4 + self.groups * 12 + _OTHER_REGISTERS

    def clocks(self, target: TileTarget) -> float:
        """Return a ranking: prefer two resident blocks with many sums in flight, see _MAX_SUMS.

        On an H200, the ranking puts first the best tile, or a tile that is 5 % slower.
        """
        sums, blocks = min(self.pixels * self.groups, _MAX_SUMS), min(self.resident, 2)
        # A single block should save loads instead, with two words per lane.
        preferred = self.groups == 2 if blocks == 1 else self.groups == 1
        return 1 / (blocks * (sums + preferred))


def candidates(problem: StationaryProblem, target: Target) -> Iterator[StationaryTile]:
    """Yield the tiles whose threads have enough registers."""
    for groups, pixels in itertools.product((2, 1), (32, 16, 8)):
        if groups > problem.widest:
            continue
        if pixels // _TILE * problem.steps * 2 > _MAX_VALUES and pixels > _TILE:
            continue
        for resident in (4, 3, 2, 1):
            tile = StationaryTile(problem, pixels, groups, resident, target.compute_units)
            if tile.registers <= min(255, target.model.registers // (tile.threads * resident)):
                yield tile
                break
