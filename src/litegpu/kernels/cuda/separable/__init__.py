"""Depthwise and pointwise convolutions of many pixels as one kernel of warp groups."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from litegpu.codegen import round_up
from litegpu.codegen.storage import Shape4
from litegpu.graph import Node
from litegpu.kernels.base import IN_MEMORY, Implementation, Plan, Rejected
from litegpu.kernels.cuda import tensor_cores
from litegpu.kernels.cuda.conv_tile import pack_tiles
from litegpu.kernels.cuda.halves import halves_of, padded
from litegpu.ops.base import KernelRequest, LowerContext, Target
from litegpu.ops.conv_spec import ConvSpec, Depthwise, pixels_of
from litegpu.ops.window import LOADS_AT_ONCE, Pair, Window, readers

_ITEM = (2, 4)
"""Lines x pixels of the depthwise convolution that a thread makes at a time."""
_CHANNELS = 32
"""Channels of a k-tile."""
_SHARED_LIMIT = 227 << 10
"""Shared memory of a multiprocessor that blocks can have, each with 1 KiB of the system's."""
_SUMS_BYTES = 16 * 40 * 4 // 32
"""Memory for each thread that sums pass through: a warp stores 16 rows, 40 floats apart."""
_MOST_SUMS = 64
"""Sums of a thread, in registers."""
_THREADS = 512
"""Threads of a multiprocessor that have registers enough."""
_FILLED = 0.6
"""The part of the patches' pixels that must be there for them to pay."""
_FEWEST_ELEMENTS = 1 << 21
"""Values that at fp16 would be stored as half, were they stored."""
_FEWEST_PIXELS = 1 << 15
"""Pixels that keep a large GPU busy with two patches for each multiprocessor."""
_MOST_CHANNELS = 256
"""Channels of a patch that leave room for two blocks in a multiprocessor's shared memory."""
_MOST_TAPS = 25
"""Multiplications for each result that may be written out in the kernel."""


@dataclass(frozen=True, slots=True)
class Tile:
    """A block makes `patch` lines x pixels, `columns` outputs at a time, of `channels`."""

    patch: Pair
    columns: int
    threads: int
    channels: int
    outputs: int
    depth: int
    """k-tiles that are multiplied in one step."""
    ahead: int
    """Steps whose weights are on their way while those of one are multiplied."""

    @property
    def pixels(self) -> int:
        return math.prod(self.patch)

    @property
    def k_tiles(self) -> int:
        return -(-self.channels // _CHANNELS)

    @property
    def steps(self) -> int:
        return self.k_tiles // self.depth * -(-self.outputs // self.columns)

    @property
    def slots(self) -> int:
        """Steps whose weights lie in shared memory.

        A slot is filled again one step late: the multiplication before may still read it.
        """
        return min(self.ahead + 2, self.steps)

    @property
    def shared_bytes(self) -> int:
        """Bytes for the patch, the weights, the bias, and the sums on their way to memory."""
        weights = self.slots * self.depth * self.columns
        bias = 4 * round_up(self.outputs, self.columns)
        tiles = (self.k_tiles * self.pixels + weights) * _CHANNELS * 2
        return tiles + self.threads * _SUMS_BYTES + bias

    @property
    def side_by_side(self) -> int:
        """Blocks that a multiprocessor has room for, in memory and registers."""
        return min(_SHARED_LIMIT // (self.shared_bytes + 1024), _THREADS // self.threads)


def _blocks(patch: Pair, made: Shape4) -> Pair:
    """Return how many patches lie below each other, and side by side."""
    n, height, width, _ = made
    lines = n * round_up(height, _ITEM[0])
    return -(-lines // patch[0]), -(-width // patch[1])


def _wasted(patch: Pair, made: Shape4) -> int:
    """Return how many pixels of all patches lie outside of the images."""
    return math.prod(_blocks(patch, made)) * math.prod(patch) - pixels_of(made)


class Separable(Implementation):
    """Makes all outputs of a patch of pixels, so that nothing is computed twice: warp groups."""

    name = "cuda/separable"

    def plan(self, spec: ConvSpec, target: Target) -> Plan | Rejected:
        made = spec.depthwise
        if made is None:
            return IN_MEMORY
        obstacle = tensor_cores.obstacle(spec, target) or _obstacle(made, spec, target)
        if obstacle is not None:
            return obstacle
        channels = spec.dst.channels
        times = {
            tile: _clocks(tile, made.shape, channels, made.window, target)
            for tile in _tiles(made.shape, channels)
        }
        # What differs by less than the estimate's error counts as equal: small blocks come first.
        best = min(times.values())
        ranked = sorted(times, key=lambda tile: int(times[tile] / best / _ERROR))
        return _SeparablePlan(spec, made, ranked[:_CANDIDATES])


def _obstacle(made: Depthwise, spec: ConvSpec, target: Target) -> Rejected | None:
    if not target.model.warp_groups:
        return Rejected("")  # what the general one says of it tells more
    if made.taps is None:
        return Rejected("it is a mean")
    if not _is_half(made.shape, target):
        return Rejected("its result would not be stored as half")
    if not _suits(made.shape, made.window):
        return Rejected("its result is small, or its patches would be mostly padding")
    if not spec.src.vector:
        return Rejected("its input's channels do not lie in fours")
    if not np.isfinite(made.taps).all():
        # What lies outside of the image would be multiplied, too.
        return Rejected("its weights are not all finite")
    return None


def _suits(made: Shape4, window: Window) -> bool:
    found = pixels_of(made)
    if found < _FEWEST_PIXELS or math.prod(made) < _FEWEST_ELEMENTS:
        return False
    if made[3] > _MOST_CHANNELS:
        return False
    if math.prod(window.kernel) > _MOST_TAPS or not window.plain:
        return False
    wasted = min(_wasted(patch, made) for patch in _patches(128))
    return found >= _FILLED * (found + wasted)


@dataclass(frozen=True, slots=True)
class _SeparablePlan(Plan):
    """Tiles for a pair of convolutions, the best first."""

    spec: ConvSpec
    depthwise: Depthwise
    tiles: Sequence[Tile]

    def lower(self, node: Node, ctx: LowerContext) -> KernelRequest:
        src, dst = self.spec.src, self.spec.dst
        view = self.depthwise.window
        problem = ("separable", src.shape, src.dtype.value, dst.shape, view)
        return _kernel(node, ctx, ctx.choose(problem, self.tiles), self.spec, self.depthwise)


_CANDIDATES = 6
_ERROR = 0.02


def _is_half(made: Shape4, target: Target) -> bool:
    """Whether the depthwise convolution's result would be stored as half, were it stored."""
    half_from = target.half_from
    return half_from is not None and 4 * math.prod(made) >= half_from


def _patches(pixels: int) -> list[Pair]:
    return [(pixels // width, width) for width in (8, 16, 32, 64)]


def _tiles(made: Shape4, outputs: int) -> Iterator[Tile]:
    for pixels, threads in ((128, 128), (128, 256), (256, 256)):
        # The smaller the rim of a patch, the fewer pixels are read twice.
        best = min(_patches(pixels), key=lambda patch: (_wasted(patch, made), sum(patch)))
        for columns in (128, 64, 32):
            few = pixels * columns <= threads * _MOST_SUMS
            if few and columns < max(2 * outputs, 33):
                tile = _with_room(Tile(best, columns, threads, made[3], outputs, 1, 3))
                if tile.side_by_side:
                    yield tile


def _with_room(tile: Tile) -> Tile:
    """Return a tile with as many weights on their way as let most blocks lie side by side."""
    depth = 1 if tile.k_tiles % 2 else 2
    found = [replace(tile, depth=depth, ahead=ahead) for ahead in (3, 2, 1)]
    return max(found, key=lambda each: each.side_by_side)


# Clocks of a multiprocessor, fitted to 23 kernels on an H200 (5 layers, 5 % off in the mean). Sums
# take fewer instructions since.
_INSTRUCTION_CLOCKS = 1.9 / 128
_LOAD_CLOCKS = 1740
"""What threads wait for the loads that are on their way at once."""
_STEP_CLOCKS = 325
"""What groups wait for a tile of weights and for each other."""
_BLOCK_CLOCKS = 230
_SUM_INSTRUCTIONS = 25
"""For 4 sums, from shared memory to where they are stored."""


def _clocks(tile: Tile, made: Shape4, outputs: int, window: Window, target: Target) -> float:
    """Estimate a kernel's time: what units are busy with, and what the blocks on one wait for."""
    together = tile.side_by_side
    rounds = math.prod(_blocks(tile.patch, made)) / (target.compute_units * together)
    items = tile.pixels // math.prod(_ITEM) * -(-made[3] // 4)
    loads = math.prod(len(readers(window, axis, _ITEM[axis])) for axis in (0, 1))
    products = 4 * math.prod((*_ITEM, *window.kernel))
    columns = round_up(outputs, tile.columns)
    busy = items * (products + 9 * loads + 150) + tile.pixels * columns / 4 * _SUM_INSTRUCTIONS
    waits = -(-items // tile.threads) * -(-loads // LOADS_AT_ONCE) * _LOAD_CLOCKS
    waits += tile.steps * _STEP_CLOCKS
    each = together * busy * _INSTRUCTION_CLOCKS + waits + _BLOCK_CLOCKS
    # Many rounds flow into each other; of few, the last is as long as a full one.
    return (rounds if rounds > _MANY_ROUNDS else math.ceil(rounds)) * each


_MANY_ROUNDS = 4


def _kernel(
    node: Node, ctx: LowerContext, tile: Tile, spec: ConvSpec, depthwise: Depthwise
) -> KernelRequest:
    dst, src, bias = spec.dst, spec.src, spec.weights.bias
    window, taps = depthwise.window, depthwise.taps
    assert taps is not None
    slices = -(-src.channels // 4)
    column_blocks = -(-dst.channels // tile.columns)
    down, across = _blocks(tile.patch, depthwise.shape)
    halves = halves_of(spec.array, ctx.target, exact=False)
    constants: dict[str, npt.NDArray[Any]] = {
        "weights": pack_tiles(halves.parts[0], tile.k_tiles, tile.columns),
        "taps": padded(taps, slices * 4),
    }
    if halves.back is not None:
        constants["back"] = padded(halves.back, column_blocks * tile.columns)
    if bias is not None:
        constants["bias"] = padded(bias, column_blocks * tile.columns)
    if depthwise.bias is not None:
        constants["taps_bias"] = padded(depthwise.bias, slices * 4)
    return KernelRequest(
        template="cuda/separable",
        grid=(tile.threads, down * across, 1),
        local=(tile.threads, 1, 1),
        output=node.outputs[0],
        reads={"src": node.inputs[0]},
        constants=constants,
        variables={
            "THREADS": tile.threads,
            "BM": tile.pixels,
            "BN": tile.columns,
            "PATCH": tile.patch,
            "ROWS": _ITEM[0],
            "COLUMNS": _ITEM[1],
            "AHEAD": tile.ahead,
            "DEPTH": tile.depth,
            "LOADS_AT_ONCE": LOADS_AT_ONCE,
            "SLOTS": tile.slots,
            "SIDE_BY_SIDE": tile.side_by_side,
            "K_TILES": tile.k_tiles,
            "COLUMN_BLOCKS": column_blocks,
            "LINES": round_up(depthwise.shape[1], _ITEM[0]),
            "across": across,
            "input_slices": slices,
            "tap_slices": slices,
            "rows": readers(window, 0, _ITEM[0]),
            "columns": readers(window, 1, _ITEM[1]),
            "one_by_one": (readers(window, 0, 1), readers(window, 1, 1)),
            "has_bias": bias is not None,
            "SCALED_W": halves.back is not None,
            "has_taps_bias": depthwise.bias is not None,
            "middle": depthwise.shape,
            **window.words(src.shape[1:3]),
        },
        shared=(("uint4", "scratch", tile.shared_bytes // 16),),
        destination=dst,
        inner_stages=depthwise.stages,
        flops=spec.flops + 2 * dst.rows * math.prod(window.kernel) * src.channels,
        needed={"src": window.taken(dst.rows, src.lanes)},
        matrix_flops=spec.flops,
    )
