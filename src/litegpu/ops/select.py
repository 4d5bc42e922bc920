"""SELECT and SELECT_V2: select elements of one of two values by a condition."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from litegpu.graph import SELF, EpilogueOp, Graph, Node
from litegpu.ops.base import COPY, NewValue, Op, Shape, register
from litegpu.ops.common import checks, facts, types
from litegpu.ops.common.broadcast import check_broadcast, fitted, running_input
from litegpu.ops.common.facts import Array, Folded
from litegpu.ops.reshape import reshaped


@register
class SelectV2(Op):
    """Selects the second input where the condition is true, else the third, with broadcasting."""

    name = "SELECT_V2"
    max_version = 2
    takes = (types.BOOLS, types.MOVED)
    gives = None

    def fold(self, graph: Graph, node: Node, operands: Sequence[Array]) -> Folded | None:
        return facts.integers(np.where, graph, node, operands)

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            checks.input_count(node, 3, 3),
            checks.operands(graph, node, (1, 2, 3)),
            checks.constants(graph, node, "The operand", types.MOVED),
            lambda: self.check_shapes(graph, node),
        )

    def check_shapes(self, graph: Graph, node: Node) -> str:
        """Require shapes that can be broadcast to one shape."""
        return check_broadcast(graph, node)

    def result_shape(self, graph: Graph, node: Node) -> Shape:
        """Return the result's shape, inferred from the operands."""
        return np.broadcast_shapes(*(graph.values[v].shape for v in node.inputs))

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        values = [graph.values[v] for v in (*node.inputs, *node.outputs)]
        if all(value.elements == 1 for value in values):
            return (values[-1].shape,)  # the CPU leaves single numbers as the file states them
        return (self.result_shape(graph, node),)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        fit = fitted(graph, node, new_value)
        return fit.around(_select(graph, node, fit.inputs))


@register
class Select(SelectV2):
    """SELECT_V2 without broadcasting; a 1-D condition selects along the first axis."""

    name = "SELECT"
    max_version = 4

    def check_shapes(self, graph: Graph, node: Node) -> str:
        """Require equal shapes, or a condition with one element in all or one element per row."""
        condition, first, second = (graph.values[v].shape for v in node.inputs)
        rows = condition in ((), (1,)) or condition == first[:1]
        if first == second and (condition == first or rows):
            return ""
        return f"SELECT needs equal shapes, not {[list(s) for s in (condition, first, second)]}."

    def result_shape(self, graph: Graph, node: Node) -> Shape:
        return graph.values[node.inputs[1]].shape

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        condition, whole = (graph.values[v].shape for v in node.inputs[:2])
        if condition == whole or condition in ((), (1,)):
            return (_select(graph, node, node.inputs),)
        column = (*condition, *(1,) * (len(whole) - 1))
        rows, nodes = reshaped(graph, node, node.inputs[:1], [column], new_value)
        return (*nodes, _select(graph, node, (*rows, *node.inputs[1:])))


def _select(graph: Graph, node: Node, inputs: Sequence[int]) -> Node:
    position = running_input(graph, node, first=1)  # not the condition: passes follow the values
    running = inputs[position]
    rest = (v for i, v in enumerate(inputs) if i != position)
    epilogue_op = EpilogueOp("SELECT", tuple(SELF if v == running else v for v in rest), position)
    return Node(node.index, COPY, 1, (running,), node.outputs, epilogue=(epilogue_op,))
