"""CAST between floats, integers and truth values."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from litegpu.graph import DType, Graph, Node, Stage
from litegpu.ops import checks, facts, types
from litegpu.ops.base import COPY, NewValue, Op, Shape, register
from litegpu.ops.facts import Array, Folded

_STEPS = {DType.BOOL: "CAST_BOOL", DType.INT32: "CAST_INT32", DType.INT64: "CAST_INT64"}
_WIDENING = {
    (DType.BOOL, DType.INT32),
    (DType.BOOL, DType.INT64),
    (DType.INT32, DType.INT64),
}
"""Casts to integers that change no number."""


@register
class Cast(Op):
    """Floats, integers and truth values as each other; what lies out of range becomes the limit."""

    name = "CAST"
    max_version = 1
    takes = (types.ROUNDED,)
    gives = types.HELD

    def fold(self, graph: Graph, node: Node, operands: Sequence[Array]) -> Folded | None:
        return facts.integers(np.asarray, graph, node, operands)

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            checks.input_count(node, 1, 1),
            checks.operands(graph, node, (1,)),
            lambda: _check_exact(graph, node),
        )

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        return (graph.values[node.inputs[0]].shape,)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        source, target = (graph.values[v].dtype for v in (node.inputs[0], node.outputs[0]))
        same = source == target or (source, target) in _WIDENING
        function = "" if same else _STEPS.get(target, "")
        stages = (Stage(function),) if function else ()
        return (Node(node.index, COPY, 1, node.inputs, node.outputs, stages=stages),)


def _check_exact(graph: Graph, node: Node) -> str:
    source, target = graph.values[node.inputs[0]], graph.values[node.outputs[0]]
    integers = {source.dtype, target.dtype} <= types.INTEGER_TYPES
    if integers and not types.is_exact(source):
        return (
            f"Not supported Cast case. Input type: {source.dtype.name} and output type: "
            f"{target.dtype.name}, for the integers may be larger than a device holds exactly."
        )
    return ""
