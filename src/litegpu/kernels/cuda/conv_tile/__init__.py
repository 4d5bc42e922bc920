"""Convolutions of many pixels on tensor cores, by large tiles: cuda/conv_tile."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from litegpu.codegen import round_up
from litegpu.graph import DType, Node
from litegpu.kernels.base import IN_MEMORY, Implementation, Plan, Rejected
from litegpu.kernels.cuda.conv import Packed, conv_kernel, obstacle
from litegpu.kernels.cuda.conv_tile.tile import (
    NARROWEST,
    PIXELS,
    PREFETCH,
    WideProblem,
    WideTile,
    candidates,
)
from litegpu.kernels.cuda.halves import Halves, halves_of
from litegpu.kernels.cuda.packing import CHUNKS, PART, pack_tiles
from litegpu.kernels.cuda.tiles import TOO_LARGE, TilePlan, choose
from litegpu.ops.base import KernelRequest, LowerContext, Target
from litegpu.ops.conv_spec import ConvSpec

_TOO_FEW = Rejected("too few tiles to keep the device busy")


class ConvTile(Implementation):
    """Multiplies large tiles from shared memory: for many pixels."""

    name = "cuda/conv_tile"

    def plan(self, spec: ConvSpec, target: Target) -> Plan | Rejected:
        found = obstacle(spec, target) or _obstacle(spec, target)
        if found is not None:
            return found
        src, dst, split = spec.src, spec.dst, not target.policy.uses_fp16
        problem = WideProblem(src.shape, src.dtype.value, dst.shape, spec.weights.shape, split)
        narrowest = WideTile(problem, NARROWEST, 4, 1)
        if math.prod(narrowest.blocks) < target.compute_units:
            return _TOO_FEW
        sorts = (True, False) if target.model.warp_groups else (False,)
        chosen = [choose(candidates(problem, sort), target) for sort in sorts]
        tiles = [tile for each in chosen if not isinstance(each, Rejected) for tile in each]
        if not tiles:
            return TOO_LARGE
        rounds = problem.floats and not split
        key = ("conv_tile", problem)
        return TilePlan(key, tiles, partial(_kernel, spec=spec), rounds_input=rounds)

    def rank(self, spec: ConvSpec) -> int:
        """Come last where most products would be those of padding."""
        outputs, *_, inputs = spec.weights.shape
        wide = round_up(outputs, NARROWEST) * round_up(inputs, PART[False])
        return 2 * outputs * inputs < wide


def _obstacle(spec: ConvSpec, target: Target) -> Rejected | None:
    if spec.depthwise is not None:
        return IN_MEMORY
    floats = spec.src.dtype is DType.FLOAT32
    if floats and target.policy.uses_fp16 and not spec.may_round(target):
        return Rejected("it would round its input for too little work")
    return None


def _kernel(node: Node, ctx: LowerContext, tile: WideTile, spec: ConvSpec) -> KernelRequest:
    dst, src, weights, problem = spec.dst, spec.src, spec.array, tile.problem
    floats = problem.floats
    split = Halves([weights], None) if floats else halves_of(weights, ctx.target, exact=False)
    arranged = pack_tiles(split.parts[0], problem.k_tiles, tile.columns, floats, problem.split)
    packed = Packed(arranged, split.back, tile.column_blocks * tile.columns)
    variables: dict[str, Any] = {
        "BM": PIXELS,
        "BN": tile.columns,
        "WM": tile.warps_m,
        "WN": tile.warps_n,
        "CHUNKS": CHUNKS,
        "PREFETCH": PREFETCH,
        "STAGES": tile.stages,
        "WARP_GROUPS": tile.warp_groups,
        "FLOATS": floats,
        "SPLIT": problem.split,
        "PART": problem.part,
        "PARTS": problem.parts,
        "K_CHUNKS": problem.k_chunks,
        "K_TILES": problem.k_tiles,
        "COLUMN_BLOCKS": tile.column_blocks,
        "ASYNC": src.dtype is (DType.FLOAT32 if floats else DType.FLOAT16)
        and src.aligned(problem.part),
        "input_blocks": -(-weights.shape[3] // 4),
        "rowwise": spec.keeps_rows,
        "padded": spec.window.leaves(src.shape[1:3], dst.shape[1:3]),
    }
    target, name = ctx.target, ConvTile.name
    return conv_kernel(
        name, node, spec, tile, target, packed, variables, problem.unit, problem.products
    )
