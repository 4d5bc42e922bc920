"""EXPAND_DIMS: a RESHAPE that adds a dimension of size 1."""

from __future__ import annotations

from litegpu.graph import Graph, Node
from litegpu.ops.base import Shape, constant_list, register
from litegpu.ops.common import checks
from litegpu.ops.reshape import Reshape


@register
class ExpandDims(Reshape):
    """Adds a dimension of size 1."""

    name = "EXPAND_DIMS"
    max_version = 1

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            checks.input_count(node, 2, 2),
            checks.operands(graph, node, (1,)),
            checks.integers(graph, node, 1, "The axis"),
            lambda: checks.constant_axis(graph, node, 1, added=1),
        )

    def _wanted(self, graph: Graph, node: Node) -> Shape:
        shape = graph.values[node.inputs[0]].shape
        (axis,) = constant_list(graph, node.inputs[1])
        position = axis % (len(shape) + 1)
        return (*shape[:position], 1, *shape[position:])
