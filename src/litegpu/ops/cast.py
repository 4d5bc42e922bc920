"""CAST: converts between floats, integers, bools and complex numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from litegpu.codegen import register_of
from litegpu.graph import DType, EpilogueOp, Graph, Node
from litegpu.ops.base import COPY, NewValue, Op, Shape, register
from litegpu.ops.common import checks, facts, types
from litegpu.ops.common.facts import Array, Folded
from litegpu.ops.common.functions import cast_name

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
_NOT_FROM_UINT32 = {DType.FLOAT32, DType.FLOAT16, DType.INT64, DType.COMPLEX64}
_NOT_TO_UINT32 = {DType.FLOAT32, DType.FLOAT16, DType.COMPLEX64}
"""Types whose casts depend on the sign, which the int32 that represents a uint32 has."""


@register
class Cast(Op):
    """Clamps floats to the integer range, with NaN to the upper bound; wraps integers around."""

    name = "CAST"
    max_version = 9
    takes = (types.CASTABLE,)
    gives = types.CASTABLE

    def fold(self, graph: Graph, node: Node, operands: Sequence[Array]) -> Folded | None:
        # A constant of halves represents float32 weights.
        halves = graph.values[node.outputs[0]].dtype is DType.FLOAT16
        return None if halves else facts.integers(np.asarray, graph, node, operands)

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            checks.input_count(node, 1, 1),
            checks.operands(graph, node, (1,)),
            lambda: _check_unsigned(graph, node),
        )

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        return (graph.values[node.inputs[0]].shape,)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        source, target = (graph.values[v].dtype for v in (node.inputs[0], node.outputs[0]))
        if source == target or (source, target) in _WIDENING:
            epilogue: tuple[EpilogueOp, ...] = ()
        else:
            epilogue = (EpilogueOp(cast_name(register_of(source), target)),)
        return (Node(node.index, COPY, 1, node.inputs, node.outputs, epilogue=epilogue),)


def _check_unsigned(graph: Graph, node: Node) -> str:
    """Require a cast that does the same to the bits of a uint32 as to those of an int32."""
    source, target = (graph.values[v].dtype for v in (node.inputs[0], node.outputs[0]))
    of_uint32 = source is DType.UINT32 and target in _NOT_FROM_UINT32
    to_uint32 = target is DType.UINT32 and source in _NOT_TO_UINT32
    if not of_uint32 and not to_uint32:
        return ""
    return f"The GPU does not convert {source.name} to {target.name}."
