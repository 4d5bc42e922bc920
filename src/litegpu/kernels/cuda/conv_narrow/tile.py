"""Tiles of cuda/conv_narrow: rows of pixels, and the location of their weights."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from litegpu.codegen import Storage, round_up
from litegpu.graph import DType
from litegpu.kernels.cuda.conv_narrow.patch import WIDE, NarrowProblem, Patch
from litegpu.kernels.cuda.tiles import Region, Tile, TileTarget, consecutive
from litegpu.ops.base import Target
from litegpu.ops.common.window import Pair

_WEIGHT_REGISTERS = 80
"""Maximum number of registers per thread for weights; larger weights are in shared memory."""
_OTHER_REGISTERS = 32
"""Registers per thread in addition to sums and weights."""
_MAX_SUMS = 64
"""Maximum number of sums per thread, in registers."""
_SHARED_BYTES = 72 << 10
"""Maximum shared memory in bytes per block: on large GPUs, three blocks fit a multiprocessor."""
_BLOCKS_PER_UNIT = 2
"""Minimum number of blocks per multiprocessor: while one block loads its patch, another multiplies.
"""
_STORED_TOGETHER = {False: (DType.FLOAT16,), True: (DType.INT8, DType.UINT8)}
"""Result types that a lane can store as whole words, for floats (False) and for bytes (True)."""
_TURNS = 2
"""Number of iterations per warp that amortize loading the patch and the weights."""

# Clocks of a multiprocessor, from the instructions of the compiled kernels.
_WAIT_CLOCKS = 900.0
"""Latency in clocks from the first to the last load of a patch, from device memory."""
_ISSUED_PER_CLOCK = 4.0
"""Number of warp instructions that a multiprocessor issues per clock."""
_BLOCK_INSTRUCTIONS = 120.0
"""Number of instructions per warp for addresses and weights."""
_FILL_INSTRUCTIONS = 45.0
"""Number of instructions per unit of the patch, from its address to its halves; splitting adds half
as many.
"""
_STORE_INSTRUCTIONS = 35.0
_STORE_BYTES_INSTRUCTIONS = 24.0
"""Number of instructions per 4 channels of a pixel, from sums to the stored value (floats or
halves; bytes).
"""
_PRODUCT_CLOCKS = 2.0
"""Clocks of matrix instructions whose operands are ready; Clocks.product includes the wait for
operands.
"""
_SHARED_CLOCKS = 1.0
"""Clocks per word of shared memory that a lane loads."""
_TURN_INSTRUCTIONS = 40.0
_STEP_CLOCKS = 40.0
"""Latency in clocks of a warp for its values and the sums of the previous step."""
_TURN_CLOCKS = 200.0
"""Clocks per iteration of a warp, in addition to its steps."""


@dataclass(frozen=True, slots=True)
class NarrowTile(Tile):
    """A block of `warps_m` x `warps_n` warps that computes `rows` rows of `across` * 16 pixels.

    Each warp computes 16 pixels x `pairs` * 16 channels, in several iterations.
    """

    problem: NarrowProblem
    rows: int
    across: int
    warps_m: int
    warps_n: int
    pairs: int
    most_registers: ClassVar[int] = 128

    @property
    def threads(self) -> int:
        return 32 * self.warps_m * self.warps_n

    @property
    def turns(self) -> int:
        """Return the number of iterations in which a warp computes its pixels."""
        return -(-self.rows * self.across // self.warps_m)

    @property
    def patch(self) -> Patch:
        """Return the patch of the image that a block keeps in shared memory."""
        view = self.problem.view
        rows = (self.rows - 1) * view.stride[0] + (view.kernel[0] - 1) * view.dilation[0] + 1
        width = (self.across * WIDE - 1) * self.problem.step + self.problem.run
        return Patch(self.problem, rows, width)

    @property
    def extent(self) -> Pair:
        """Rows and columns of the result from one tile's first pixel to the next tile's."""
        return self.rows, self.across * WIDE

    @property
    def tiles(self) -> Pair:
        """Return the number of tiles vertically and horizontally."""
        (height, width), (down, across) = self.problem.output, self.extent
        return -(-height // down), -(-width // across)

    @property
    def blocks(self) -> tuple[int, int]:
        across = -(-self.problem.pairs // (self.warps_n * self.pairs))
        return across, math.prod(self.tiles) * self.problem.batch

    @property
    def all_pairs(self) -> int:
        """Number of pairs of 8 columns in all blocks."""
        return self.blocks[0] * self.warps_n * self.pairs

    @property
    def in_registers(self) -> bool:
        """Whether each thread keeps its weights in registers."""
        return self.problem.steps * self.problem.parts * self.pairs * 4 <= _WEIGHT_REGISTERS

    @property
    def sums(self) -> int:
        """Return the sums per thread for 16 pixels; the parts for remainders have separate sums."""
        return self.pairs * 8 * (1 + (self.problem.products > 1))

    @property
    def m_tiles(self) -> int:
        """Return the number of groups of 16 pixels for which weights are read once."""
        # For bytes, there are also the bias and the requantization factors.
        room = _MAX_SUMS // (1 + self.problem.of_bytes)
        most = max(1, min(room // self.sums, self.turns))
        return 1 if self.in_registers else most

    @property
    def retained(self) -> int:
        """Return the registers per thread for values that persist between iterations."""
        return 0

    @property
    def registers(self) -> int:
        """Return the registers per thread."""
        steps = self.problem.steps if self.in_registers else 2
        weights = steps * self.problem.parts * self.pairs * 4
        sums = self.sums * self.m_tiles + self.sums * self.problem.of_bytes
        wanted = weights + sums + self.retained + _OTHER_REGISTERS
        return min(round_up(wanted, 8), self.most_registers)

    @property
    def weight_units(self) -> int:
        """Return the shared memory for weights, in units of 16 bytes."""
        whole = self.problem.steps * self.problem.parts * self.warps_n * self.pairs * 32
        return 0 if self.in_registers else whole

    @property
    def regions(self) -> tuple[Region, ...]:
        """Return the shared memory regions of a block: its patch of the image, and its weights."""
        return consecutive(
            ("patch", "unsigned short", self.patch.all_halves),
            ("weights", "uint4", self.weight_units),
        )

    @property
    def finishing(self) -> float:
        """Number of instructions per iteration that convert the sums to the stored values."""
        each = _STORE_BYTES_INSTRUCTIONS if self.problem.of_bytes else _STORE_INSTRUCTIONS
        return self.pairs * 2 * each

    @property
    def stored(self) -> float:
        """Number of bytes stored per iteration, if results are halves or bytes."""
        return self.pairs * (512 >> self.problem.of_bytes)

    def together(self, dst: Storage) -> int:
        """Return the number of 4-channel blocks that a lane can store together as whole words.

        The blocks that a lane stores together are adjacent bytes or halves, up to 16 bytes. The
        result is 0 if a single block is no whole word, or if the epilogue returns other types.
        """
        if dst.dtype not in _STORED_TOGETHER[self.problem.of_bytes]:
            return 0
        most = min(self.pairs, 4 // dst.dtype.size)
        fitting = (
            blocks
            for blocks in (4, 2, 1)
            if blocks <= most and not dst.channels % (blocks * 4) and dst.aligned(blocks * 4)
        )
        return next(fitting, 0)

    @property
    def pool_words(self) -> Mapping[str, Any] | None:
        """Return the template variables of a fused pool; none without a pool."""
        return None

    def min_blocks(self, target: TileTarget) -> int:
        return target.model.resident_blocks(self.threads, self.registers, 0)

    def clocks(self, target: TileTarget) -> float:
        """Estimate the clocks of a tile: the multiprocessor's busy time, and its latency."""
        problem, clocks = self.problem, target.model.clocks
        per_unit = -(-math.prod(self.blocks) // target.compute_units)
        patch, steps = self.patch, problem.steps
        warps = self.warps_m * self.warps_n
        filled = patch.rows * patch.units / 32
        turns = self.turns * warps
        products = steps * self.pairs * 2 * problem.products
        values = steps * 4 * (1 + problem.split_values)
        weights = steps * self.pairs * 4 * problem.parts / self.m_tiles
        weights *= not self.in_registers
        issued = products + values + weights / 4 + self.finishing + _TURN_INSTRUCTIONS
        fill = filled * _FILL_INSTRUCTIONS * (1 + problem.split_values / 2) / _ISSUED_PER_CLOCK
        each_turn = max(
            issued / _ISSUED_PER_CLOCK,
            products * _PRODUCT_CLOCKS,
            (values + weights) * _SHARED_CLOCKS,
        )
        room = target.model.overlapped_blocks(self.threads, self.registers, self.shared_bytes)
        resident = max(1, min(per_unit, room))
        size = 4 if problem.stored == "float32" else 2
        read = patch.rows * patch.units * patch.unit * size / clocks.memory_bytes
        begin = warps * _BLOCK_INSTRUCTIONS / _ISSUED_PER_CLOCK
        begin += warps * steps * problem.parts * self.pairs * 4 * _SHARED_CLOCKS
        worked = begin + fill + turns * each_turn
        # Weights are copied from the L2 cache.
        moved = read + turns * self.stored / clocks.memory_bytes
        moved += 16 * self.weight_units / clocks.cached_bytes
        # With more blocks, one more often computes while another waits for memory.
        busy = max(worked, moved) + min(worked, moved) / resident
        # The first blocks all load at the same time, without overlap; the last ones run alone.
        last = self.turns * (steps * _STEP_CLOCKS + _TURN_CLOCKS) / 2
        waits = _WAIT_CLOCKS * -(-per_unit // resident)
        return per_unit * busy + resident * read + last + waits


def candidates(problem: NarrowProblem, target: Target) -> Iterator[NarrowTile]:
    """Yield the tiles for a problem that keep the device busy."""
    tiles_across = -(-problem.output[1] // WIDE)
    for shape in shapes(problem, tiles_across, (1, 2, 4, 8)):
        tile = NarrowTile(problem, *shape)
        if is_possible(tile, target):
            yield tile


def shapes(
    problem: NarrowProblem, tiles_across: int, heights: Iterable[int]
) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield the possible tiles: rows, tiles across, warps_m, warps_n, pairs."""
    widths = sorted({-(-tiles_across // parts) for parts in (1, 2, 3, 4, 8)})
    for warps_n, pairs in ((1, 1), (1, 2), (2, 2), (1, 4), (2, 1)):
        if warps_n * pairs >= 2 * problem.pairs:
            continue
        for warps, rows, across in itertools.product((4, 8), heights, widths):
            yield rows, across, warps // warps_n, warps_n, pairs


def is_possible(tile: NarrowTile, target: Target) -> bool:
    """Whether a tile yields enough blocks, and the device has enough resources for them."""
    busy = math.prod(tile.blocks) >= _BLOCKS_PER_UNIT * target.compute_units
    return busy and tile.turns >= _TURNS and tile.shared_bytes <= _SHARED_BYTES
