"""DEQUANTIZE: converts float16 constants (weights stored by converters) and quantized tensors."""

from __future__ import annotations

from collections.abc import Sequence

from litegpu.graph import DType, Graph, Node
from litegpu.ops.base import Op, Shape, register
from litegpu.ops.common import checks
from litegpu.ops.common.facts import Array, Folded
from litegpu.ops.common.traits import Trait
from litegpu.ops.common.types import is_quantized
from litegpu.ops.exact.quantize import ExactDequantize, check_dequantized, dequantized


@register
class Dequantize(Op):
    """Converts quantized or float16 tensors to float32; constants are folded."""

    name = "DEQUANTIZE"
    max_version = 9
    launches = 0
    traits = Trait.SAME_DATA
    exact = ExactDequantize()

    def fold(self, graph: Graph, node: Node, operands: Sequence[Array]) -> Folded | None:
        # float16 weights stay float16 until a kernel packs them, which halves the memory to read.
        source = graph.values[node.inputs[0]]
        if source.dtype is DType.FLOAT16:
            return Folded(0, lambda: operands)
        if not is_quantized(graph, node) or check_dequantized(graph, node):
            return None
        return Folded(source.elements, lambda: [dequantized(source)])

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
