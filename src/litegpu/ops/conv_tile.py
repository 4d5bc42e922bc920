"""Convolutions of many pixels on tensor cores: when cuda/conv_tile pays, its tiles and weights."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from litegpu.codegen import Storage, round_up
from litegpu.graph import DType, Graph, Node
from litegpu.ops.base import KernelRequest, LowerContext
from litegpu.ops.conv_mma import keeps_rows
from litegpu.ops.halves import (
    Halves,
    as_halves,
    as_tf32_parts,
    halves_of,
    padded,
    spread_taps,
)
from litegpu.ops.window import Window

_FLOATS = npt.NDArray[np.float32]
_PART = {False: 8, True: 4}
"""Channels that a thread moves at a time: halves, or floats."""
_CHUNKS = 4
"""Parts of a k-tile."""
_FLOAT_PRODUCTS = {False: 2, True: 6}
"""Products of halves in whose time floats are multiplied, rounded or split.

That is one of tf32 or three, at half the rate."""
_AHEAD = 3
"""k-tiles that are on their way while one is multiplied."""
_PIXELS = 128
_ROWS_AT_ONCE = 64
"""Pixels whose sums pass through shared memory together."""
_LARGE = 4e8
"""Floating-point operations from which it pays to round float32 values to half.

Below, the kernels for few pixels split each value in two halves and lose nothing: on an H200 that
took 1.7 to 5 times as long. Where all is stored as half anyway, nothing is lost here either.
"""


@dataclass(frozen=True, slots=True)
class Tile:
    """A block makes 128 pixels x `columns` outputs with `warps_m` x `warps_n` warps.

    With `groups`, four warps together multiply from shared memory. `floats` keep their range; they
    are `split` where nothing may be lost, by weights that lie there in two parts, or rounded.
    """

    columns: int
    warps_m: int
    warps_n: int
    groups: bool = False
    floats: bool = False
    split: bool = False

    @property
    def parts(self) -> int:
        """Return in how many parts weights lie in shared memory."""
        return 1 + self.split

    @property
    def matrix_products(self) -> int:
        """Return how many products of halves take as long as one of values."""
        return _FLOAT_PRODUCTS[self.split] if self.floats else 1

    @property
    def threads(self) -> int:
        return 32 * self.warps_m * self.warps_n

    @property
    def side_by_side(self) -> int:
        """Blocks that a multiprocessor should have registers for: one waits while others work."""
        if not self.groups:
            return 1
        return (2 if self.columns > 64 else 3) - self.floats

    def slots(self, k_tiles: int) -> int:
        """Return how many k-tiles lie in shared memory.

        Groups multiply halves while their threads go on: the tile before is still in use then.
        """
        return min(_AHEAD + (2 if self.groups and not self.floats else 1), k_tiles)

    def shared_bytes(self, k_tiles: int) -> int:
        """Bytes for the k-tiles, or for the sums that reuse their memory."""
        rows = _PIXELS + self.columns * self.parts
        tiles = self.slots(k_tiles) * rows * _CHUNKS * 16
        return max(tiles, _ROWS_AT_ONCE * (self.columns + 4) * 4)


_TILES = (Tile(128, 2, 2), Tile(64, 2, 2), Tile(32, 4, 1))
_FLOAT_TILES = (Tile(64, 4, 2, floats=True), Tile(32, 4, 1, floats=True))
_GROUP_COLUMNS = (128, 64, 32)


def choose_tile(ctx: LowerContext, src: Storage, dst: Storage, weights: _FLOATS) -> Tile | None:
    """Return a tile, None when none keeps the device busy: other kernels are better then."""
    split = ctx.target.half_from is None
    floats = src.dtype is DType.FLOAT32
    if not ctx.target.tensor_cores:
        return None
    if floats and not split and not rounds(ctx, dst, weights):
        return None
    tiles = [replace(tile, split=split) for tile in _FLOAT_TILES] if floats else _TILES
    if _blocks(tiles[-1], dst) < ctx.target.compute_units:
        return None
    k_tiles = _k_tiles(weights, floats)
    fitting = _fitting(tiles, dst, k_tiles, ctx)
    if ctx.target.warp_groups:
        groups = [Tile(columns, 8, 1, True, floats, split) for columns in _GROUP_COLUMNS]
        fitting = [*_fitting(groups, dst, k_tiles, ctx), *fitting]
    problem = ("conv_tile", src.shape, src.dtype.value, dst.shape, weights.shape, split)
    return ctx.choose(problem, fitting)


def _fitting(tiles: Sequence[Tile], dst: Storage, k_tiles: int, ctx: LowerContext) -> list[Tile]:
    """Return those that are not too wide (the narrowest always is one), the best first."""
    fitting = [tile for tile in tiles if tile.columns < 2 * dst.channels] or [tiles[-1]]
    return sorted(fitting, key=lambda tile: _cost(tile, dst, k_tiles, ctx))


def is_large(rows: int, weights: int) -> bool:
    """Whether a convolution has so many pixels and weights that large tiles pay."""
    return 2 * rows * weights >= _LARGE


def rounds(ctx: LowerContext, dst: Storage, weights: _FLOATS) -> bool:
    """Whether a convolution, with half storage, may round float32 values to half."""
    return ctx.target.half_from == 0 or is_large(dst.rows, weights.size)


def mostly_padding(shape: Sequence[int]) -> bool:
    """Whether most products of a tile would be those of padding, with weights [O, H, W, I]."""
    outputs, *_, inputs = shape
    wide = round_up(outputs, _TILES[-1].columns) * round_up(inputs, _PART[False])
    return 2 * outputs * inputs < wide


def _k_chunks(weights: _FLOATS, floats: bool) -> int:
    parts = -(-weights.shape[3] // _PART[floats])
    return int(weights.shape[1] * weights.shape[2] * parts)


def _k_tiles(weights: _FLOATS, floats: bool) -> int:
    return -(-_k_chunks(weights, floats) // _CHUNKS)


def _blocks(tile: Tile, dst: Storage) -> int:
    return -(-dst.rows // _PIXELS) * -(-dst.channels // tile.columns)


_COLUMNS_PER_BLOCK = 24
"""What a k-tile costs a block beside its columns, in columns."""
_ENDS = 600
"""What first loads and last stores cost where no other block fills that time: columns of a k-tile.

On an H200 these figures put the best tile of 128, 64 or 32 columns first for 27 of 31 convolutions
of floats; it was 10, 9, 1 and 1 % faster for the others.
"""


def _cost(tile: Tile, dst: Storage, k_tiles: int, ctx: LowerContext) -> float:
    """Estimate the time of the compute unit that gets most blocks."""
    most = -(-_blocks(tile, dst) // ctx.target.compute_units)
    alone = tile.groups and tile.side_by_side == 1
    return most * (tile.columns + _COLUMNS_PER_BLOCK + (_ENDS / k_tiles if alone else 0))


def tile_kernel(
    node: Node,
    ctx: LowerContext,
    tile: Tile,
    weights: _FLOATS,
    bias: _FLOATS | None,
    view: Window,
    destination: Storage | None = None,
) -> KernelRequest:
    """Return the kernel for `weights` [O, H, W, I].

    It writes to `destination`, a part of the output, if given.
    """
    dst, src = destination or ctx.storage(node.outputs[0]), ctx.storage(node.inputs[0])
    flops = 2 * dst.rows * int(weights.size)
    part = _PART[tile.floats]
    k_tiles = _k_tiles(weights, tile.floats)
    column_blocks = -(-dst.channels // tile.columns)
    columns = column_blocks * tile.columns
    blocks = -(-dst.rows // _PIXELS) * column_blocks
    held = Halves([weights], None) if tile.floats else halves_of(weights, ctx, exact=False)
    constants: dict[str, npt.NDArray[Any]] = {
        "weights": pack_tiles(held.parts[0], k_tiles, tile.columns, tile.floats, tile.split)
    }
    if held.back is not None:
        constants["back"] = padded(held.back, columns)
    if bias is not None:
        constants["bias"] = padded(bias, columns)
    variables: dict[str, Any] = {
        "BM": _PIXELS,
        "BN": tile.columns,
        "WM": tile.warps_m,
        "WN": tile.warps_n,
        "CHUNKS": _CHUNKS,
        "AHEAD": _AHEAD,
        "SLOTS": tile.slots(k_tiles),
        "GROUPS": tile.groups,
        "FLOATS": tile.floats,
        "SPLIT": tile.split,
        "SCALED_W": held.back is not None,
        "PART": part,
        "SIDE_BY_SIDE": tile.side_by_side,
        "PARTS": -(-weights.shape[3] // part),
        "K_CHUNKS": _k_chunks(weights, tile.floats),
        "K_TILES": k_tiles,
        "COLUMN_BLOCKS": column_blocks,
        "ASYNC": src.dtype is (DType.FLOAT32 if tile.floats else DType.FLOAT16)
        and src.aligned(part),
        "input_slices": -(-weights.shape[3] // 4),
        "has_bias": bias is not None,
        "rowwise": keeps_rows(node.op, view, src, dst),
        "padded": view.leaves(src.shape[1:3], dst.shape[1:3]),
        **view.words(src.shape[1:3]),
    }
    return KernelRequest(
        template="cuda/conv_tile",
        grid=(tile.threads, blocks, 1),
        local=(tile.threads, 1, 1),
        output=node.outputs[0],
        reads={"src": node.inputs[0]},
        constants=constants,
        variables=variables,
        shared=(("uint4", "scratch", tile.shared_bytes(k_tiles) // 16),),
        destination=destination,
        flops=flops,
        needed={"src": view.taken(dst.rows, src.lanes)},
        matrix_flops=flops * tile.matrix_products,
    )


def rounded_inputs(graph: Graph) -> set[int]:
    """Return the values that go into convolutions so large that they round them to half."""
    return {node.inputs[0] for node in graph.nodes if _rounds_input(graph, node)}


def _rounds_input(graph: Graph, node: Node) -> bool:
    held = node.attributes
    if node.op != "CONV_2D" or held.groups > 1 or held.depthwise:
        return False
    weights = graph.values[held.weights]
    rows = math.prod(graph.values[node.outputs[0]].shape4[:3])
    large = is_large(rows, weights.elements) and not mostly_padding(weights.shape4)
    return weights.is_constant and large


def pack_tiles(
    weights: _FLOATS, k_tiles: int, columns: int, floats: bool = False, split: bool = False
) -> npt.NDArray[np.uint32]:
    """Arrange [O, H, W, I] as k-tiles lie in shared memory: [block, k-tile, column, 16-byte chunk].

    The chunks of a column are shuffled by its number, as the kernel expects them. Of `floats`
    that are `split`, the high parts come first in each k-tile.
    """
    part, total = _PART[floats], round_up(weights.shape[0], columns)
    flat = spread_taps(weights, total, part, k_tiles * _CHUNKS * part)
    parts = as_tf32_parts(flat)[: 1 + split] if floats else [as_halves(flat)]
    tiles = np.stack(parts).reshape(len(parts), -1, columns, k_tiles, _CHUNKS, part)
    rows = np.arange(columns)[:, None]
    from_chunk = np.arange(_CHUNKS)[None, :] ^ (rows >> 1 & 3)
    shuffled = tiles.transpose(1, 3, 0, 2, 4, 5)[:, :, :, rows, from_chunk]
    return np.ascontiguousarray(shuffled).reshape(-1).view(np.uint32)
