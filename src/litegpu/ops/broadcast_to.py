"""BROADCAST_TO: repeats dimensions of size 1."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from litegpu.graph import Graph, Node
from litegpu.ops.base import NewValue, Op, Shape, constant_list, register
from litegpu.ops.common import checks
from litegpu.ops.common.types import INTEGERS, MOVED
from litegpu.ops.index_map import Source, index_map_node, plain


@register
class BroadcastTo(Op):
    """Repeats dimensions of size 1, and adds leading dimensions, as in NumPy."""

    name = "BROADCAST_TO"
    max_version = 4
    shape_operands = (1,)
    takes = (MOVED, INTEGERS)
    gives = None

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            checks.input_count(node, 2, 2),
            checks.operands(graph, node, (1,)),
            checks.integers(graph, node, 1, "The new shape"),
            lambda: self._check_shape(graph, node),
        )

    def _check_shape(self, graph: Graph, node: Node) -> str:
        shape, wanted = graph.values[node.inputs[0]].shape, tuple(self._wanted(graph, node))
        try:
            if np.broadcast_shapes(shape, wanted) == wanted and min(wanted, default=1) > 0:
                return ""
        except ValueError:
            pass
        return f"{list(shape)} cannot be broadcast to {list(wanted)}."

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        return (tuple(self._wanted(graph, node)),)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        return (broadcast_node(graph, node, self.infer(graph, node)[0]),)

    def _wanted(self, graph: Graph, node: Node) -> list[int]:
        return constant_list(graph, node.inputs[1])


def broadcast_node(graph: Graph, node: Node, wanted: Shape) -> Node:
    """Return the node that broadcasts the first input to the output's shape."""
    shape = graph.values[node.inputs[0]].shape
    lead = len(wanted) - len(shape)
    sources = [Source(((lead + axis, 1),) if size > 1 else ()) for axis, size in enumerate(shape)]
    return index_map_node(graph, node, plain(wanted), sources)
