"""BUCKETIZE: counts for each number the boundaries that do not exceed the number."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import ClassVar

import numpy as np

from litegpu.codegen import INT, register_of
from litegpu.graph import DType, Graph, Node
from litegpu.ops.base import KernelRequest, LowerContext, Op, Shape, Values, register
from litegpu.ops.common import checks
from litegpu.ops.common.types import NUMBERS, Types
from litegpu.ops.common.units import Unit

_MAX_BOUNDARIES = 1 << 12


@register
class Bucketize(Op):
    """Returns the index of the bucket, between ascending boundaries, that contains each number."""

    name = "BUCKETIZE"
    max_version = 1
    takes = (Types(NUMBERS.dtypes),)
    gives = Types(frozenset({DType.INT32}))
    accepts: ClassVar[Mapping[str, Values]] = {
        "boundaries": Values(about="ascending numbers, at most 4096", wrong=((1.0, 0.0),))
    }

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            checks.input_count(node, 1, 1),
            checks.operands(graph, node, (1,)),
            lambda: _check_boundaries(node),
        )

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        return (graph.values[node.inputs[0]].shape,)

    def lower(self, node: Node, ctx: LowerContext) -> Sequence[KernelRequest]:
        dst = ctx.storage(node.outputs[0])
        boundaries = np.asarray(node.params["boundaries"], np.float32)
        padded = np.zeros((-(-max(boundaries.size, 1) // 4), 4), np.float32)
        padded.reshape(-1)[: boundaries.size] = boundaries
        kind = register_of(ctx.storage(node.inputs[0]).dtype).kind
        request = KernelRequest(
            template="bucketize",
            grid=(dst.channel_blocks, dst.rows, 1),
            output=node.outputs[0],
            reads={"src": node.inputs[0]},
            constants={"boundaries": padded},
            variables={
                "count": boundaries.size,
                "as_float": "%s" if kind == "F32" else f"CAST4_{kind}_F32(%s)",
            },
            work={Unit.FP32: dst.rows * dst.channels * boundaries.size},
            accumulator=INT,
        )
        return (request,)


def _check_boundaries(node: Node) -> str:
    boundaries = node.params["boundaries"]
    if len(boundaries) > _MAX_BOUNDARIES:
        return (
            f"The node has {len(boundaries)} boundaries; at most {_MAX_BOUNDARIES} are supported."
        )
    for pair in pairwise(boundaries):
        if not pair[0] <= pair[1]:
            return f"The boundaries {pair} are not ascending, which the CPU requires."
    return ""
