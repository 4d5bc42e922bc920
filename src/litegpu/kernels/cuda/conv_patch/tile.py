"""Tiles of cuda/conv_patch: a patch of the image in shared memory, and its weights."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from litegpu.kernels.cuda.conv import SplitProblem
from litegpu.kernels.cuda.tiles import Region, Tile, TileTarget, consecutive
from litegpu.ops.common.window import Pair, Window

PART = 8
"""Number of channels per chunk; a step of the instruction uses two chunks."""
_WIDE = 16
"""Number of pixels of a row per matrix instruction."""
_SHARED_BYTES = 72 << 10
"""Maximum shared memory in bytes per block: on large GPUs, three blocks fit a multiprocessor."""
_MAX_SUMS = 64
"""Maximum number of sums per thread, in registers."""
_REGISTERS = 128
"""Maximum number of registers per thread."""

# Clocks of a multiprocessor, in addition to device_model.Clocks.
_MATRIX_CLOCKS = 4.0
"""Clocks of a matrix load, which moves 512 bytes of shared memory at 128 per clock; weights of 8
columns are 256 bytes.
"""
_FILL_INSTRUCTIONS = 60
"""Number of instructions per channel block of the patch, from its address to its halves."""
_STEP_CLOCKS = 40.0
"""Latency in clocks of the operands of a step of a warp."""


@dataclass(frozen=True, slots=True)
class PatchProblem(SplitProblem):
    """A convolution whose pixels consist of chunks of channels."""

    @property
    def chunks(self) -> int:
        return -(-self.channels // PART)

    @property
    def pitch(self) -> int:
        """Distance between pixels of a patch in halves: an odd number of chunks."""
        return (self.chunks | 1) * PART

    @property
    def steps(self) -> int:
        return -(-math.prod(self.view.kernel) * self.chunks // 2)


@dataclass(frozen=True, slots=True)
class PatchTile(Tile):
    """A block of `warps` warps that computes `rows` rows of 16 pixels x `n_tiles` * 8 channels."""

    problem: PatchProblem
    rows: int
    warps: int
    n_tiles: int

    @property
    def threads(self) -> int:
        return 32 * self.warps

    @property
    def patch(self) -> Pair:
        """Return the rows and columns of the image that the windows of a tile cover."""
        view: Window = self.problem.view
        height, width = (
            (size - 1) * stride + (kernel - 1) * dilation + 1
            for size, stride, kernel, dilation in zip(
                (self.rows, _WIDE), view.stride, view.kernel, view.dilation, strict=True
            )
        )
        return height, width

    @property
    def tiles(self) -> Pair:
        """Return the number of tiles vertically and horizontally."""
        height, width = self.problem.output
        return -(-height // self.rows), -(-width // _WIDE)

    @property
    def columns(self) -> int:
        """Number of output channels of all blocks."""
        return self.blocks[0] * self.n_tiles * PART

    @property
    def blocks(self) -> tuple[int, int]:
        across = -(-self.problem.outputs // (self.n_tiles * PART))
        return across, math.prod(self.tiles) * self.problem.batch

    @property
    def sums(self) -> int:
        """Number of sums per thread; the parts for remainders have separate sums."""
        return self.rows // self.warps * self.n_tiles * 4 * (1 + (self.problem.products > 1))

    @property
    def regions(self) -> tuple[Region, ...]:
        """Return the regions: the patch, the sums in its place, the weights, and window offsets."""
        steps, halves = self.problem.steps, math.prod(self.patch) * self.problem.pitch
        patch = Region("patch", "unsigned short", halves * (1 + self.problem.split_values))
        sums = Region("sums", "float", self.rows * _WIDE * (self.n_tiles * PART + 4))
        others = consecutive(
            ("weights", "uint4", steps * (1 + self.problem.split_weights) * self.n_tiles * 16),
            ("offsets", "int", steps * 2),
            start=max(patch.end, sums.end),
        )
        return patch, sums, *others

    def clocks(self, target: TileTarget) -> float:
        """Estimate the clocks of a tile: the multiprocessor's busy time, and its latency."""
        problem, clocks = self.problem, target.model.clocks
        per_unit = -(-math.prod(self.blocks) // target.compute_units)
        channel_blocks = math.prod(self.patch) * problem.chunks * 2
        halves, parts = 1 + problem.split_values, 1 + problem.split_weights
        loads = self.rows * halves + self.warps * self.n_tiles * parts / 2
        products = self.rows * self.n_tiles * problem.products
        each_step = max(products * clocks.product, loads * _MATRIX_CLOCKS)
        stored = self.rows * _WIDE * self.n_tiles * 2
        busy = (
            channel_blocks * _FILL_INSTRUCTIONS * clocks.instruction
            + problem.steps * each_step
            + stored * _FILL_INSTRUCTIONS * clocks.instruction
        )
        waits = (
            clocks.load * (2 + channel_blocks / (self.threads * 8)) + _STEP_CLOCKS * problem.steps
        )
        room = target.model.overlapped_blocks(self.threads, _REGISTERS, self.shared_bytes)
        resident = max(1, min(per_unit, room))
        return per_unit * busy + waits * -(-per_unit // resident)


def candidates(problem: PatchProblem) -> Iterator[PatchTile]:
    """Yield the tiles for a problem."""
    for warps in (8, 4, 2):
        for turns in (1, 2, 4):
            for n_tiles in (1, 2, 4, 8):
                tile = PatchTile(problem, warps * turns, warps, n_tiles)
                wasted = n_tiles > 1 and (n_tiles // 2) * PART >= problem.outputs
                if tile.shared_bytes <= _SHARED_BYTES and not wasted and tile.sums <= _MAX_SUMS:
                    yield tile
