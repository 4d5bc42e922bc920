"""Convolutions of images with few channels, fused with a maximum pool: cuda/conv_narrow."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from litegpu.graph import DType, Node
from litegpu.kernels.base import Implementation, Plan, Rejected
from litegpu.kernels.cuda.conv_mma import ConvMma
from litegpu.kernels.cuda.conv_narrow import (
    ConvNarrow,
    choose_tiles,
    narrow_kernel,
    narrow_problem,
)
from litegpu.kernels.cuda.conv_narrow.pooled_tile import PooledProblem, PooledTile, candidates
from litegpu.kernels.cuda.tiles import TilePlan
from litegpu.kernels.examples import ConvExample
from litegpu.ops.base import KernelRequest, LowerContext, Target
from litegpu.ops.common.units import Unit
from litegpu.ops.pooled_conv import PooledConvSpec

_MAX_CLOCK_RATIO = 0.85
"""Maximum ratio of this kernel's estimated time to the estimated time of two separate kernels."""


class PooledConvNarrow(Implementation):
    """A kernel that keeps a convolution's result on chip, for images with few channels."""

    name = "cuda/conv_narrow"
    example = ConvExample((64, 224, 224, 3), 64, kernel=5, pool=3)

    def plan(self, spec: PooledConvSpec, target: Target) -> Plan | Rejected:
        conv = narrow_problem(spec.conv, target)
        if isinstance(conv, Rejected):
            return conv
        dst = spec.dst
        size = 2 if dst.dtype is DType.FLOAT16 else 4
        problem = PooledProblem.of(conv, spec.pool, (dst.shape[1], dst.shape[2]), size)
        if problem.strip < 1:
            return Rejected("the pool's windows are wider than the tile of a warp")
        tiles = choose_tiles(conv, candidates(problem, target), target)
        if isinstance(tiles, Rejected):
            return tiles
        clocks, separate = tiles[0].clocks(target), _separate_clocks(spec, target)
        if clocks > _MAX_CLOCK_RATIO * separate:
            return Rejected(
                f"the estimate is {clocks:.0f} clocks, that of two kernels {separate:.0f}: not "
                f"less than {_MAX_CLOCK_RATIO:.0%} of them"
            )
        kernel = partial(_kernel, spec=spec)
        return TilePlan(("conv_narrow and pool", problem), tiles, kernel, clocks)


def _separate_clocks(spec: PooledConvSpec, target: Target) -> float:
    """Return the estimated clocks of a separate convolution and a memory-bound pool."""
    plans = (each.plan(spec.conv, target) for each in (ConvNarrow(), ConvMma()))
    # A convolution without an estimate counts as 0 clocks: then the two are not fused.
    conv = min((plan.clocks for plan in plans if isinstance(plan, Plan)), default=0.0)
    moved = spec.conv.dst.nbytes + spec.dst.nbytes
    return conv + moved / (target.compute_units * target.model.clocks.memory_bytes)


def _kernel(node: Node, ctx: LowerContext, tile: PooledTile, spec: PooledConvSpec) -> KernelRequest:
    conv, window = spec.conv, spec.pool.window
    # The image is addressed relative to the first window of the pool.
    kernel = narrow_kernel(node, ctx, tile, replace(conv, window=tile.problem.view))
    taps = window.kernel[0] * window.kernel[1]
    return replace(
        kernel,
        variables={**kernel.variables, "middle": conv.dst.shape},
        destination=spec.dst,
        inner_epilogue=spec.epilogue,
        work={**kernel.work, Unit.FP32: spec.dst.rows * spec.dst.channels * taps},
    )
