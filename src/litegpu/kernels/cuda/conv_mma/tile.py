"""Tiles of cuda/conv_mma: the pixels that a block gathers, and how its warps multiply them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from litegpu.codegen import round_up
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

_OPERAND_BYTES = 100 << 10
"""Maximum shared memory in bytes for a block's input: on large GPUs, two blocks fit a
multiprocessor.
"""
_NOTES = 12
"""Number of words in which up to 8 blocks exchange the range of values, in addition to one per
warp.
"""
_OTHER_BYTES = 384
"""Maximum shared memory in bytes in addition to the input and the sums."""
_LOADS_OF_FLOATS = 4
"""Number of loads per piece of the input that is not a whole vector in memory."""

# Clocks and bytes in addition to device_model.Clocks, fitted to the times of 855 kernels on an H100
# (44 layers, all kinds of tiles; benchmarks/conv_tiles.py, 1755 MHz), mainly the fast ones: the
# mean error is 9 %, and the selected tile takes 2 % longer than the best one of a layer. In a chain
# of launches, each takes some 700 clocks more, which no estimate includes.
_INSTRUCTION_CLOCKS = 2.0
"""Clocks between two instructions of a thread, including those of its other items in between."""
_PRODUCT_CLOCKS = 1.4
"""Clocks per warp product of 16 x 16 halves by 16 x 8, with other warps active."""
_STEP_CLOCKS = 60.0
"""Latency in clocks of values and previous products for the warp that computes a k-step."""
_SUM_CLOCKS = 0.085
"""Clocks per sum that a warp stores in shared memory and a thread adds."""
_SUM_WAIT_CLOCKS = 22.0
"""Latency in clocks of a sum that a thread adds."""
_BLOCK_CLOCKS = 830.0
"""Latency in clocks of the blocks of a multiprocessor when they start, load and end."""
_BEGIN_CLOCKS = 0.3
"""Clocks between the starts of two blocks, anywhere on the device."""
_SHARE_CLOCKS_EACH = 215.0
"""Synchronization overhead in clocks for each block that shares an operand with others."""
_SPLIT_CLOCKS = 420.0
"""Overhead in clocks of blocks that divide the k-steps, for synchronization and addition."""
_LATE_BYTES = 85.0
"""Bytes per clock of weights that a block loads during multiplication, not before."""
_CACHED_BYTES = 64.0
"""Maximum bytes per clock that a multiprocessor reads from the L2 cache."""

# Registers per thread, from 758 of these kernels compiled by NVRTC 13.5 for compute capability 9.0:
# for 93 % of them, the number of resident blocks is as estimated.
_REGISTERS = 16
"""Number of registers per thread in addition to weights and sums."""
_LOAD_REGISTERS = 9.5
"""Registers per load of a piece: the value, its address, and (for a depthwise convolution) its tap.
"""
_MAX_REGISTERS = 256


@dataclass(frozen=True, slots=True)
class MmaProblem:
    """The sizes that determine the tiles, and the cost of a piece of the input."""

    rows: int
    channels: int
    steps: int
    parts: int
    """Number of halves per value: its split parts, or the size of a float in halves."""
    weight_parts: int
    products: int
    """Number of instructions that multiply 16 pixels by 16 inputs by 8 columns, in units of
    half-precision instructions.
    """
    loads: float
    """Number of loads per piece of the input, such as a channel block."""
    instructions: float
    """Number of instructions per piece of the input."""
    pieces: int = 4
    """Number of pieces of channels in which a block loads a k-step of the input: blocks of 4
    halves.
    """
    ranged: bool = False
    """Whether blocks determine the range of their values and exchange it in a cluster."""
    neighbours: bool = False
    """Whether pieces of adjacent pixels share their loads."""

    @property
    def most_turns(self) -> int:
        """Maximum number of unrolled iterations of the gathering loop.

        The maximum number of iterations is smaller if a depthwise convolution computes the input.
        """
        return 8 if self.loads <= _LOADS_OF_FLOATS else 4

    @property
    def splits_here(self) -> bool:
        """Whether weights are split in registers, as in tf32, whose products count twice.

        Halves are split in advance: two parts of a value and of a weight need three products.
        """
        return self.products > 3


@dataclass(frozen=True, slots=True)
class MmaTile(Tile):
    """A block that computes `pixels` x `columns` outputs, divided among its warps."""

    problem: MmaProblem
    pixels: int
    warps_m: int
    warps_n: int
    warps_k: int
    n_tiles: int
    """Number of columns per warp, in units of 8 (the columns of an instruction)."""
    chunk: int
    """Number of k-steps (16 halves or 32 bytes) in shared memory at a time."""
    steps: int
    """Number of k-steps of a block, padded to whole chunks."""
    cluster: int
    """Number of blocks that share the input, or that divide the k-steps."""
    prefetch: int
    """Number of k-steps whose weights are prefetched to registers."""
    split_k: bool = False

    @property
    def depth(self) -> int:
        """Number of blocks that divide the k-steps."""
        return self.cluster if self.split_k else 1

    @property
    def all_steps(self) -> int:
        return self.steps * self.depth

    @property
    def columns(self) -> int:
        return self.warps_n * self.n_tiles * 8

    @property
    def threads(self) -> int:
        return 32 * self.warps_m * self.warps_n * self.warps_k

    @property
    def sharing(self) -> int:
        """Number of blocks that share the input."""
        return 1 if self.split_k else self.cluster

    @property
    def blocks(self) -> tuple[int, int]:
        across = self.all_columns // self.columns
        return across * self.depth, -(-self.problem.rows // self.pixels)

    @property
    def all_columns(self) -> int:
        """Number of columns of all blocks; the last blocks may only pad a cluster."""
        return round_up(self.problem.channels, self.columns * self.sharing)

    @property
    def cluster_size(self) -> int:
        return self.cluster

    @property
    def pitch(self) -> int:
        """Distance between rows of sums: an offset of half of the shared-memory banks."""
        return self.columns + (16 - self.columns) % 32

    @property
    def each_sums(self) -> int:
        """Number of blocks of 4 sums that each thread block of a cluster adds."""
        return -(-min(self.pixels, self.problem.rows) * self.columns // 4 // self.depth)

    @property
    def regions(self) -> tuple[Region, ...]:
        """Return the regions: input, sums (in its place, or of all blocks after it), notes, inbox.

        The region `notes` holds the range of values; `inbox` counts the data that has arrived from
        other blocks.
        """
        halves = self.pixels * (self.chunk * STEP + 8) * self.problem.parts
        operand = Region("operand", "unsigned short", halves)
        if self.split_k:
            each = self.depth * self.warps_k * self.each_sums
            sums = Region("sent", "float4", each, operand.end)
        else:
            sums = Region("sums", "float", self.warps_k * self.pixels * self.pitch)
        ranged = self.problem.ranged and self.sharing > 1
        words = _NOTES + self.sharing * self.threads // 32 if ranged else 0
        others = consecutive(
            ("notes", "unsigned int", words),
            ("inbox", "unsigned long long", int(self.cluster > 1)),
            start=max(operand.end, sums.end),
        )
        return operand, sums, *others

    @property
    def registers(self) -> int:
        """Estimate the registers per thread.

        Weights are in flight from the start, so they need registers while the block gathers its
        input.
        """
        problem = self.problem
        weights = self.prefetch * self.n_tiles * 2 * problem.weight_parts
        weights += weights // 2 * problem.splits_here
        # Products of the remainder parts have separate sums.
        kinds = 1 + (problem.products > 1)
        sums = self.pixels // 16 // self.warps_m * self.n_tiles * 4 * kinds
        others = max(sums + _REGISTERS, math.ceil(problem.loads * _LOAD_REGISTERS))
        return min(round_up(weights + others, 8), _MAX_REGISTERS)

    def min_blocks(self, target: TileTarget) -> int:
        """The number of blocks per multiprocessor, if there are registers for these blocks.

        If `min_blocks` is one, the threads of the block may use all registers that they need.
        """
        share = -(-math.prod(self.blocks) // target.compute_units)
        room = target.model.registers // (self.threads * self.registers)
        return max(min(share, room), 1)

    @property
    def gathered(self) -> float:
        """Number of pieces of the input that a block gathers."""
        rows = min(self.pixels, self.problem.rows)
        return rows * self.steps * self.problem.pieces / self.sharing

    @property
    def run(self) -> int:
        """Number of adjacent pixels that a thread gathers together: two, if no thread idles."""
        rows = min(self.pixels, self.problem.rows)
        pieces = rows * self.chunk * self.problem.pieces // self.sharing
        return 2 if self.problem.neighbours and pieces >= 2 * self.threads else 1

    @property
    def turns(self) -> int:
        """Number of pieces that a thread gathers, including padding of the last iteration."""
        chunks = self.steps // self.chunk
        pieces = math.ceil(self.gathered / chunks / self.threads)
        rounds = -(-pieces // self.problem.most_turns)
        return chunks * rounds * -(-pieces // rounds)

    @property
    def busy_turns(self) -> float:
        """Number of iterations that keep a multiprocessor busy: warps without pieces are idle."""
        chunks = self.steps // self.chunk
        lanes = round_up(math.ceil(self.gathered / chunks), 32)
        return chunks * lanes / self.threads if lanes < self.threads else self.turns

    @property
    def prefetched(self) -> float:
        """The fraction of a block's weights that is loaded before the kernel's first wait."""
        return min(self.prefetch * self.warps_k / self.steps, 1.0)

    def clocks(self, target: TileTarget) -> float:
        """Estimate the clocks of a tile: the multiprocessor's busy time, and its latency."""
        problem, clocks = self.problem, target.model.clocks
        blocks = math.prod(self.blocks)
        per_unit = -(-blocks // units_for(self.cluster, target))
        room = target.model.resident_blocks(self.threads, self.registers, self.shared_bytes)
        # The blocks of a multiprocessor wait at the same time.
        waves = -(-per_unit // max(1, min(per_unit, room)))
        rows, shared = min(self.pixels, problem.rows), self.sharing
        weights = self.columns * self.steps * STEP * 2 * problem.weight_parts
        products = self.steps * (self.pixels // 16) * (self.columns // 8) * problem.products
        sums = rows * self.columns * self.warps_k
        exchanged = rows * self.steps * STEP * 2 * problem.parts if shared > 1 else 0
        exchanged += sums * 4 if self.split_k else 0
        # Either many warps keep a multiprocessor busy, or few warps wait for their own
        # instructions.
        gathering = problem.instructions * max(
            per_unit * self.busy_turns * self.threads * clocks.instruction,
            waves * self.turns * _INSTRUCTION_CLOCKS,
        )
        busy = max(
            gathering + per_unit * (products * _PRODUCT_CLOCKS + sums * _SUM_CLOCKS),
            per_unit * (self.gathered * problem.loads * 16 + weights) / _CACHED_BYTES,
        )
        waits = _BLOCK_CLOCKS + (1 - self.prefetched) * weights / _LATE_BYTES
        waits += _STEP_CLOCKS * self.steps / self.warps_k + _SUM_WAIT_CLOCKS * sums / self.threads
        if shared > 1:
            waits += _SHARE_CLOCKS_EACH * shared
        if self.split_k:
            waits += _SPLIT_CLOCKS
        exchange = blocks * exchanged / clocks.remote_bytes
        return busy + waves * waits + exchange + blocks * _BEGIN_CLOCKS


_IDLE = 0.05
"""Maximum fraction of blocks that only pad clusters."""
_WEIGHT_REGISTERS = 64
"""Number of registers per thread for weights in flight."""


def best_tiles(problem: MmaProblem, target: TileTarget) -> list[MmaTile] | Rejected:
    """Return the best tiles for a problem, to be measured; see tiles.choose.

    The function caches its results: models repeat layers, and kernel selection requests the tiles
    of each layer several times.
    """
    found = _best_tiles(problem, TileFacts.of(target))
    return found if isinstance(found, Rejected) else list(found)


@lru_cache(maxsize=1024)
def _best_tiles(problem: MmaProblem, target: TileFacts) -> tuple[MmaTile, ...] | Rejected:
    found = choose(candidates(problem, target), target)
    return found if isinstance(found, Rejected) else tuple(found)


def candidates(problem: MmaProblem, target: TileTarget) -> Iterator[MmaTile]:
    """Yield the tiles for a problem, some of them more than once."""
    for pixels, warps_m in ((16, 1), (32, 1), (32, 2), (64, 2), (64, 4), (128, 4), (128, 8)):
        for warps_n, n_tiles in ((1, 2), (2, 2), (4, 2), (1, 4), (2, 4), (4, 4), (8, 2), (8, 4)):
            columns = warps_n * n_tiles * 8
            if columns >= 2 * round_up(problem.channels, 16) or warps_m * warps_n > 8:
                continue
            if pixels // 16 // warps_m * n_tiles > 8:  # the sums would not fit the registers
                continue
            shape = (pixels, warps_m, warps_n, n_tiles)
            tile = _fill_in(problem, problem.steps, target, *shape)
            if tile is not None:
                yield tile
                if target.model.clusters:
                    yield replace(tile, cluster=_largest_cluster(problem, tile))
                    yield from _deep_tiles(problem, target, *shape)


def _deep_tiles(
    problem: MmaProblem, target: TileTarget, pixels: int, warps_m: int, warps_n: int, n_tiles: int
) -> Iterator[MmaTile]:
    """Yield the ways to divide the k-steps of a tile among 2, 4 or 8 blocks."""
    for depth in (2, 4, 8):
        steps = -(-problem.steps // depth)
        shape = (pixels, warps_m, warps_n, n_tiles)
        deep = _fill_in(problem, steps, target, *shape, depth) if steps > 1 else None
        # Each block reads the sums of all warps of all other blocks.
        if deep is not None and deep.warps_k <= 2:
            yield deep


def _largest_cluster(problem: MmaProblem, tile: MmaTile) -> int:
    """Return how many blocks can share an input: the blocks of one row of tiles.

    At most a small fraction of the blocks, _IDLE, is idle.
    """
    blocks, pieces = -(-problem.channels // tile.columns), tile.chunk * problem.pieces
    most_blocks = blocks * (1 + _IDLE)
    return next(
        c for c in range(8, 0, -1) if round_up(blocks, c) <= most_blocks and pieces % c == 0
    )


def _fill_in(
    problem: MmaProblem,
    steps: int,
    target: TileTarget,
    pixels: int,
    warps_m: int,
    warps_n: int,
    n_tiles: int,
    depth: int = 1,
) -> MmaTile | None:
    """Return a complete tile whose block computes `steps` k-steps, as one of `depth` blocks.

    The result is None if not even one chunk of the tile's input fits shared memory.
    """
    warps_k = max(8 // (warps_m * warps_n), 1)
    while warps_k > 1 and steps < 2 * warps_k:
        warps_k //= 2
    prefetch = _WEIGHT_REGISTERS // (2 * n_tiles * problem.weight_parts)
    whole = round_up(steps, warps_k)
    most = min(_OPERAND_BYTES, target.local_memory_bytes - _OTHER_BYTES)
    limit = max((most // (pixels * 2 * problem.parts) - 8) // STEP, 0)
    chunk = whole
    if whole > limit:
        # Chunks must hold a multiple of the weights prefetched to registers.
        prefetch = min(prefetch, limit // warps_k)
        chunk = limit // (warps_k * prefetch) * warps_k * prefetch if prefetch else 0
    if not chunk:
        return None
    steps = round_up(whole, chunk)
    prefetch = min(prefetch, steps // warps_k)
    warps = (warps_m, warps_n, warps_k)
    return MmaTile(
        *(problem, pixels, *warps, n_tiles, chunk, steps, depth, prefetch), split_k=depth > 1
    )
