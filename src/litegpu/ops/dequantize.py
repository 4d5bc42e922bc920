"""DEQUANTIZE of a constant float16 tensor: the converter's way to store float16 weights."""

from __future__ import annotations

from collections.abc import Sequence

from litegpu.graph import DType, Graph, Node
from litegpu.ops import checks
from litegpu.ops.base import Op, Shape, register
from litegpu.ops.facts import Array, Folded
from litegpu.ops.traits import Trait


@register
class Dequantize(Op):
    """Widens float16 constants; it is folded away before any kernel is chosen."""

    name = "DEQUANTIZE"
    max_version = 3
    traits = Trait.SAME_DATA

    def fold(self, graph: Graph, node: Node, operands: Sequence[Array]) -> Folded | None:
        # float16 weights stay float16 until a kernel packs them: half the memory to read.
        half = graph.values[node.inputs[0]].dtype is DType.FLOAT16
        return Folded(0, lambda: operands) if half else None

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
