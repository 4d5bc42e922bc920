"""Reads the axis from an op's second operand, as in ARG_MAX and CUMSUM."""

from __future__ import annotations

from litegpu.graph import Graph, Node
from litegpu.ops.base import constant_list
from litegpu.ops.common import checks


def axis_of(graph: Graph, node: Node) -> int:
    """Return the axis of a checked node, counted from the front."""
    rank = len(graph.values[node.inputs[0]].shape)
    number: int = constant_list(graph, node.inputs[1])[0]
    return number % rank


def check_axis(graph: Graph, node: Node) -> str:
    """Require a computed input and a constant axis of at most 2^24 elements."""
    return checks.first_of(
        checks.input_count(node, 2, 2),
        checks.operands(graph, node, (1,)),
        checks.integers(graph, node, 1, "The axis"),
        lambda: checks.constant_axis(graph, node, 1),
        lambda: _check_size(graph, node),
    )


def _check_size(graph: Graph, node: Node) -> str:
    size = graph.values[node.inputs[0]].shape[axis_of(graph, node)]
    return f"An axis has {size} elements, more than 2^24." if size > 1 << 24 else ""
