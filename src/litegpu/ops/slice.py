"""SLICE: returns the part of a value with a begin and a size along each axis."""

from __future__ import annotations

from collections.abc import Sequence

from litegpu.graph import Graph, Node
from litegpu.ops.base import Cuts, NewValue, Op, Shape, constant_list, register
from litegpu.ops.common import checks
from litegpu.ops.common.facts import Array, Folded
from litegpu.ops.common.types import INTEGERS, MOVED
from litegpu.ops.strided_slice import folded_slice, part_nodes


@register
class Slice(Op):
    """Returns `size` elements from `begin` on along each axis; -1 selects all further elements."""

    name = "SLICE"
    max_version = 8
    shape_operands = (1, 2)
    takes = (MOVED, INTEGERS)
    gives = None

    def fold(self, graph: Graph, node: Node, operands: Sequence[Array]) -> Folded | None:
        return folded_slice(operands, _ranges(graph, node), self.infer(graph, node)[0])

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            checks.input_count(node, 3, 3),
            checks.operands(graph, node, (1,)),
            checks.integers(graph, node, 1, "begin"),
            checks.integers(graph, node, 2, "size"),
            lambda: self._check_bounds(graph, node),
        )

    def _check_bounds(self, graph: Graph, node: Node) -> str:
        shape = graph.values[node.inputs[0]].shape
        begin, size = (constant_list(graph, v) for v in node.inputs[1:])
        if len(begin) != len(shape) or len(size) != len(shape):
            return f"begin {begin} and size {size} do not fit {len(shape)} dimensions."
        for first, count, extent in zip(begin, size, shape, strict=True):
            if count == 0 or count < -1 or not 0 <= first < extent or first + count > extent:
                return (
                    f"The slice with begin {begin} and size {size} is empty, or exceeds the shape "
                    f"{list(shape)}."
                )
        return ""

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        return (tuple(map(len, _ranges(graph, node))),)

    def cuts(self, graph: Graph, node: Node) -> Cuts:
        return Cuts(node.inputs[0], (_ranges(graph, node),))

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        ranges = _ranges(graph, node)
        return part_nodes(graph, node, node.inputs[0], ranges, node.outputs[0], new_value)


def _ranges(graph: Graph, node: Node) -> list[range]:
    """Return the input indices of a slice, one range per dimension."""
    shape = graph.values[node.inputs[0]].shape
    begin, size = (constant_list(graph, v) for v in node.inputs[1:3])
    return [
        range(first, extent if count == -1 else first + count)
        for first, count, extent in zip(begin, size, shape, strict=True)
    ]
