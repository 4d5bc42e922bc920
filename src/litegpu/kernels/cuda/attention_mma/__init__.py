"""Attention on tensor cores: cuda/attention_mma."""

from __future__ import annotations

from functools import partial

from litegpu.graph import DType, Node
from litegpu.kernels.attention import beyond_limits
from litegpu.kernels.base import Implementation, Plan, Rejected
from litegpu.kernels.cuda.attention_mma.tile import AttentionProblem, AttentionTile, candidates
from litegpu.kernels.cuda.tiles import TilePlan, choose
from litegpu.kernels.examples import AttentionExample
from litegpu.ops.attention import AttentionSpec
from litegpu.ops.base import KernelRequest, LowerContext, Target
from litegpu.ops.common.units import Unit

_FEWEST = 8
"""Minimum number of queries and keys: smaller numbers leave more than half of a tile empty."""


class AttentionMma(Implementation):
    """A kernel in which each warp computes 16 or 8 rows in tf32, in registers for the softmax."""

    name = "cuda/attention_mma"
    example = AttentionExample(197, 197, 64)
    small = AttentionExample(19, 37, 20)

    def plan(self, spec: AttentionSpec, target: Target) -> Plan | Rejected:
        if rejected := beyond_limits(spec, target):
            return rejected
        if not target.model.tensor_cores:
            return Rejected("the device has no tensor cores")
        if min(spec.rows, spec.keys) < _FEWEST:
            return Rejected("the scores would leave most of a tile empty")
        problem = problem_of(spec)
        tiles = choose(candidates(problem, target), target)
        if isinstance(tiles, Rejected):
            return tiles
        return TilePlan(("attention_mma", problem), tiles, partial(_kernel, spec=spec))


def problem_of(spec: AttentionSpec) -> AttentionProblem:
    """Return the sizes that determine the tiles of a spec."""
    _, key, values, result = spec.values
    return AttentionProblem(
        spec.products,
        spec.rows,
        spec.keys,
        spec.depths[0],
        4 * result.channel_blocks,
        key.channels * key.dtype.size + values.channels * values.dtype.size,
        any(value.dtype is DType.FLOAT32 for value in spec.values[:3]),
    )


def _kernel(
    node: Node, ctx: LowerContext, tile: AttentionTile, *, spec: AttentionSpec
) -> KernelRequest:
    split = tile.problem.split
    return KernelRequest(
        template=AttentionMma.name,
        grid=(tile.threads, tile.blocks[1], 1),
        local=(tile.threads, 1, 1),
        output=node.outputs[0],
        reads=dict(zip(("query", "key", "values"), node.inputs[:3], strict=True)),
        variables={
            "QUERIES": tile.queries,
            "TURN": tile.turn,
            "ONCE": tile.once,
            "AHEAD": tile.ahead,
            "KEY_WARPS": tile.key_warps,
            "ROW_WARPS": tile.row_warps,
            "PITCH": tile.pitch,
            "SPLIT": split,
            "shared": tile.shared,
            **spec.words(tile.tiles),
        },
        shared=tile.shared.arrays,
        inner_epilogue=spec.epilogue,
        work={Unit.TF32_MATRIX: spec.flops},
        products=3 if split else 1,
    )
