"""FILL: sets all elements of a tensor to one number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from litegpu.graph import Graph, Node
from litegpu.ops.base import NewValue, Op, Shape, constant_list, register
from litegpu.ops.broadcast_to import broadcast_node
from litegpu.ops.common import checks
from litegpu.ops.common.facts import Array, Folded
from litegpu.ops.common.types import INTEGERS, MOVED


@register
class Fill(Op):
    """Sets all elements of a tensor of constant shape to one computed number."""

    name = "FILL"
    max_version = 5
    shape_operands = (0,)
    takes = (INTEGERS, MOVED)
    gives = None

    def fold(self, graph: Graph, node: Node, operands: Sequence[Array]) -> Folded | None:
        sizes, value = operands
        return Folded(math.prod(map(int, sizes.ravel())), lambda: [np.full(sizes, value)])

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            checks.input_count(node, 2, 2),
            checks.integers(graph, node, 0, "The shape"),
            checks.operands(graph, node, (1,)),
            lambda: _check_number(graph, node),
        )

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        return (tuple(constant_list(graph, node.inputs[0])),)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        shape = tuple(constant_list(graph, node.inputs[0]))
        return (broadcast_node(graph, replace(node, inputs=node.inputs[1:]), shape),)


def _check_number(graph: Graph, node: Node) -> str:
    found = graph.values[node.inputs[1]].shape
    return (
        ""
        if found == ()
        else (f"The fill value is a tensor of {list(found)} instead of one number.")
    )
