"""REVERSE_V2: reverses the order of elements along some axes."""

from __future__ import annotations

from collections.abc import Sequence

from litegpu.graph import Graph, Node
from litegpu.ops.base import NewValue, Op, Shape, constant_list, register
from litegpu.ops.common import checks
from litegpu.ops.common.types import INTEGERS, MOVED
from litegpu.ops.strided_slice import part_nodes


@register
class ReverseV2(Op):
    """Reverses the order of elements along some axes."""

    name = "REVERSE_V2"
    max_version = 4
    takes = (MOVED, INTEGERS)
    gives = None

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            checks.input_count(node, 2, 2),
            checks.operands(graph, node, (1,)),
            checks.integers(graph, node, 1, "The axes"),
            lambda: checks.first_of(
                *(
                    checks.axis(graph, node.inputs[0], axis)
                    for axis in constant_list(graph, node.inputs[1])
                )
            ),
        )

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        return (graph.values[node.inputs[0]].shape,)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        shape = graph.values[node.inputs[0]].shape
        reversed_axes = {axis % len(shape) for axis in constant_list(graph, node.inputs[1])}
        ranges = [range(n)[::-1] if i in reversed_axes else range(n) for i, n in enumerate(shape)]
        return part_nodes(graph, node, node.inputs[0], ranges, node.outputs[0], new_value)
