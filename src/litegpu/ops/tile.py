"""TILE: repeats the whole value along each dimension."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from litegpu.graph import Graph, Node
from litegpu.ops.base import NewValue, Op, Shape, constant_list, register
from litegpu.ops.common import checks
from litegpu.ops.common.types import INTEGERS, MOVED
from litegpu.ops.index_map import MixedRadix, Source, index_map_node


@register
class Tile(Op):
    """Repeats the whole value along each dimension."""

    name = "TILE"
    max_version = 3
    shape_operands = (1,)
    takes = (MOVED, INTEGERS)
    gives = None

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            checks.input_count(node, 2, 2),
            checks.operands(graph, node, (1,)),
            checks.integers(graph, node, 1, "The multiples"),
            lambda: self._check_multiples(graph, node),
        )

    def _check_multiples(self, graph: Graph, node: Node) -> str:
        shape = graph.values[node.inputs[0]].shape
        multiples = constant_list(graph, node.inputs[1])
        if len(multiples) == len(shape) and min(multiples, default=1) > 0:
            return ""
        return f"The multiples {multiples} do not fit {list(shape)}, or the result is empty."

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        shape = graph.values[node.inputs[0]].shape
        multiples = constant_list(graph, node.inputs[1])
        return (tuple(m * size for m, size in zip(multiples, shape, strict=True)),)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        shape = graph.values[node.inputs[0]].shape
        multiples = constant_list(graph, node.inputs[1])
        digits = [
            MixedRadix((m, size) if m > 1 else (size,))
            for m, size in zip(multiples, shape, strict=True)
        ]
        last = np.cumsum([len(axis.sizes) for axis in digits]) - 1
        return (
            index_map_node(graph, node, digits, [Source(((int(digit), 1),)) for digit in last]),
        )
