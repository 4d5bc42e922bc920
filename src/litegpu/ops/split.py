"""SPLIT: divides a value into parts of equal size; also code shared by similar ops."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from itertools import accumulate

import numpy as np

from litegpu.graph import Graph, Node
from litegpu.ops.base import Cuts, NewValue, Op, Shape, constant_list, register
from litegpu.ops.common import checks, facts
from litegpu.ops.common.facts import Array, Folded
from litegpu.ops.common.types import INTEGERS, MOVED
from litegpu.ops.strided_slice import part_nodes


class Parts(Op):
    """Divides a value into adjacent parts along one axis."""

    takes = (MOVED, INTEGERS)
    gives = None

    @abstractmethod
    def parts(self, graph: Graph, node: Node) -> tuple[int, int, list[int]]:
        """Return the divided value, the axis, and the sizes of the parts of a checked node."""

    def fold(self, graph: Graph, node: Node, operands: Sequence[Array]) -> Folded | None:
        source, axis, sizes = self.parts(graph, node)
        shapes = self.infer(graph, node)
        data = np.asarray(graph.values[source].data)

        def make() -> Sequence[Array]:
            cut = np.split(data, np.cumsum(sizes)[:-1], axis)
            return [part.reshape(shape) for part, shape in zip(cut, shapes, strict=True)]

        return facts.as_many(operands, make)

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        source, axis, sizes = self.parts(graph, node)
        shape = graph.values[source].shape
        return tuple((*shape[:axis], size, *shape[axis + 1 :]) for size in sizes)

    def cuts(self, graph: Graph, node: Node) -> Cuts:
        source, axis, sizes = self.parts(graph, node)
        shape, ends = graph.values[source].shape, accumulate(sizes)
        chosen = (range(end - size, end) for end, size in zip(ends, sizes, strict=True))
        return Cuts(source, tuple(_along(shape, axis, each) for each in chosen))

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        cuts = self.cuts(graph, node)
        nodes: list[Node] = []
        for target, ranges in zip(node.outputs, cuts.ranges, strict=True):
            nodes += part_nodes(graph, node, cuts.source, ranges, target, new_value)
        return nodes


@register
class Split(Parts):
    """Divides a value into parts of equal size along an axis."""

    name = "SPLIT"
    max_version = 5
    takes = (INTEGERS, MOVED)
    shape_operands = (0,)

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            checks.input_count(node, 2, 2),
            checks.integers(graph, node, 0, "The axis"),
            checks.operands(graph, node, (1,), len(node.outputs)),
            lambda: checks.constant_axis(graph, node, 0, of=1),
            lambda: self._check_sizes(graph, node),
        )

    def _check_sizes(self, graph: Graph, node: Node) -> str:
        shape = graph.values[node.inputs[1]].shape
        axis, count = constant_list(graph, node.inputs[0])[0], node.params["num_splits"]
        if count != len(node.outputs) or shape[axis] % count:
            return (
                f"The shape {list(shape)} is not divisible into num_splits = {count} equal parts "
                f"along axis {axis}."
            )
        return ""

    def parts(self, graph: Graph, node: Node) -> tuple[int, int, list[int]]:
        shape = graph.values[node.inputs[1]].shape
        axis = constant_list(graph, node.inputs[0])[0] % len(shape)
        count = len(node.outputs)
        return node.inputs[1], axis, [shape[axis] // count] * count


def _along(shape: Shape, axis: int, chosen: range) -> list[range]:
    """Return ranges that select `chosen` along one axis, and all elements along all other axes."""
    return [chosen if i == axis else range(size) for i, size in enumerate(shape)]
