"""TRANSPOSE: permutes axes; no kernel is needed if only axes of size 1 move."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from litegpu.graph import DType, Graph, Node
from litegpu.ops.base import NewValue, Op, Shape, constant_list, register
from litegpu.ops.common import checks, facts
from litegpu.ops.common.facts import Array, Folded
from litegpu.ops.common.types import INTEGERS, MOVED
from litegpu.ops.index_map import Source, index_map_node, plain


@register
class Transpose(Op):
    """Permutes the axes of a value."""

    name = "TRANSPOSE"
    max_version = 9
    shape_operands = (1,)
    takes = (MOVED, INTEGERS)
    gives = None

    def fold(self, graph: Graph, node: Node, operands: Sequence[Array]) -> Folded | None:
        data, order = operands
        return facts.as_many(operands, lambda: [np.transpose(data, np.ravel(order))])

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            checks.input_count(node, 2, 2),
            checks.operands(graph, node, (1,)),
            checks.integers(graph, node, 1, "The permutation", kinds=(DType.INT32,)),
            lambda: _check_order(graph, node),
        )

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        shape = graph.values[node.inputs[0]].shape
        return (tuple(shape[axis] for axis in constant_list(graph, node.inputs[1])),)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        order = [axis % len(_order(graph, node)) for axis in _order(graph, node)]
        sources = [Source(((order.index(axis), 1),)) for axis in range(len(order))]
        digits = plain(graph.values[node.outputs[0]].shape)
        return (index_map_node(graph, node, digits, sources),)


def _order(graph: Graph, node: Node) -> list[int]:
    return constant_list(graph, node.inputs[1])


def _check_order(graph: Graph, node: Node) -> str:
    rank = len(graph.values[node.inputs[0]].shape)
    order = _order(graph, node)
    if sorted(axis + rank if axis < 0 else axis for axis in order) == list(range(rank)):
        return ""
    return f"Permutation for transpose is invalid: {order} with {rank} dimensions."
