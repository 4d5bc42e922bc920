"""SPLIT_V: divides a value into parts of separate sizes."""

from __future__ import annotations

from typing import ClassVar

from litegpu.graph import Graph, Node
from litegpu.ops.base import Values, constant_list, register
from litegpu.ops.common import checks
from litegpu.ops.split import Parts


@register
class SplitV(Parts):
    """Divides a value into parts of the listed sizes along an axis; one size may be -1."""

    name = "SPLIT_V"
    max_version = 3
    shape_operands = (1, 2)
    accepts: ClassVar = {"num_splits": Values(about="any: the sizes determine the number")}

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            checks.input_count(node, 3, 3),
            checks.operands(graph, node, (1,), len(node.outputs)),
            checks.integers(graph, node, 1, "The sizes"),
            checks.integers(graph, node, 2, "The axis"),
            lambda: checks.constant_axis(graph, node, 2),
            lambda: self._check_sizes(graph, node),
        )

    def _check_sizes(self, graph: Graph, node: Node) -> str:
        shape = graph.values[node.inputs[0]].shape
        _, axis, sizes = self.parts(graph, node)
        if len(sizes) != len(node.outputs) or min(sizes) < 1 or sum(sizes) != shape[axis]:
            wanted = constant_list(graph, node.inputs[1])
            return (
                f"The shape {list(shape)} is not divisible into parts of {wanted} along axis "
                f"{axis}."
            )
        return ""

    def parts(self, graph: Graph, node: Node) -> tuple[int, int, list[int]]:
        shape = graph.values[node.inputs[0]].shape
        sizes = constant_list(graph, node.inputs[1])
        axis = constant_list(graph, node.inputs[2])[0] % len(shape)
        rest = shape[axis] - sum(size for size in sizes if size != -1)
        return node.inputs[0], axis, [rest if size == -1 else size for size in sizes]
