"""Inverted residual blocks fused into one kernel, for few pixels: cuda/inverted_split."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import numpy.typing as npt

from litegpu.codegen import Storage, round_up
from litegpu.graph import DType, Node
from litegpu.kernels.base import IN_MEMORY, Implementation, Plan, Rejected
from litegpu.kernels.cuda import conv_mma
from litegpu.kernels.cuda.conv import Packed, conv_kernel, obstacle
from litegpu.kernels.cuda.conv_mma.tile import best_tiles as tiles_of_gathered
from litegpu.kernels.cuda.halves import halves_of, padded, parts_of
from litegpu.kernels.cuda.inverted_split.tile import SplitProblem, SplitTile, best_tiles
from litegpu.kernels.cuda.packing import STEP, pack_halves
from litegpu.kernels.cuda.tiles import TilePlan
from litegpu.kernels.examples import ConvExample
from litegpu.ops.base import KernelRequest, LowerContext, Target
from litegpu.ops.common.conv_spec import ConvSpec, Depthwise, Expand
from litegpu.ops.common.halves import holds, largest_of
from litegpu.ops.common.lazy_array import LazyArray
from litegpu.ops.common.units import Unit
from litegpu.ops.common.weights import Weights

_MAX_TAPS = 25
"""Maximum number of taps, since their weights are in registers."""
_MAX_INPUTS = 320
"""Maximum number of channels, since their weights are in registers."""
_TOO_MANY = 1 << 21
"""Maximum number of expanded values: for more, the work matters more than launches and latency."""
_LAUNCH_CLOCKS = 850.0
"""Clocks of a launch in a chain of launches, which the estimates of cuda/conv_mma do not include.
"""
_MARGIN = 1.04
"""Minimum ratio of the estimated time of two kernels to that of the fused kernel."""
_MARGIN_OF_WINDOWS = 1.4
"""Minimum ratio for an expansion with a window: such fused kernels took 1.2 to 1.5 times the
estimate.

The margin was measured in four networks; a factor of 1.5 made them slower
(benchmarks/results/h100_neighbours.json).
"""


class InvertedSplit(Implementation):
    """A kernel for the expansion, the depthwise and the pointwise convolution of few pixels."""

    name = "cuda/inverted_split"
    example = ConvExample((1, 14, 14, 64), 64, depthwise=True, expand=384)

    def plan(self, spec: ConvSpec, target: Target) -> Plan | Rejected:
        middle = spec.depthwise
        if middle is None or middle.expand is None:
            return IN_MEMORY
        found = obstacle(spec, target) or _obstacle(middle, middle.expand, target)
        if found is not None:
            return found
        problem = _problem_of(spec, middle, middle.expand, target)
        tiles = best_tiles(problem, target)
        if isinstance(tiles, Rejected):
            return tiles
        margin = _MARGIN if middle.expand.window.pointwise else _MARGIN_OF_WINDOWS
        clocks = tiles[0].clocks(target) * margin
        others = clocks_of_two(spec, middle, middle.expand, target)
        if clocks >= others:
            reason = (
                f"the estimate is {clocks:.0f} clocks with a margin, but two kernels take "
                f"{others:.0f}"
            )
            return Rejected(reason)
        kernel = partial(_kernel, spec=spec, middle=middle, expand=middle.expand)
        return TilePlan(("inverted_split", problem), tiles, kernel)


def _obstacle(middle: Depthwise, expand: Expand, target: Target) -> Rejected | None:
    if not target.policy.uses_fp16:
        return Rejected("the kernel multiplies float16")
    if middle.taps is None:
        return Rejected("the node computes a mean")
    if math.prod(expand.shape) >= _TOO_MANY:
        return Rejected("with so many values, separate kernels are faster")
    if not middle.window.plain or math.prod(middle.window.kernel) > _MAX_TAPS:
        return Rejected("the window has too many taps, or reads an enlarged or mirrored image")
    if not expand.window.plain or math.prod(expand.weights.shape[1:]) > _MAX_INPUTS:
        return Rejected("the expansion has too many inputs, or reads an enlarged or mirrored image")
    if not holds(largest_of(expand.weights, (1, 2, 3))).all():
        return Rejected("float16 cannot represent the weights")
    return None


def _problem_of(spec: ConvSpec, middle: Depthwise, expand: Expand, target: Target) -> SplitProblem:
    last = parts_of(spec.array, target, siblings=spec.weights.siblings)
    return SplitProblem(
        inputs=math.prod(expand.window.kernel) * round_up(spec.src.channels, 4),
        middle=middle.shape,
        outputs=spec.dst.channel_blocks * 4,
        window=middle.window,
        parts=2 if spec.src.dtype is DType.FLOAT32 else 1,
        weight_parts=(parts_of(expand.weights, target), last),
        ranged=target.policy.guards_range,
    )


def clocks_of_two(spec: ConvSpec, middle: Depthwise, expand: Expand, target: Target) -> float:
    """Return the estimated clocks of an expanding kernel plus a kernel for the rest."""
    half = target.policy.stores_half(4 * math.prod(expand.shape))
    dtype, alignment = (DType.FLOAT16, 8) if half else (DType.FLOAT32, 4)
    between = Storage.create(0, dtype, expand.shape, alignment)
    weights = Weights(expand.weights.shape, array=expand.weights, bias=expand.bias)
    first = ConvSpec(spec.src, between, weights, expand.window, image=True)
    last = replace(spec, src=between, depthwise=replace(middle, expand=None))
    clocks = 2 * _LAUNCH_CLOCKS
    for each in (first, last):
        tiles = tiles_of_gathered(conv_mma.problem_of(each, target), target)
        clocks += math.inf if isinstance(tiles, Rejected) else tiles[0].clocks(target)
    return clocks


def _kernel(
    node: Node,
    ctx: LowerContext,
    tile: SplitTile,
    spec: ConvSpec,
    middle: Depthwise,
    expand: Expand,
) -> KernelRequest:
    problem, src = tile.problem, spec.src
    assert middle.taps is not None
    channels, lanes = tile.depth * tile.groups * STEP, round_up(middle.shape[3], 4)
    halves = halves_of(spec.array, ctx.target, siblings=spec.weights.siblings)
    packed = Packed(
        pack_halves(halves.parts, channels // STEP, tile.columns, in_fours=True),
        halves.back,
        spec.weights.bias,
        tile.columns,
    )
    expanding = halves_of(expand.weights, ctx.target).parts
    constants: dict[str, npt.NDArray[Any] | LazyArray] = {
        "expand_weights": pack_halves(expanding, problem.steps, channels, in_fours=True),
        "taps": padded(middle.taps, lanes),
    }
    if expand.bias is not None:
        constants["expand_bias"] = padded(expand.bias, channels)
    if middle.bias is not None:
        constants["taps_bias"] = padded(middle.bias, lanes)
    variables: dict[str, Any] = {
        "PATCH": tile.patch,
        "PATCHES": tile.patches,
        "SEEN": tile.seen,
        "SEEN_TILES": tile.seen_tiles,
        "TILES_FIRST": tile.tiles_first,
        "MAX_KINDS": tile.kinds,
        "M_TILES": tile.m_tiles,
        "DEPTH": tile.depth,
        "GROUPS": tile.groups,
        "STEPS": problem.steps,
        "WARPS": tile.warps,
        "WN_FIRST": tile.warps_first,
        "WN": tile.warps_n,
        "PAIRS": tile.pairs,
        "RUN": tile.run,
        "PITCH": tile.pitch,
        "ALL": tile.all_sums,
        "EACH": tile.each_sums,
        "EARLY": tile.early,
        "RANGED": problem.ranged,
        "SPLIT_A": problem.parts > 1,
        "SPLIT_FIRST": problem.weight_parts[0] > 1,
        "SPLIT_W": problem.weight_parts[1] > 1,
        "has_expand_bias": expand.bias is not None,
        "has_taps_bias": middle.bias is not None,
        "middle": middle.shape,
        "innermost_shape": expand.shape,
        "first": expand.window,
        **middle.window.words(src.shape[1:3]),
    }
    kernel = conv_kernel(InvertedSplit.name, node, spec, tile, ctx.target, packed, variables)
    products = spec.flops + 2 * math.prod(expand.shape) * math.prod(expand.weights.shape[1:])
    return replace(
        kernel,
        constants={**kernel.constants, **constants},
        inner_epilogue=middle.epilogue,
        innermost_epilogue=expand.epilogue,
        work={
            Unit.FP16_MATRIX: products,
            Unit.FP32: 2 * math.prod(middle.shape) * problem.taps,
        },
        needed={"src": math.prod(src.shape[:3]) * src.padded_channels},
    )
