"""Convolutions on tensor cores that gather their input pixel by pixel: cuda/conv_mma."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

from litegpu.codegen import literal, round_up
from litegpu.graph import DType, Node
from litegpu.kernels.base import IN_MEMORY, Implementation, Plan, Rejected
from litegpu.kernels.cuda.conv import Packed, conv_kernel, obstacle
from litegpu.kernels.cuda.conv_mma.tile import MmaProblem, MmaTile, best_tiles
from litegpu.kernels.cuda.halves import halves_of, padded, parts_of
from litegpu.kernels.cuda.packing import STEP, pack_halves, pack_tf32
from litegpu.kernels.cuda.tiles import TilePlan
from litegpu.kernels.examples import ConvExample
from litegpu.ops.base import KernelRequest, LowerContext, Target
from litegpu.ops.common.conv_spec import ConvSpec, Depthwise, pixels_of
from litegpu.ops.common.units import Unit

_TOO_MANY = 1 << 20
"""Maximum elements of a depthwise result: for more, the work matters more than launches and
latency.

If a kernel of this family computes the depthwise result, each block of output channels recomputes
it. A large pointwise convolution has many blocks, and large tiles that only multiply are several
times as fast.
"""
_MAX_TAPS, _MAX_MEANS = 64, 16
"""Maximum number of pixels of a mean (unrolled), and of means (each block computes all means)."""


class ConvMma(Implementation):
    """A kernel that gathers the input pixel by pixel: for any window, best for few pixels."""

    name = "cuda/conv_mma"
    general = True
    example = ConvExample((1, 96, 96, 32), 32)
    small = ConvExample((2, 5, 4, 33), 20, kernel=3)

    def plan(self, spec: ConvSpec, target: Target) -> Plan | Rejected:
        found = obstacle(spec, target) or _obstacle(spec)
        if found is not None:
            return found
        problem = problem_of(spec, target)
        tiles = best_tiles(problem, target)
        if isinstance(tiles, Rejected):
            return tiles
        key = ("conv_mma", problem)
        return TilePlan(key, tiles, partial(_kernel, spec=spec), tiles[0].clocks(target))


def _obstacle(spec: ConvSpec) -> Rejected | None:
    depthwise = spec.depthwise
    if depthwise is None:
        return None
    if depthwise.expand is not None:
        return IN_MEMORY
    too_long = (
        math.prod(depthwise.window.kernel) > _MAX_TAPS or pixels_of(depthwise.shape) > _MAX_MEANS
    )
    if depthwise.taps is None and too_long:
        return Rejected("a block would compute too many means, or each mean has too many pixels")
    if math.prod(depthwise.shape) >= _TOO_MANY or spec.is_large:
        return Rejected("the result is so large that two kernels are faster")
    return None


def _kernel(node: Node, ctx: LowerContext, tile: MmaTile, spec: ConvSpec) -> KernelRequest:
    """Return the launch of a tile, which multiplies float32 values in tf32."""
    src, problem, depthwise = spec.src, tile.problem, spec.depthwise
    tf32 = not ctx.target.policy.uses_fp16
    columns = tile.all_columns
    if tf32:
        packed = Packed(
            pack_tf32(spec.array, tile.all_steps, columns, in_fours=True),
            None,
            spec.weights.bias,
            columns,
        )
    else:
        halves = halves_of(spec.array, ctx.target, siblings=spec.weights.siblings)
        arranged = pack_halves(halves.parts, tile.all_steps, columns, in_fours=True)
        packed = Packed(arranged, halves.back, spec.weights.bias, columns)
    variables = {
        **tile_variables(tile),
        "ALL_PAIRS": columns // 16,
        "FILL_UNROLL": 8 if depthwise is None else 4,
        "TF32": tf32,
        "SPLIT_A": src.dtype is DType.FLOAT32 and not tf32,
        "SPLIT_W": problem.weight_parts > 1 and not tf32,
        "input_blocks": -(-spec.weights.shape[3] // 4),
        "pointwise": spec.keeps_rows,
        "depthwise": depthwise is not None,
    }
    # A tf32 product takes as long as two half products.
    unit, each = (Unit.TF32_MATRIX, 2) if tf32 else (Unit.FP16_MATRIX, 1)
    target, name, products = ctx.target, ConvMma.name, problem.products // each
    kernel = conv_kernel(name, node, spec, tile, target, packed, variables, unit, products)
    return kernel if depthwise is None else _with_operand(kernel, spec, depthwise)


def tile_variables(tile: MmaTile) -> dict[str, Any]:
    """Return the template variables of a tile."""
    return {
        "BM": tile.pixels,
        "WM": tile.warps_m,
        "WN": tile.warps_n,
        "WK": tile.warps_k,
        "N_TILES": tile.n_tiles,
        "CHUNK": tile.chunk,
        "STEPS": tile.steps,
        "CLUSTER": tile.cluster,
        "SPLIT_K": tile.split_k,
        "PREFETCH": tile.prefetch,
        "RANGED": tile.problem.ranged,
        "RUN": tile.run,
        "PITCH": tile.pitch,
        "EACH": tile.each_sums,
        "PIECES": tile.problem.pieces,
    }


def _with_operand(kernel: KernelRequest, spec: ConvSpec, depthwise: Depthwise) -> KernelRequest:
    """Return a launch that computes its input by a depthwise convolution or a mean."""
    dst, src, window = spec.dst, spec.src, depthwise.window
    lanes, area = round_up(spec.weights.shape[3], 4), math.prod(window.kernel)
    constants = dict(kernel.constants)
    for name, array in (("taps", depthwise.taps), ("taps_bias", depthwise.bias)):
        if array is not None:
            constants[name] = padded(array, lanes)
    variables = {
        **kernel.variables,
        **window.words(src.shape[1:3]),
        "share": "" if depthwise.taps is not None else literal(1 / area),
        "padded": window.leaves(src.shape[1:3], depthwise.shape[1:3]),
        "has_taps_bias": depthwise.bias is not None,
        "middle": depthwise.shape,
    }
    return replace(
        kernel,
        constants=constants,
        variables=variables,
        inner_epilogue=depthwise.epilogue,
        work={**kernel.work, Unit.FP32: 2 * dst.rows * area * src.channels},
        needed={"src": window.elements_read(dst.rows, src.padded_channels)},
    )


def problem_of(spec: ConvSpec, target: Target) -> MmaProblem:
    """Return the properties of a convolution that determine the tiles."""
    src, dst, weights, depthwise = spec.src, spec.dst, spec.array, spec.depthwise
    channel_blocks = -(-weights.shape[3] // 4)
    taps = weights.shape[1] * weights.shape[2]
    parts = 2 if src.dtype is DType.FLOAT32 else 1
    tf32 = not target.policy.uses_fp16
    weight_parts = 2 if tf32 else parts_of(spec.array, target, siblings=spec.weights.siblings)
    loads = depthwise.window.kernel[0] * depthwise.window.kernel[1] if depthwise else 1
    gathered = 0 if depthwise or spec.keeps_rows else 30
    return MmaProblem(
        rows=dst.rows,
        channels=dst.channel_blocks * 4,
        steps=-(-taps * channel_blocks * 4 // STEP),
        parts=parts,
        weight_parts=weight_parts,
        products=6 if tf32 else parts + weight_parts - 1,
        loads=loads if src.vector else 4 * loads,
        instructions=40 + gathered + 18 * (loads - 1),
        ranged=target.policy.guards_range and (parts > 1 or depthwise is not None),
        neighbours=depthwise is not None and _share_loads(depthwise),
    )


def _share_loads(depthwise: Depthwise) -> bool:
    """Whether windows of adjacent pixels overlap, and each line has an even number of pixels."""
    window = depthwise.window
    overlap = window.dilation[1] == 1 and window.stride[1] < window.kernel[1]
    return depthwise.taps is not None and overlap and depthwise.shape[2] % 2 == 0
