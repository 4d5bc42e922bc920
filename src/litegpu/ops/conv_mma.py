"""Convolutions on NVIDIA's tensor cores: tile choice and weight layout of cuda/conv_mma."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from litegpu.codegen import Storage, round_up
from litegpu.graph import DType, Node, Stage
from litegpu.ops.base import KernelRequest, LowerContext, literal
from litegpu.ops.halves import Halves, as_halves, halves_of, padded, spread_taps
from litegpu.ops.window import Window

_FLOATS = npt.NDArray[np.float32]
_STEP = 16
"""Inputs that one instruction sums up."""
_MANY_ROWS = 4096
_SHARED_LIMIT = 100 << 10
"""Shared memory of a block; two blocks fit a multiprocessor."""


_NOTES_UNITS = 3
"""Shared memory, in units of 16 bytes, where up to 8 blocks tell each other the range of values."""

_IMAGES = ("CONV_2D", "TRANSPOSE_CONV", "Convolution2DTransposeBias")
"""Ops whose window goes over H and W."""


@dataclass(frozen=True, slots=True)
class Depthwise:
    """A depthwise convolution computed on the fly as the operand of a pointwise one."""

    window: Window
    taps: _FLOATS | None
    """Weights [kh, kw, channels]; None: it is a mean over the window."""
    bias: _FLOATS | None
    stages: tuple[Stage, ...]
    shape: tuple[int, int, int, int]
    """Its output [N, H, W, C]."""


@dataclass(frozen=True, slots=True)
class Tile:
    """`pixels` x `columns` outputs of a block, and how its warps share out the work."""

    pixels: int
    warps_m: int
    warps_n: int
    warps_k: int
    groups: int
    """Groups of 8 columns that a warp makes."""
    chunk: int
    """k-steps of 16 that lie in shared memory at a time."""
    steps: int
    """The k-steps of a block, padded to whole chunks."""
    cluster: int
    """Blocks that share out the operand, or the k-steps."""
    ahead: int
    """k-steps whose weights wait in registers."""
    split_k: bool = False

    @property
    def depth(self) -> int:
        """Blocks that share out the k-steps."""
        return self.cluster if self.split_k else 1

    @property
    def all_steps(self) -> int:
        return self.steps * self.depth

    @property
    def columns(self) -> int:
        return self.warps_n * self.groups * 8

    @property
    def threads(self) -> int:
        return 32 * self.warps_m * self.warps_n * self.warps_k

    def shared_bytes(self, parts: int) -> int:
        """Bytes for the operand in `parts` halves, or for the sums that reuse its memory."""
        operand = self.pixels * (self.chunk * _STEP + 8) * 2 * parts
        sums = self.warps_k * self.pixels * (self.columns + 4) * 4
        return max(operand, sums)


def usable(ctx: LowerContext, weights: _FLOATS, groups: int, rows: int) -> bool:
    """Whether tensor cores pay for a convolution with `weights` [O, H, W, I] of so many pixels."""
    outputs = weights.shape[0]
    inputs = weights.size // max(outputs, 1)
    # With few outputs most columns of a tile are empty, yet other kernels are slower on large maps.
    many = outputs >= 8 or rows >= _MANY_ROWS
    return ctx.target.tensor_cores and groups == 1 and many and inputs >= _STEP


def mma_kernel(
    node: Node,
    ctx: LowerContext,
    weights: _FLOATS,
    bias: _FLOATS | None,
    view: Window,
    depthwise: Depthwise | None = None,
    destination: Storage | None = None,
) -> KernelRequest:
    """Return the kernel for `weights` [O, H, W, I]; `depthwise` feeds a 1x1 convolution.

    It writes to `destination`, a part of the output, if given.
    """
    dst, src = destination or ctx.storage(node.outputs[0]), ctx.storage(node.inputs[0])
    row_by_row = keeps_rows(node.op, view, src, dst)
    tf32 = ctx.target.half_from is None
    halves = None if tf32 else halves_of(weights, ctx)
    problem = _problem_of(src, dst, weights, halves, depthwise, row_by_row)
    tile = choose_tile(problem, ctx)
    columns = round_up(dst.slices * 4, tile.columns)
    packed = (
        pack_tf32(weights, tile.all_steps, columns)
        if halves is None
        else pack_halves(halves.parts, tile.all_steps, columns)
    )
    constants: dict[str, npt.NDArray[Any]] = {"weights": packed}
    if halves is not None and halves.back is not None:
        constants["back"] = padded(halves.back, columns)
    if bias is not None:
        constants["bias"] = padded(bias, columns)
    ranged = not tf32 and (src.dtype is DType.FLOAT32 or depthwise is not None)
    shared_units = -(-tile.shared_bytes(problem.parts) // 16)
    variables: dict[str, Any] = {
        "BM": tile.pixels,
        "WM": tile.warps_m,
        "WN": tile.warps_n,
        "WK": tile.warps_k,
        "NT": tile.groups,
        "CHUNK": tile.chunk,
        "STEPS": tile.steps,
        "CLUSTER": tile.cluster,
        "SPLIT_K": tile.split_k,
        "AHEAD": tile.ahead,
        "ALL_PAIRS": columns // 16,
        "FILL_UNROLL": 8 if depthwise is None else 2 if depthwise.taps is not None else 1,
        "TF32": tf32,
        "SPLIT_A": src.dtype is DType.FLOAT32 and not tf32,
        "SPLIT_W": problem.weight_parts > 1 and not tf32,
        "SCALED_W": "back" in constants,
        "RANGED": ranged,
        "NOTES_AT": shared_units,
        "input_slices": -(-weights.shape[3] // 4),
        "has_bias": bias is not None,
        "pointwise": row_by_row,
        "depthwise": depthwise is not None,
        **view.words(src.shape[1:3]),
    }
    inner: tuple[Stage, ...] = ()
    flops = 2 * dst.rows * int(weights.size)
    if depthwise is not None:
        lanes, area = variables["input_slices"] * 4, math.prod(depthwise.window.kernel)
        if depthwise.taps is not None:
            constants["taps"] = padded(depthwise.taps, lanes)
        if depthwise.bias is not None:
            constants["taps_bias"] = padded(depthwise.bias, lanes)
        variables |= {
            **depthwise.window.words(src.shape[1:3]),
            "share": "" if depthwise.taps is not None else literal(1 / area),
            "padded": depthwise.window.leaves(src.shape[1:3], depthwise.shape[1:3]),
            "has_taps_bias": depthwise.bias is not None,
            "middle": depthwise.shape,
        }
        inner = depthwise.stages
        flops += 2 * dst.rows * area * src.channels
    notes = _NOTES_UNITS if ranged and tile.cluster > tile.depth else 0
    return KernelRequest(
        template="cuda/conv_mma",
        grid=(columns // tile.columns * tile.depth * tile.threads, -(-dst.rows // tile.pixels), 1),
        local=(tile.threads, 1, 1),
        output=node.outputs[0],
        reads={"src": node.inputs[0]},
        constants=constants,
        variables=variables,
        shared=(("uint4", "scratch", shared_units + notes),),
        destination=destination,
        inner_stages=inner,
        flops=flops,
        needed={"src": (depthwise.window if depthwise else view).taken(dst.rows, src.lanes)},
        matrix_flops=2 * dst.rows * int(weights.size) * problem.products,
    )


def estimate(ctx: LowerContext, src: Storage, dst: Storage, weights: _FLOATS) -> float:
    """Return the clocks that the best tile should take for a window of more than one pixel."""
    halves = None if ctx.target.half_from is None else halves_of(weights, ctx)
    problem = _problem_of(src, dst, weights, halves, None, row_by_row=False)
    return min(_clocks(tile, problem, ctx) for tile in _tiles(problem, ctx))


def _problem_of(
    src: Storage,
    dst: Storage,
    weights: _FLOATS,
    halves: Halves | None,
    depthwise: Depthwise | None,
    row_by_row: bool,
) -> Problem:
    slices = -(-weights.shape[3] // 4)
    taps = weights.shape[1] * weights.shape[2]
    parts = 2 if src.dtype is DType.FLOAT32 else 1
    weight_parts = 2 if halves is None else len(halves.parts)
    taken = depthwise.window.kernel[0] * depthwise.window.kernel[1] if depthwise else 1
    gathered = 0 if depthwise or row_by_row else 30
    return Problem(
        rows=dst.rows,
        channels=dst.slices * 4,
        steps=-(-taps * slices * 4 // _STEP),
        parts=parts,
        weight_parts=weight_parts,
        products=6 if halves is None else parts + weight_parts - 1,
        loads=taken if src.vector else 4 * taken,
        instructions=40 + gathered + 18 * (taken - 1),
    )


def keeps_rows(op: str, view: Window, src: Storage, dst: Storage) -> bool:
    """Whether output pixel number p reads just pixel number p of `src`.

    A part of an output, or one whose zeros at the edges are not in memory, may have another height
    or width than its input. Rows of a matrix have neither.
    """
    matrix = op not in _IMAGES
    return view.pointwise and (matrix or dst.shape[:3] == src.shape[:3])


@dataclass(frozen=True, slots=True)
class Problem:
    """What decides about tiles: sizes, and what one slice of the operand costs."""

    rows: int
    channels: int
    steps: int
    parts: int
    """Halves that a value is split into, or as many as a float takes up."""
    weight_parts: int
    products: int
    """Instructions that multiply 16 pixels by 16 inputs by 8 columns, in those of halves."""
    loads: float
    """Loads for one slice of the operand."""
    instructions: float
    """Instructions for one slice of the operand."""


_CANDIDATES = 6
"""Tiles that are worth a measurement."""


def choose_tile(problem: Problem, ctx: LowerContext) -> Tile:
    """Return the tile of the least estimated time, or that of those next to it found faster."""
    tiles = dict.fromkeys(_tiles(problem, ctx))
    best = heapq.nsmallest(_CANDIDATES, tiles, key=lambda tile: _clocks(tile, problem, ctx))
    return ctx.choose(("conv_mma", problem), best)


# Clocks and bytes per clock of the model below, fitted to 613 kernels on an H200 (26 layers, all
# kinds of tiles): what it chooses takes 4 % longer than the best of a layer, in the mean, and 25 %
# for 6 layers of middle batches that were measured later (benchmarks/conv_tiles.py). Counting the
# registers of a block brought these to 12 %, and ResNet-50 at batch 1 to 4 % more than before.
_LOAD_CLOCKS = 335.0
_STEP_CLOCKS = 4.0
_INSTRUCTION_CLOCKS = 2.0 / 128
_PRODUCT_CLOCKS = 3.9
_BYTES_PER_CLOCK = 35.0
_SHARE_CLOCKS = 630.0
"""What blocks that share an operand lose by waiting for each other."""
_SHARED_BYTES_PER_CLOCK = 1780.0
"""What all clusters together can store into other blocks' memory."""
_SPLIT_CLOCKS = 825.0
_SPLIT_CLOCKS_EACH = 280.0
"""What blocks that share out the k-steps lose by waiting for each other and adding up."""
_REMOTE = 2.3
"""How much longer a byte takes from another block's memory."""
_THREADS_TOGETHER = 590
"""Threads of a multiprocessor that wait at the same time."""


def _clocks(tile: Tile, problem: Problem, ctx: LowerContext) -> float:
    """Estimate a kernel's clocks: what units are busy with, and what they wait for."""
    blocks = -(-problem.rows // tile.pixels) * -(-problem.channels // tile.columns) * tile.depth
    per_unit = -(-blocks // ctx.target.compute_units)
    shared = 1 if tile.split_k else tile.cluster
    rows = min(tile.pixels, problem.rows)
    slices = rows * tile.steps * 4 / shared
    weights = tile.columns * tile.steps * _STEP * 2 * problem.weight_parts
    products = tile.steps * (tile.pixels // 16) * (tile.columns // 8) * problem.products
    stored = rows * tile.steps * _STEP * 2 * problem.parts if shared > 1 else 0
    sums = rows * tile.columns * 4 * tile.warps_k * _REMOTE if tile.split_k else 0
    busy = max(
        slices * problem.instructions * _INSTRUCTION_CLOCKS + products * _PRODUCT_CLOCKS,
        (slices * problem.loads * 16 + weights + sums) / _BYTES_PER_CLOCK,
    )
    turns = -(-slices // (tile.threads * 2))
    waits = _LOAD_CLOCKS * (turns * max(1.0, problem.loads / 8) + tile.steps // tile.chunk - 1)
    waits += _STEP_CLOCKS * tile.steps / tile.warps_k
    if shared > 1:
        waits += _SHARE_CLOCKS
    if tile.split_k:
        waits += _SPLIT_CLOCKS + _SPLIT_CLOCKS_EACH * tile.cluster
    # Blocks that lie on one multiprocessor wait at the same time.
    together = max(1, min(per_unit, _THREADS_TOGETHER // tile.threads))
    exchange = blocks * stored / _SHARED_BYTES_PER_CLOCK
    return per_unit * busy + waits * -(-per_unit // together) + exchange


_WEIGHT_REGISTERS = 64


def _tiles(problem: Problem, ctx: LowerContext) -> Iterator[Tile]:
    for pixels, warps_m in ((16, 1), (32, 1), (32, 2), (64, 2), (64, 4), (128, 4), (128, 8)):
        for warps_n, groups in ((1, 2), (2, 2), (4, 2), (1, 4), (2, 4), (4, 4), (8, 2)):
            columns = warps_n * groups * 8
            if columns >= 2 * round_up(problem.channels, 16) or warps_m * warps_n > 8:
                continue
            if pixels // 16 // warps_m * groups > 8:  # the sums would not fit the registers
                continue
            tile = _fill_in(problem, pixels, warps_m, warps_n, groups)
            if tile is not None:
                yield tile
                if ctx.target.clusters:
                    yield replace(tile, cluster=_largest_cluster(problem, tile))
                    yield from _deep_tiles(problem, tile)


def _deep_tiles(problem: Problem, tile: Tile) -> Iterator[Tile]:
    """Yield the ways to share out the k-steps of a tile among 2, 4 or 8 blocks."""
    for depth in (2, 4, 8):
        part = replace(problem, steps=-(-problem.steps // depth))
        shape = (tile.pixels, tile.warps_m, tile.warps_n, tile.groups)
        deep = _fill_in(part, *shape)
        # Each block reads the sums of all warps of all others.
        if part.steps > 1 and deep is not None and deep.warps_k <= 2:
            yield replace(deep, cluster=depth, split_k=True)


def _largest_cluster(problem: Problem, tile: Tile) -> int:
    """Return how many blocks can share out an operand: all of them are of one row of tiles."""
    blocks = -(-problem.channels // tile.columns)
    return next(c for c in range(8, 0, -1) if blocks % c == 0 and tile.chunk * 4 % c == 0)


def _fill_in(problem: Problem, pixels: int, warps_m: int, warps_n: int, groups: int) -> Tile | None:
    """Complete a tile; None when not even one chunk of its operand fits shared memory."""
    warps_k = max(8 // (warps_m * warps_n), 1)
    while warps_k > 1 and problem.steps < 2 * warps_k:
        warps_k //= 2
    ahead = _WEIGHT_REGISTERS // (2 * groups * problem.weight_parts)
    whole = round_up(problem.steps, warps_k)
    limit = (_SHARED_LIMIT // (pixels * 2 * problem.parts) - 8) // _STEP
    chunk = whole
    if whole > limit:
        # Chunks must hold whole rounds of the weights that wait in registers.
        ahead = min(ahead, limit // warps_k)
        chunk = limit // (warps_k * ahead) * warps_k * ahead if ahead else 0
    if not chunk:
        return None
    steps = round_up(whole, chunk)
    ahead = min(ahead, steps // warps_k)
    return Tile(pixels, warps_m, warps_n, warps_k, groups, chunk, steps, 1, ahead)


def pack_halves(parts: Sequence[_FLOATS], steps: int, columns: int) -> npt.NDArray[np.uint32]:
    """Arrange [O, H, W, I] as mma.m16n8k16 has it: [step, part, pair of 8 columns, lane] of 4.

    A lane holds inputs 2 * (lane % 4) + {0, 1} and those 8 further, of column lane / 4.
    """
    ordered = []
    for weights in parts:
        flat = as_halves(_flatten(weights, steps, columns))
        # [pair, tile, column, step, half of the inputs, lane % 4, two inputs]
        split = flat.reshape(columns // 16, 2, 8, steps, 2, 4, 2)
        ordered.append(split.transpose(3, 0, 2, 5, 1, 4, 6))
    return np.stack(ordered, axis=1).reshape(-1).view(np.uint32)


def pack_tf32(weights: _FLOATS, steps: int, columns: int) -> npt.NDArray[np.uint32]:
    """Arrange [O, H, W, I] as mma.m16n8k8 has it: [half step, pair of 8 columns, lane] of 4.

    A lane holds inputs lane % 4 + {0, 4} of column lane / 4.
    """
    flat = _flatten(weights, steps, columns)
    # [pair, tile, column, half step, half of the inputs, lane % 4]
    split = flat.reshape(columns // 16, 2, 8, steps * 2, 2, 4)
    return np.ascontiguousarray(split.transpose(3, 0, 2, 5, 1, 4)).reshape(-1).view(np.uint32)


def _flatten(weights: _FLOATS, steps: int, columns: int) -> _FLOATS:
    """Return [O, H, W, I] as [columns, inputs], with zeros around and between whole slices."""
    return spread_taps(weights, columns, 4, steps * _STEP)
