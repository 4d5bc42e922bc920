"""Convolutions of many pixels on tensor cores: when cuda/conv_tile pays, its tiles and weights."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from litegpu.codegen import Storage, round_up
from litegpu.graph import DType, Graph, Node
from litegpu.ops.base import KernelRequest, LowerContext
from litegpu.ops.conv_mma import keeps_rows
from litegpu.ops.halves import padded, spread_taps
from litegpu.ops.window import Window

_FLOATS = npt.NDArray[np.float32]
_PART = 8
"""Channels that a thread moves at a time."""
_CHUNKS = 4
"""Parts of a k-tile."""
_AHEAD = 3
"""k-tiles that are on their way while one is multiplied."""
_PIXELS = 128
_ROWS_AT_ONCE = 64
"""Pixels whose sums pass through shared memory together."""
_ROUNDING_PAYS_FROM = 2e9
"""Floating-point operations from which it pays to round float32 values to half.

Below, the kernels for few pixels split each value in two halves and lose nothing. Where all is
stored as half anyway, nothing is lost here either.
"""


@dataclass(frozen=True, slots=True)
class Tile:
    """A block makes 128 pixels x `columns` outputs with `warps_m` x `warps_n` warps.

    With `groups`, four warps together multiply from shared memory.
    """

    columns: int
    warps_m: int
    warps_n: int
    groups: bool = False

    @property
    def threads(self) -> int:
        return 32 * self.warps_m * self.warps_n

    @property
    def side_by_side(self) -> int:
        """Blocks that a multiprocessor should have registers for: one waits while others work."""
        if not self.groups:
            return 1
        return 2 if self.columns > 64 else 3

    def slots(self, k_tiles: int) -> int:
        """Return how many k-tiles lie in shared memory.

        Groups multiply while their threads go on: the tile before is still in use then.
        """
        return min(_AHEAD + (2 if self.groups else 1), k_tiles)

    def shared_bytes(self, k_tiles: int) -> int:
        """Bytes for the k-tiles, or for the sums that reuse their memory."""
        tiles = self.slots(k_tiles) * (_PIXELS + self.columns) * _CHUNKS * 16
        return max(tiles, _ROWS_AT_ONCE * (self.columns + 4) * 4)


_TILES = (Tile(128, 2, 2), Tile(64, 2, 2), Tile(32, 4, 1))


def choose_tile(ctx: LowerContext, src: Storage, dst: Storage, weights: _FLOATS) -> Tile | None:
    """Return a tile, None when none keeps the device busy: other kernels are better then."""
    if not ctx.target.tensor_cores or ctx.target.half_from is None:
        return None
    if src.dtype is DType.FLOAT32 and not rounds(ctx, dst, weights):
        return None
    narrowest = _TILES[-1]
    if _blocks(narrowest, dst) < ctx.target.compute_units:
        return None
    fitting = [tile for tile in _TILES if tile.columns < 2 * dst.channels] or [narrowest]
    fitting.sort(key=lambda tile: _cost(tile, dst, ctx))
    if ctx.target.warp_groups:
        fitting = [*map(_of_groups, fitting), *fitting]
    problem = ("conv_tile", src.shape, src.dtype.value, dst.shape, weights.shape)
    return ctx.choose(problem, fitting)


def rounds(ctx: LowerContext, dst: Storage, weights: _FLOATS) -> bool:
    """Whether a convolution, with half storage, may round float32 values to half."""
    return ctx.target.half_from == 0 or 2 * dst.rows * weights.size >= _ROUNDING_PAYS_FROM


def _of_groups(tile: Tile) -> Tile:
    return Tile(tile.columns, 8, 1, groups=True)


def _blocks(tile: Tile, dst: Storage) -> int:
    return -(-dst.rows // _PIXELS) * -(-dst.channels // tile.columns)


_COLUMNS_PER_BLOCK = 24
"""What a block costs beside its columns, in columns."""


def _cost(tile: Tile, dst: Storage, ctx: LowerContext) -> int:
    """Estimate the time of the compute unit that gets most blocks."""
    most = -(-_blocks(tile, dst) // ctx.target.compute_units)
    return most * (tile.columns + _COLUMNS_PER_BLOCK)


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
    parts = -(-weights.shape[3] // _PART)
    k_chunks = parts * weights.shape[1] * weights.shape[2]
    k_tiles = -(-k_chunks // _CHUNKS)
    column_blocks = -(-dst.channels // tile.columns)
    columns = column_blocks * tile.columns
    blocks = -(-dst.rows // _PIXELS) * column_blocks
    constants: dict[str, npt.NDArray[Any]] = {"weights": pack_tiles(weights, k_tiles, tile.columns)}
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
        "SIDE_BY_SIDE": tile.side_by_side,
        "PARTS": parts,
        "K_CHUNKS": k_chunks,
        "K_TILES": k_tiles,
        "COLUMN_BLOCKS": column_blocks,
        "ASYNC": src.dtype is DType.FLOAT16 and src.aligned(_PART),
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
        matrix_flops=2 * dst.rows * int(weights.size),
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
    return weights.is_constant and 2 * rows * weights.elements >= _ROUNDING_PAYS_FROM


def pack_tiles(weights: _FLOATS, k_tiles: int, columns: int) -> npt.NDArray[np.uint32]:
    """Arrange [O, H, W, I] as k-tiles lie in shared memory: [block, k-tile, column, chunk] of 8.

    The chunks of a column are shuffled by its number, as the kernel expects them.
    """
    total = round_up(weights.shape[0], columns)
    flat = spread_taps(weights, total, _PART, k_tiles * _CHUNKS * _PART)
    blocks = flat.reshape(total // columns, columns, k_tiles, _CHUNKS, _PART)
    tiles = blocks.transpose(0, 2, 1, 3, 4)
    rows = np.arange(columns)[:, None]
    from_chunk = np.arange(_CHUNKS)[None, :] ^ (rows >> 1 & 3)
    shuffled = tiles[:, :, rows, from_chunk]
    return np.ascontiguousarray(shuffled).reshape(-1).view(np.uint32)
