"""QUANTIZE: converts real numbers to stored integers, or stored integers to another scale."""

from __future__ import annotations

from collections.abc import Sequence

from litegpu.graph import DType, Graph, Node
from litegpu.ops.base import NewValue, Op, Shape, register
from litegpu.ops.common import types
from litegpu.ops.exact.quantize import ExactQuantize


@register
class Quantize(Op):
    """Becomes epilogue ops of the kernel that computes the input; results are quantized."""

    name = "QUANTIZE"
    max_version = 6
    launches = 0
    takes = (types.Types(types.QUANTIZED_TYPES | types.FLOATS.dtypes | {DType.INT32}),)
    gives = types.Types(types.QUANTIZED_TYPES | {DType.INT32})
    exact = ExactQuantize()

    def check(self, graph: Graph, node: Node) -> str:
        return "Its tensors have no scales."

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        return (graph.values[node.inputs[0]].shape,)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        return self.exact.normalize(graph, node, new_value)
