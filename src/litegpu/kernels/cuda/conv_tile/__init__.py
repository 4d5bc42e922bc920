"""Convolutions of many pixels on tensor cores: when cuda/conv_tile pays, its tiles and weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from litegpu.codegen import Storage, round_up
from litegpu.graph import DType, Node
from litegpu.kernels.base import IN_MEMORY, Implementation, Plan, Rejected
from litegpu.kernels.cuda import tensor_cores
from litegpu.kernels.cuda.halves import (
    Halves,
    as_tf32_parts,
    halves_of,
    padded,
    spread_taps,
)
from litegpu.ops.base import KernelRequest, LowerContext, Target
from litegpu.ops.conv_spec import ConvSpec
from litegpu.ops.halves import as_halves

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


class ConvTile(Implementation):
    """Multiplies large tiles from shared memory: for many pixels."""

    name = "cuda/conv_tile"

    def plan(self, spec: ConvSpec, target: Target) -> Plan | Rejected:
        obstacle = tensor_cores.obstacle(spec, target) or _obstacle(spec, target)
        if obstacle is not None:
            return obstacle
        split, floats = target.half_from is None, spec.src.dtype is DType.FLOAT32
        tiles = [replace(tile, split=split) for tile in _FLOAT_TILES] if floats else _TILES
        if _blocks(tiles[-1], spec.dst) < target.compute_units:
            return Rejected("too few tiles to keep the device busy")
        k_tiles = _k_tiles(spec.array, floats)
        fitting = _fitting(tiles, spec.dst, k_tiles, target)
        if target.model.warp_groups:
            groups = [Tile(columns, 8, 1, True, floats, split) for columns in _GROUP_COLUMNS]
            fitting = [*_fitting(groups, spec.dst, k_tiles, target), *fitting]
        return _TilePlan(spec, split, fitting, rounds_input=floats and not split)

    def rank(self, spec: ConvSpec) -> int:
        """Come last where most products would be those of padding."""
        return _mostly_padding(spec.weights.shape)


def _obstacle(spec: ConvSpec, target: Target) -> Rejected | None:
    if spec.depthwise is not None:
        return IN_MEMORY
    floats = spec.src.dtype is DType.FLOAT32
    if floats and target.half_from is not None and not spec.may_round(target):
        return Rejected("it would round its input for too little work")
    return None


@dataclass(frozen=True, slots=True)
class _TilePlan(Plan):
    """Tiles for a convolution, the best first."""

    spec: ConvSpec
    split: bool
    tiles: Sequence[Tile]
    rounds_input: bool

    def lower(self, node: Node, ctx: LowerContext) -> KernelRequest:
        src, dst, shape = self.spec.src, self.spec.dst, self.spec.weights.shape
        problem = ("conv_tile", src.shape, src.dtype.value, dst.shape, shape, self.split)
        return _kernel(node, ctx, ctx.choose(problem, self.tiles), self.spec)


def _fitting(tiles: Sequence[Tile], dst: Storage, k_tiles: int, target: Target) -> list[Tile]:
    """Return those that are not too wide (the narrowest always is one), the best first."""
    fitting = [tile for tile in tiles if tile.columns < 2 * dst.channels] or [tiles[-1]]
    return sorted(fitting, key=lambda tile: _cost(tile, dst, k_tiles, target))


def _mostly_padding(shape: Sequence[int]) -> bool:
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


def _cost(tile: Tile, dst: Storage, k_tiles: int, target: Target) -> float:
    """Estimate the time of the compute unit that gets most blocks."""
    most = -(-_blocks(tile, dst) // target.compute_units)
    alone = tile.groups and tile.side_by_side == 1
    return most * (tile.columns + _COLUMNS_PER_BLOCK + (_ENDS / k_tiles if alone else 0))


def _kernel(node: Node, ctx: LowerContext, tile: Tile, spec: ConvSpec) -> KernelRequest:
    dst, src, weights, bias = spec.dst, spec.src, spec.array, spec.weights.bias
    view = spec.window
    part = _PART[tile.floats]
    k_tiles = _k_tiles(weights, tile.floats)
    column_blocks = -(-dst.channels // tile.columns)
    columns = column_blocks * tile.columns
    blocks = -(-dst.rows // _PIXELS) * column_blocks
    held = Halves([weights], None) if tile.floats else halves_of(weights, ctx.target, exact=False)
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
        "rowwise": spec.keeps_rows,
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
        destination=dst,
        flops=spec.flops,
        needed={"src": view.taken(dst.rows, src.lanes)},
        matrix_flops=spec.flops * tile.matrix_products,
    )


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
