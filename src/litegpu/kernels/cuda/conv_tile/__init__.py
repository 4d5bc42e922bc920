"""Convolutions of many pixels on tensor cores, with large tiles: cuda/conv_tile."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from litegpu.codegen import Storage, round_up
from litegpu.graph import SELF, DType, Node
from litegpu.kernels.base import IN_MEMORY, Implementation, Plan, Rejected
from litegpu.kernels.cuda.conv import Packed, conv_kernel, obstacle
from litegpu.kernels.cuda.conv_tile.tile import (
    NARROWEST,
    PREFETCH,
    WideProblem,
    WideTile,
    candidates,
)
from litegpu.kernels.cuda.halves import Halves, halves_of
from litegpu.kernels.cuda.packing import CHUNKS, PART, pack_tiles
from litegpu.kernels.cuda.tiles import TOO_LARGE, TilePlan, choose
from litegpu.kernels.examples import ConvExample
from litegpu.ops.base import KernelRequest, LowerContext, Target
from litegpu.ops.common.conv_spec import ConvSpec
from litegpu.ops.common.window import Window

TOO_FEW = Rejected("too few tiles to keep the device busy")
_MIN_BUSY = 0.75
"""Minimum ratio of tiles to multiprocessors, for products of halves.

On an H200, cuda/conv_mma took 1.2 to 2.8 times as long as cuda/conv_tile for 22 convolutions of
halves. In these convolutions, the number of tiles was three quarters to all of the number of
multiprocessors. If the tiles used only half of the multiprocessors, cuda/conv_mma was faster for
some convolutions. With floats, ResNet-50 with a batch of 8 took a seventh longer.
"""


def plan_tiles(
    problem: WideProblem,
    target: Target,
    kernel: Callable[[Node, LowerContext, Any], KernelRequest],
    warp_groups: bool = True,
    rounds_input: bool = False,
) -> Plan | Rejected:
    """Return the tiles of a problem, or why there are none; `kernel` creates the launch of a tile.

    Without `warp_groups`, the function omits tiles that need warp-group instructions.
    """
    narrowest, halves = WideTile(problem, NARROWEST, 4, 1), problem.part == PART[False]
    if math.prod(narrowest.blocks) < (_MIN_BUSY if halves else 1) * target.compute_units:
        return TOO_FEW
    groups = target.model.warp_groups and warp_groups
    # Warp groups multiply whole k-tiles: for less, single warps were 1.1 to 1.2 times as fast.
    of_less = halves and problem.k_chunks < CHUNKS
    both = (False, True) if of_less else (True, False)
    sorts = both if groups else (False,)
    chosen = [choose(candidates(problem, sort), target) for sort in sorts]
    tiles = [tile for each in chosen if not isinstance(each, Rejected) for tile in each]
    if not tiles:
        return TOO_LARGE
    return TilePlan(("conv_tile", problem), tiles, kernel, rounds_input=rounds_input)


class ConvTile(Implementation):
    """A kernel that multiplies large tiles in shared memory: for many pixels."""

    name = "cuda/conv_tile"
    example = ConvExample((1, 102, 512, 64), 60, kernel=3)
    small = ConvExample((1, 9, 17, 9), 70, kernel=3)

    def plan(self, spec: ConvSpec, target: Target) -> Plan | Rejected:
        found = obstacle(spec, target) or _obstacle(spec, target)
        if found is not None:
            return found
        split = not target.policy.uses_fp16
        problem = WideProblem.of(spec, split)
        rounds = problem.floats and not split
        return plan_tiles(problem, target, partial(_kernel, spec=spec), rounds_input=rounds)

    def rank(self, spec: ConvSpec) -> int:
        """Return a sort key that is last if most products would be padding."""
        outputs, *_, inputs = spec.weights.shape
        wide = round_up(outputs, NARROWEST) * round_up(inputs, PART[False])
        return 2 * outputs * inputs < wide


def _obstacle(spec: ConvSpec, target: Target) -> Rejected | None:
    if spec.depthwise is not None:
        return IN_MEMORY
    floats = spec.src.dtype is DType.FLOAT32
    if floats and target.policy.uses_fp16 and not spec.may_round(target):
        return Rejected("the node has too little work to justify rounding its input")
    return None


def _kernel(node: Node, ctx: LowerContext, tile: WideTile, spec: ConvSpec) -> KernelRequest:
    dst, src, weights, problem = spec.dst, spec.src, spec.array, tile.problem
    floats, tile = problem.floats, replace(tile, adds=_adds(node, ctx))
    split = Halves([weights], None) if floats else halves_of(weights, ctx.target, exact=False)
    in_fours = not tile.rows_at_once
    arranged = pack_tiles(
        split.parts[0],
        problem.k_tiles,
        tile.columns,
        floats,
        problem.split,
        problem.grouped,
        in_fours,
    )
    packed = Packed(arranged, split.back, spec.weights.bias, tile.column_blocks * tile.columns)
    variables = {
        **tile_variables(tile, spec.window, src, dst),
        "FLOATS": floats,
        "SPLIT": problem.split,
        "rowwise": spec.keeps_rows,
    }
    target, name = ctx.target, ConvTile.name
    return conv_kernel(
        name, node, spec, tile, target, packed, variables, problem.unit, problem.products
    )


def _adds(node: Node, ctx: LowerContext) -> bool:
    """Whether the epilogue reads a tensor of the size of the result."""
    size = ctx.value(node.outputs[0]).elements
    operands = (v for each in node.epilogue for v in each.operands if v != SELF)
    return any(ctx.value(v).elements == size for v in operands)


def tile_variables(tile: WideTile, window: Window, src: Storage, dst: Storage) -> dict[str, Any]:
    """Return the template variables of a tile; by default for halves."""
    problem = tile.problem
    return {
        "BM": tile.pixels,
        "BN": tile.columns,
        "WM": tile.warps_m,
        "WN": tile.warps_n,
        "CHUNKS": CHUNKS,
        "PREFETCH": PREFETCH,
        "STAGES": tile.stages,
        "DEPTH": tile.depth,
        "ROWS": tile.rows_at_once,
        "WARP_GROUPS": tile.warp_groups,
        "FLOATS": False,
        "SPLIT": False,
        "PART": problem.part,
        "PARTS": problem.parts,
        "GROUPED": problem.grouped,
        "zoom": window.zoom,
        "TAP_STEPS": [
            step * stride // problem.part
            for step, stride in zip(window.dilation, src.strides[1:], strict=True)
        ],
        "K_CHUNKS": problem.k_chunks,
        "K_TILES": problem.k_tiles,
        "COLUMN_BLOCKS": tile.column_blocks,
        "ASYNC": problem.copied,
        "input_blocks": -(-problem.weights[3] // 4),
        "padded": window.leaves(src.shape[1:3], dst.shape[1:3]),
    }
