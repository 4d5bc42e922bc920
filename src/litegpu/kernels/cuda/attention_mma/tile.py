"""Tiles of cuda/attention_mma: queries per warp, and the distribution of keys among warps."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

from litegpu.codegen import round_up
from litegpu.device_model import DeviceModel
from litegpu.kernels.cuda.tiles import Region, Tile, TileTarget, consecutive

_KEYS = 16
"""Number of keys per block; a warp processes one block of keys at a time."""
_MAX_KEY_WARPS = 16
_ROW_WARPS = 4
"""Warps per thread block, if each warp processes all keys of its queries and there are many
queries.
"""
_BUSY_WARPS = 8
"""Number of warps per multiprocessor that is sufficient to hide the latency of their loads."""
_MAX_REGISTERS = 255
_LANES = 32

# Clocks and bytes, from the instructions that NVRTC generates for compute capability 9.0, and from
# the times of the layers of ViT-Ti and Whisper on an H200: docs/decisions/0032.
_PRODUCT_CLOCKS = 6.0
"""Clocks between two matrix instructions of a warp scheduler."""
_PRODUCT_WAIT_CLOCKS = 33.0
"""Clocks between two matrix instructions that add to the same sums."""
_ISSUE_CLOCKS = 1.2
"""Clocks per instruction of a warp, while other warps wait."""
_ROW_INSTRUCTIONS = 50
"""Number of instructions for the softmax of four scores of a lane."""
_TURN_INSTRUCTIONS = 60
"""Number of instructions for addresses and the loop, per block of keys."""
_EXCHANGED_INSTRUCTIONS = 20
"""Number of instructions that move the scores of a row to one lane, if rows and columns were
swapped.
"""
_SOFTMAX_WAIT_CLOCKS = 350.0
"""Latency in clocks of the maxima, exponentials and sums of the softmax."""
_BEGIN_CLOCKS = 700.0
"""Latency in clocks of the first queries, keys and values."""
_JOIN_CLOCKS = 200.0
"""Clocks for barriers, and for transfers through shared memory."""
_CACHED_BYTES = 80.0
"""Bytes per clock from the L2 cache: twice its bandwidth, since half of the time is hidden."""
_BLOCK_CLOCKS = 0.53
"""Clocks between the starts of two thread blocks, anywhere on the device."""
_EVEN_CLOCKS = 1e-3
"""Penalty per warp, so that among equally fast tiles the tile with the fewest warps is selected."""


@dataclass(frozen=True, slots=True)
class AttentionProblem:
    """The sizes that determine the tiles, and whether floats are `split` into two tf32 parts."""

    products: int
    rows: int
    keys: int
    depth: int
    width: int
    """Number of channels of a value, and of the result."""
    key_bytes: int
    """Number of bytes of a key and a value together."""
    split: bool

    @property
    def key_blocks(self) -> int:
        return -(-self.keys // _KEYS)

    @property
    def depths(self) -> int:
        """Number of groups of a query's channels, 4 channels per lane."""
        return -(-self.depth // 16)

    @property
    def widths(self) -> int:
        """Number of groups of a value's channels, 4 channels per lane."""
        return -(-self.width // 32)


@dataclass(frozen=True, slots=True)
class AttentionTile(Tile):
    """A block whose warps have `queries` queries each and process `turn` blocks of keys at a time.

    Either `key_warps` warps divide the keys of the same queries, or `row_warps` warps of a block
    have different queries.
    """

    problem: AttentionProblem
    queries: int
    turn: int
    key_warps: int = 1
    row_warps: int = 1
    crowded: bool = False
    """Whether other warps of a multiprocessor hide the latency of a warp."""

    @property
    def once(self) -> bool:
        """Whether a warp needs only one iteration, and holds all of its scores."""
        return self.key_warps * self.turn >= self.problem.key_blocks

    @property
    def turns(self) -> int:
        return -(-self.problem.key_blocks // (self.key_warps * self.turn))

    @property
    def tiles(self) -> int:
        """Number of groups of queries per attention product."""
        return -(-self.problem.rows // self.queries)

    @property
    def threads(self) -> int:
        return _LANES * self.key_warps * self.row_warps

    @property
    def blocks(self) -> tuple[int, int]:
        return 1, -(-self.tiles * self.problem.products // self.row_warps)

    @property
    def pitch(self) -> int:
        """Distance between the sums of two queries in shared memory, in blocks of 4 sums."""
        return 8 * self.problem.widths + 1

    @property
    def regions(self) -> tuple[Region, ...]:
        """Return the regions that warps exchange: partial sums, and two numbers per query."""
        if self.key_warps == 1:
            return ()
        count = self.key_warps * self.queries
        return consecutive(
            ("sums", "float4", count * self.pitch),
            ("maxima", "float", count),
            ("totals", "float", count),
        )

    @property
    def registers(self) -> int:
        """Estimate the registers per thread."""
        return min(math.ceil(self._wanted_registers), _MAX_REGISTERS)

    @property
    def _wanted_registers(self) -> float:
        """The registers that would hold all loads in flight (60 kernels, NVRTC 13, sm_90).

        The compiler spills registers beyond the limit to local memory.
        """
        problem, rows = self.problem, self.queries // 8
        query, scores = 4 * problem.depths * rows, 4 * rows * self.turn
        loaded = (8 * problem.depths + 16 * problem.widths) * self.turn
        if self.once:  # keys are no longer needed after the sums
            return query + loaded + scores + 24
        parts = 2 if problem.split else 1
        found = parts * query + loaded + scores + 8 * problem.widths * rows + 16
        return found if self.crowded else 1.25 * found

    @property
    def ahead(self) -> bool:
        """Whether the kernel prefetches the keys of the next iteration.

        With many warps, the additional registers cost more time than prefetching saves. On an H200,
        ViT-Ti with a batch of 64 took 9 % longer with prefetching, because two blocks instead of
        three were resident.
        """
        enough = self._wanted_registers <= _MAX_REGISTERS
        return not self.once and not self.crowded and enough

    def has_registers(self, model: DeviceModel) -> bool:
        """Whether the threads of a block can get the registers that they need, or the maximum."""
        warps = round_up(self.threads // _LANES, 4)  # the same number for each scheduler
        limit = min(model.registers // (warps * _LANES) // 8 * 8, _MAX_REGISTERS)
        return self._wanted_registers <= limit or (limit == _MAX_REGISTERS and self.turn == 1)

    def clocks(self, target: TileTarget) -> float:
        """Estimate the clocks of a tile: the multiprocessor's busy time, or its warps' latency."""
        problem = self.problem
        per_unit = -(-self.blocks[1] // target.compute_units)
        room = target.model.resident_blocks(self.threads, self.registers, self.shared_bytes)
        waves = -(-per_unit // max(1, min(per_unit, room)))
        warps = self.key_warps * self.row_warps
        at_once = -(-warps * min(per_unit, max(room, 1)) // 4)
        parts = 3 if problem.split else 1
        rows = self.queries // 8
        products = parts * rows * (2 * problem.depths + 4 * problem.widths)
        busy = max(products * _PRODUCT_CLOCKS, self._instructions(products) * _ISSUE_CLOCKS)
        waits = 4 * parts * _PRODUCT_WAIT_CLOCKS + _SOFTMAX_WAIT_CLOCKS
        # With few warps, each also waits for its own instructions.
        turns = self.turns * max(at_once * busy * self.turn, busy * self.turn + waits)
        once = _BEGIN_CLOCKS + (self._joining() if self.key_warps > 1 else 0.0)
        # Warps with other queries of the same product find its keys in the L1 cache.
        loads = per_unit * problem.keys * problem.key_bytes / _CACHED_BYTES
        begin = self.blocks[1] * _BLOCK_CLOCKS + warps * _EVEN_CLOCKS
        return waves * (once + turns) + loads + begin

    def _instructions(self, products: int) -> float:
        """Return the number of instructions of a warp per block of keys."""
        problem, rows = self.problem, self.queries // 8
        loaded = 8 * problem.depths + 16 * problem.widths
        converted = (3 if problem.split else 1) * (loaded + 4 * rows)
        added = rows * (4 * problem.depths + 8 * problem.widths * (1 if self.once else 2))
        softmax = rows * _ROW_INSTRUCTIONS + (_EXCHANGED_INSTRUCTIONS if rows == 1 else 0)
        return products + converted + added + softmax + loaded / 4 + _TURN_INSTRUCTIONS

    def _joining(self) -> float:
        """Return the clocks for adding the results of a block's warps."""
        items = self.queries * 8 * self.problem.widths
        rounds = -(-items // (4 * _LANES))
        return _JOIN_CLOCKS + 7.0 * self.key_warps * rounds


def candidates(problem: AttentionProblem, target: TileTarget) -> Iterator[AttentionTile]:
    """Yield the tiles that suit a problem and whose threads have enough registers.

    For many queries, the function yields the tile with just enough warps if other blocks are
    resident.
    """
    tile, busy = AttentionTile(problem, 16, 1, crowded=True), target.compute_units * _BUSY_WARPS
    warps = tile.tiles * problem.products
    if 2 * warps >= busy and problem.key_blocks >= 2 and tile.has_registers(target.model):
        row_warps = _ROW_WARPS if warps >= busy else 1
        yield replace(tile, row_warps=row_warps, key_warps=2 if row_warps == 1 else 1)
        return
    for queries in (16, 8):
        for turn in (1, 2):
            groups = -(-problem.key_blocks // turn)
            if turn > groups:
                continue
            for tile in _shared_out(problem, queries, turn, groups):
                if tile.has_registers(target.model):
                    yield tile


def _shared_out(
    problem: AttentionProblem, queries: int, turn: int, groups: int
) -> Iterator[AttentionTile]:
    """Yield the ways to divide the keys of a product among warps, in `groups`."""
    for row_warps in (1, _ROW_WARPS):
        yield AttentionTile(problem, queries, turn, row_warps=row_warps)
    # As many warps as change the number of iterations, or powers of 2 if there are many.
    evenly = {-(-groups // turns) for turns in (1, 2, 3)}
    for key_warps in sorted(evenly | {2, 4, 8, 16}):
        if 1 < key_warps <= min(groups, _MAX_KEY_WARPS):
            yield AttentionTile(problem, queries, turn, key_warps)
