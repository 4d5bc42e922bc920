"""UNPACK: divides a value along an axis into parts without that axis."""

from __future__ import annotations

from litegpu.graph import Graph, Node
from litegpu.ops.base import Shape, register
from litegpu.ops.common import checks
from litegpu.ops.split import Parts


@register
class Unpack(Parts):
    """Divides a value into parts of size 1 along an axis, and removes this axis."""

    name = "UNPACK"
    max_version = 6

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            checks.input_count(node, 1, 1),
            checks.operands(graph, node, (1,), len(node.outputs)),
            lambda: checks.axis(graph, node.inputs[0], node.params["axis"]),
            lambda: self._check_count(graph, node),
        )

    def _check_count(self, graph: Graph, node: Node) -> str:
        shape = graph.values[node.inputs[0]].shape
        size, wanted = shape[node.params["axis"]], node.params["num"]
        if size == wanted == len(node.outputs):
            return ""
        return (
            f"num = {wanted} parts are requested of {size} elements along axis "
            f"{node.params['axis']}."
        )

    def parts(self, graph: Graph, node: Node) -> tuple[int, int, list[int]]:
        axis = node.params["axis"] % len(graph.values[node.inputs[0]].shape)
        return node.inputs[0], axis, [1] * len(node.outputs)

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        _, axis, _ = self.parts(graph, node)
        return tuple((*s[:axis], *s[axis + 1 :]) for s in super().infer(graph, node))
