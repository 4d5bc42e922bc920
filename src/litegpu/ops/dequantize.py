"""DEQUANTIZE of a constant float16 tensor: the converter's way to store float16 weights."""

from __future__ import annotations

from litegpu.graph import DType, Graph, Node
from litegpu.ops import checks
from litegpu.ops.base import Op, Shape, register


@register
class Dequantize(Op):
    """Widens float16 constants; it is folded away before any kernel is chosen."""

    name = "DEQUANTIZE"
    max_version = 3

    def check(self, graph: Graph, node: Node) -> str:
        reason = checks.input_count(node, 1, 1)
        if reason:
            return reason
        source = graph.values[node.inputs[0]]
        if not (source.is_constant and source.dtype is DType.FLOAT16):
            return f"Only float16 constants are dequantized; the input is {source.dtype.name}."
        return ""

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        return (graph.values[node.inputs[0]].shape,)
