"""SQUEEZE: a RESHAPE that removes axes of size 1."""

from __future__ import annotations

from litegpu.graph import Graph, Node
from litegpu.ops.base import Shape, register
from litegpu.ops.common import checks
from litegpu.ops.reshape import Reshape


@register
class Squeeze(Reshape):
    """Removes axes of size 1."""

    name = "SQUEEZE"
    max_version = 2

    def check(self, graph: Graph, node: Node) -> str:
        reason = checks.first_of(checks.input_count(node, 1, 1), checks.operands(graph, node, (1,)))
        if reason:
            return reason
        shape = graph.values[node.inputs[0]].shape
        dims = node.params.get("squeeze_dims", ())
        if any(not -len(shape) <= axis < len(shape) or shape[axis] != 1 for axis in dims):
            return f"The dimensions {list(dims)} of {list(shape)} are not all 1."
        return ""

    def _wanted(self, graph: Graph, node: Node) -> Shape:
        shape = graph.values[node.inputs[0]].shape
        chosen = {axis % len(shape) for axis in node.params.get("squeeze_dims", ())}
        drop = chosen or {axis for axis, size in enumerate(shape) if size == 1}
        return tuple(size for axis, size in enumerate(shape) if axis not in drop)
