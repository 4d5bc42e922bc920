"""DENSIFY: expands a sparse constant, the converter's format of pruned weights."""

from __future__ import annotations

from collections.abc import Sequence

from litegpu.graph import Graph, Node
from litegpu.ops.base import Op, Shape, register
from litegpu.ops.common import checks
from litegpu.ops.common.facts import Array, Folded
from litegpu.ops.common.traits import Trait


@register
class Densify(Op):
    """Expands a sparse constant to a dense constant, by constant folding."""

    name = "DENSIFY"
    max_version = 1
    traits = Trait.SAME_DATA

    def fold(self, graph: Graph, node: Node, operands: Sequence[Array]) -> Folded | None:
        # The constant was expanded when the file was read.
        return Folded(0, lambda: operands)

    def check(self, graph: Graph, node: Node) -> str:
        reason = checks.input_count(node, 1, 1)
        if reason:
            return reason
        source = graph.values[node.inputs[0]]
        if not source.is_constant:
            return "Only constants are expanded; the input is computed, invalid or too large."
        result = graph.values[node.outputs[0]]
        if result.dtype is not source.dtype:
            return f"The result is {result.dtype.name}, of a constant of {source.dtype.name}."
        return ""

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        return (graph.values[node.inputs[0]].shape,)
