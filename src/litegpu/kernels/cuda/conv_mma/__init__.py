"""Convolutions on NVIDIA's tensor cores: tile choice and weight layout of cuda/conv_mma."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from litegpu.codegen import round_up
from litegpu.graph import DType, Node, Stage
from litegpu.kernels.base import Implementation, Plan, Rejected
from litegpu.kernels.cuda import tensor_cores
from litegpu.kernels.cuda.halves import Halves, halves_of, padded, parts_of, spread_taps
from litegpu.ops.base import KernelRequest, LowerContext, Target, literal
from litegpu.ops.conv_spec import ConvSpec, pixels_of
from litegpu.ops.halves import as_halves

_FLOATS = npt.NDArray[np.float32]
_STEP = 16
"""Inputs that one instruction sums up."""
_SHARED_LIMIT = 100 << 10
"""Shared memory of a block; two blocks fit a multiprocessor."""


_NOTES_UNITS = 3
"""Shared memory, in units of 16 bytes, where up to 8 blocks tell each other the range of values."""

_TOO_MANY = 1 << 20
"""Elements of a depthwise result from which launches and latency matter less than work.

Computed here, each block of output channels computes the result anew. Where the pointwise
convolution is large, there are many, and large tiles, which only multiply, are several times as
fast.
"""
_MOST_TAPS, _MOST_MEANS = 64, 16
"""Pixels of a mean, which are written out in the kernel, and means, which each block computes."""


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


class ConvMma(Implementation):
    """Gathers its operand pixel by pixel: for any window, best for few pixels."""

    name = "cuda/conv_mma"
    general = True

    def plan(self, spec: ConvSpec, target: Target) -> Plan | Rejected:
        found = tensor_cores.obstacle(spec, target) or _obstacle(spec)
        if found is not None:
            return found
        problem = _problem_of(spec, target)
        tiles = choose_tiles(problem, target)
        return _MmaPlan(spec, problem, tiles, _clocks(tiles[0], problem, target))


def _obstacle(spec: ConvSpec) -> Rejected | None:
    made = spec.depthwise
    if made is None:
        return None
    too_long = math.prod(made.window.kernel) > _MOST_TAPS or pixels_of(made.shape) > _MOST_MEANS
    if made.taps is None and too_long:
        return Rejected("each block would compute too many means, or means of too many pixels")
    if math.prod(made.shape) >= _TOO_MANY or spec.is_large:
        return Rejected("its result is so large that each is better made by itself")
    return None


@dataclass(frozen=True, slots=True)
class _MmaPlan(Plan):
    """Tiles for a convolution, the best first."""

    spec: ConvSpec
    problem: Problem
    tiles: Sequence[Tile]
    clocks: float

    def lower(self, node: Node, ctx: LowerContext) -> KernelRequest:
        tile = ctx.choose(("conv_mma", self.problem), self.tiles)
        halves = None if ctx.target.half_from is None else halves_of(self.spec.array, ctx.target)
        return _kernel(node, self.spec, halves, self.problem, tile)


def _kernel(
    node: Node, spec: ConvSpec, halves: Halves | None, problem: Problem, tile: Tile
) -> KernelRequest:
    """Return the kernel for a tile; without `halves` it multiplies in tf32."""
    dst, src, weights, bias = spec.dst, spec.src, spec.array, spec.weights.bias
    view, depthwise, tf32 = spec.window, spec.depthwise, halves is None
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
        "pointwise": spec.keeps_rows,
        "depthwise": depthwise is not None,
        **view.words(src.shape[1:3]),
    }
    inner: tuple[Stage, ...] = ()
    flops = spec.flops
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
        destination=dst,
        inner_stages=inner,
        flops=flops,
        needed={"src": (depthwise.window if depthwise else view).taken(dst.rows, src.lanes)},
        matrix_flops=spec.flops * problem.products,
    )


def _problem_of(spec: ConvSpec, target: Target) -> Problem:
    src, dst, weights, depthwise = spec.src, spec.dst, spec.array, spec.depthwise
    slices = -(-weights.shape[3] // 4)
    taps = weights.shape[1] * weights.shape[2]
    parts = 2 if src.dtype is DType.FLOAT32 else 1
    tf32 = target.half_from is None
    weight_parts = 2 if tf32 else parts_of(spec.array, target)
    taken = depthwise.window.kernel[0] * depthwise.window.kernel[1] if depthwise else 1
    gathered = 0 if depthwise or spec.keeps_rows else 30
    return Problem(
        rows=dst.rows,
        channels=dst.slices * 4,
        steps=-(-taps * slices * 4 // _STEP),
        parts=parts,
        weight_parts=weight_parts,
        products=6 if tf32 else parts + weight_parts - 1,
        loads=taken if src.vector else 4 * taken,
        instructions=40 + gathered + 18 * (taken - 1),
    )


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


def choose_tiles(problem: Problem, target: Target) -> list[Tile]:
    """Return the tile of the least estimated time, and those next to it."""
    tiles = dict.fromkeys(_tiles(problem, target))
    return heapq.nsmallest(_CANDIDATES, tiles, key=lambda tile: _clocks(tile, problem, target))


# Clocks beside those of device_model.Clocks, fitted to 613 kernels on an H200 (26 layers, all
# kinds of tiles): what it chooses takes 4 % longer than the best of a layer, in the mean, and 25 %
# for 6 layers of middle batches that were measured later (benchmarks/conv_tiles.py). Counting the
# registers of a block brought these to 12 %, and ResNet-50 at batch 1 to 4 % more than before.
_STEP_CLOCKS = 4.0
_SHARE_CLOCKS = 630.0
"""What blocks that share an operand lose by waiting for each other."""
_SPLIT_CLOCKS = 825.0
_SPLIT_CLOCKS_EACH = 280.0
"""What blocks that share out the k-steps lose by waiting for each other and adding up."""
_REMOTE = 2.3
"""How much longer a byte takes from another block's memory."""
_THREADS_TOGETHER = 590
"""Threads of a multiprocessor that wait at the same time."""


def _clocks(tile: Tile, problem: Problem, target: Target) -> float:
    """Estimate a kernel's clocks: what units are busy with, and what they wait for."""
    clocks = target.model.clocks
    blocks = -(-problem.rows // tile.pixels) * -(-problem.channels // tile.columns) * tile.depth
    per_unit = -(-blocks // target.compute_units)
    shared = 1 if tile.split_k else tile.cluster
    rows = min(tile.pixels, problem.rows)
    slices = rows * tile.steps * 4 / shared
    weights = tile.columns * tile.steps * _STEP * 2 * problem.weight_parts
    products = tile.steps * (tile.pixels // 16) * (tile.columns // 8) * problem.products
    stored = rows * tile.steps * _STEP * 2 * problem.parts if shared > 1 else 0
    sums = rows * tile.columns * 4 * tile.warps_k * _REMOTE if tile.split_k else 0
    busy = max(
        slices * problem.instructions * clocks.instruction + products * clocks.product,
        (slices * problem.loads * 16 + weights + sums) / clocks.cached_bytes,
    )
    turns = -(-slices // (tile.threads * 2))
    waits = clocks.load * (turns * max(1.0, problem.loads / 8) + tile.steps // tile.chunk - 1)
    waits += _STEP_CLOCKS * tile.steps / tile.warps_k
    if shared > 1:
        waits += _SHARE_CLOCKS
    if tile.split_k:
        waits += _SPLIT_CLOCKS + _SPLIT_CLOCKS_EACH * tile.cluster
    # Blocks that lie on one multiprocessor wait at the same time.
    together = max(1, min(per_unit, _THREADS_TOGETHER // tile.threads))
    exchange = blocks * stored / clocks.remote_bytes
    return per_unit * busy + waits * -(-per_unit // together) + exchange


_WEIGHT_REGISTERS = 64


def _tiles(problem: Problem, target: Target) -> Iterator[Tile]:
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
                if target.model.clusters:
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
