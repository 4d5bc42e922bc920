"""PACK: stacks values along a new axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np

from litegpu.graph import Graph, Node
from litegpu.ops.base import NewValue, Op, Shape, Values, register
from litegpu.ops.common import checks, facts
from litegpu.ops.common.facts import Array, Folded
from litegpu.ops.common.types import MOVED
from litegpu.ops.concatenation import joined_nodes


def _check_count(node: Node) -> str:
    wanted, given = node.params["values_count"], len(node.inputs)
    return "" if wanted == given else f"{given} inputs, but values_count = {wanted}."


@register
class Pack(Op):
    """Stacks values of equal shape along a new axis."""

    name = "PACK"
    accepts: ClassVar = {"axis": Values(about="-rank - 1 to rank", wrong=(7, -8))}
    max_version = 5
    takes = (MOVED,)
    gives = None

    def fold(self, graph: Graph, node: Node, operands: Sequence[Array]) -> Folded | None:
        return facts.as_many(operands, lambda: [np.stack(operands, node.params["axis"])])

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            checks.input_count(node, 1, 1 << 16),
            _check_count(node),
            checks.operands(graph, node, tuple(range(1, len(node.inputs) + 1))),
            checks.constants(graph, node, "The part", MOVED),
            lambda: checks.equal_shapes(graph, node),
            lambda: checks.axis(graph, node.inputs[0], node.params["axis"], added=1),
        )

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        shape = graph.values[node.inputs[0]].shape
        axis = node.params["axis"] % (len(shape) + 1)
        return ((*shape[:axis], len(node.inputs), *shape[axis:]),)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        shape = graph.values[node.inputs[0]].shape
        axis = node.params["axis"] % (len(shape) + 1)
        wide = [(*shape[:axis], 1, *shape[axis:])] * len(node.inputs)
        joined = replace(node, op="CONCATENATION")
        return joined_nodes(graph, joined, wide, axis, new_value)
