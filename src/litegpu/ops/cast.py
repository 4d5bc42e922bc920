"""CAST: converts between floats, integers, bools and complex numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from litegpu.codegen import LONG, register_of
from litegpu.graph import DType, EpilogueOp, Graph, Node
from litegpu.ops.base import COPY, NewValue, Op, Shape, register
from litegpu.ops.common import checks, facts, types
from litegpu.ops.common.facts import Array, Folded
from litegpu.ops.common.functions import OF_UNSIGNED, TO_UNSIGNED, cast_name
from litegpu.ops.common.types import CAST_TYPES, VIEWED_AS

_WIDENING = {
    (DType.BOOL, DType.FLOAT32),
    (DType.BOOL, DType.FLOAT16),
    (DType.FLOAT16, DType.FLOAT32),
    (DType.INT8, DType.INT16),
    (DType.UINT8, DType.INT16),
    (DType.UINT8, DType.UINT16),
    *((source, DType.INT32) for source in (DType.INT8, DType.UINT8, DType.INT16, DType.UINT16)),
}
"""Casts between types with the same device representation, which change no number."""
_FROM_UINT32 = {DType.FLOAT32, DType.FLOAT16, DType.INT64}
_TO_UINT32 = {DType.FLOAT32, DType.FLOAT16}
"""Types whose casts depend on the sign, which the int32 that represents a uint32 has."""


@register
class Cast(Op):
    """Clamps floats to the integer range, with NaN to the upper bound; wraps integers around."""

    name = "CAST"
    max_version = 9
    takes = (types.CASTABLE,)
    gives = types.CASTABLE

    def fold(self, graph: Graph, node: Node, operands: Sequence[Array]) -> Folded | None:
        # A constant of halves represents float32 weights; a view has not the numbers of its type.
        halves = graph.values[node.outputs[0]].dtype is DType.FLOAT16
        if halves or CAST_TYPES in node.params:
            return None
        return facts.integers(np.asarray, graph, node, operands)

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            checks.input_count(node, 1, 1),
            checks.operands(graph, node, (1,)),
        )

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        return (graph.values[node.inputs[0]].shape,)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        viewed = (graph.values[v].dtype for v in (node.inputs[0], node.outputs[0]))
        epilogue = _epilogue(*node.params.get(CAST_TYPES, viewed))
        return (Node(node.index, COPY, 1, node.inputs, node.outputs, epilogue=epilogue),)


def _epilogue(source: DType, target: DType) -> tuple[EpilogueOp, ...]:
    """Return the epilogue ops that convert between two types; an int32 represents a uint32."""
    if source is target or (source, target) in _WIDENING:
        return ()
    if source is DType.UINT32 and target in _FROM_UINT32:
        return (EpilogueOp(OF_UNSIGNED), EpilogueOp(cast_name(LONG, target)))
    if target is DType.UINT32 and source in _TO_UINT32:
        return (EpilogueOp(TO_UNSIGNED),)
    source, target = (VIEWED_AS.get(each, each) for each in (source, target))
    return () if source is target else (EpilogueOp(cast_name(register_of(source), target)),)
