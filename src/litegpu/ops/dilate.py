"""DILATE: elements of a constant between all elements of a value."""

from __future__ import annotations

from collections.abc import Sequence

from litegpu.graph import DType, Graph, Node
from litegpu.ops.base import NewValue, Op, Shape, constant_list, register
from litegpu.ops.common import checks
from litegpu.ops.common.types import INTEGERS, MOVED
from litegpu.ops.index_map import MixedRadix, Source, index_map_node


@register
class Dilate(Op):
    """The elements of a value further apart in each dimension, and a constant between them."""

    name = "DILATE"
    max_version = 1
    shape_operands = (1,)
    takes = (MOVED, INTEGERS, MOVED)
    gives = None

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            checks.input_count(node, 3, 3),
            checks.operands(graph, node, (1,)),
            checks.integers(graph, node, 1, "The dilations", kinds=(DType.INT32,)),
            checks.constant(graph, node, 2, "The padding value", MOVED),
            lambda: _check_dilations(graph, node),
        )

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        shape = graph.values[node.inputs[0]].shape
        steps = constant_list(graph, node.inputs[1])
        return (tuple((n - 1) * step + 1 for n, step in zip(shape, steps, strict=True)),)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        """Map each index to digits: an element, and its distance, which is 0 for no constant."""
        shape = graph.values[node.inputs[0]].shape
        steps = constant_list(graph, node.inputs[1])
        fill = constant_list(graph, node.inputs[2])[0]
        digits = [MixedRadix((n, step)) for n, step in zip(shape, steps, strict=True)]
        sources = [
            # At any distance the index is one beyond the input.
            Source(((2 * axis, 1), (2 * axis + 1, n)), bounded=step > 1)
            for axis, (n, step) in enumerate(zip(shape, steps, strict=True))
        ]
        return (index_map_node(graph, node, digits, sources, fill, cut=max(steps) > 1),)


def _check_dilations(graph: Graph, node: Node) -> str:
    shape = graph.values[node.inputs[0]].shape
    steps = constant_list(graph, node.inputs[1])
    if not shape or len(steps) != len(shape) or min(steps) < 1:
        return f"The dilations {steps} do not fit {list(shape)}, or are less than 1."
    return ""
