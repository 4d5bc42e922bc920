"""Attention with half-precision tensor cores, for many queries and keys: cuda/attention_flash."""

from __future__ import annotations

from functools import partial

from litegpu.graph import DType, Node
from litegpu.kernels.attention import beyond_limits
from litegpu.kernels.base import Implementation, Plan, Rejected
from litegpu.kernels.cuda.attention_flash.tile import FlashProblem, FlashTile, candidates, is_busy
from litegpu.kernels.cuda.tiles import TilePlan, choose
from litegpu.kernels.examples import AttentionExample
from litegpu.ops.attention import AttentionSpec
from litegpu.ops.base import KernelRequest, LowerContext, Target
from litegpu.ops.common.units import Unit

_MIN_KEYS = 32
_MIN_ROWS = 16


class AttentionFlash(Implementation):
    """A kernel for many queries and keys: warps share keys and values as halves.

    The sums are float32.
    """

    name = "cuda/attention_flash"
    example = AttentionExample(4096, 4096, 64)

    def plan(self, spec: AttentionSpec, target: Target) -> Plan | Rejected:
        if rejected := beyond_limits(spec, target):
            return rejected
        if not target.model.tensor_cores:
            return Rejected("the device has no tensor cores")
        if spec.rows < _MIN_ROWS or spec.keys < _MIN_KEYS:
            return Rejected("the scores would leave most of a tile empty")
        floats = any(value.dtype is DType.FLOAT32 for value in spec.values[:3])
        if not target.policy.uses_fp16 or (floats and not target.policy.may_round(spec.flops)):
            return Rejected("the node has too little work to justify rounding its input")
        depths, widths = (-(-each // 16) for each in spec.depths)
        problem = FlashProblem(spec.products, spec.rows, spec.keys, depths, widths)
        if not is_busy(problem, target.compute_units):
            return Rejected("the queries are too few to keep the device busy")
        tiles = choose(candidates(problem), target)
        if isinstance(tiles, Rejected):
            return tiles
        kernel = partial(_kernel, spec=spec)
        return TilePlan(("attention_flash", problem), tiles, kernel, rounds_input=floats)


def _kernel(
    node: Node, ctx: LowerContext, tile: FlashTile, *, spec: AttentionSpec
) -> KernelRequest:
    key_pitch, value_pitch = tile.pitches
    return KernelRequest(
        template=AttentionFlash.name,
        grid=(tile.threads, tile.blocks[1], 1),
        local=(tile.threads, 1, 1),
        output=node.outputs[0],
        reads=dict(zip(("query", "key", "values"), node.inputs[:3], strict=True)),
        variables={
            "WARPS": tile.warps,
            "TURN": tile.turn,
            "DEPTHS": tile.problem.depths,
            "WIDTHS": tile.problem.widths,
            "KEY_PITCH": key_pitch,
            "VALUE_PITCH": value_pitch,
            "SPLIT": tile.split,
            "SUM_PITCH": tile.sum_pitch,
            "MASKED": bool(spec.epilogue),
            "shared": tile.shared,
            **spec.words(tile.tiles),
        },
        shared=tile.shared.arrays,
        inner_epilogue=spec.epilogue,
        work={Unit.FP16_MATRIX: spec.flops},
    )
