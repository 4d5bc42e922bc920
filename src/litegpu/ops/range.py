"""RANGE: returns integers from a computed start, if the distance to the limit is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from litegpu.graph import EpilogueOp, Graph, Node
from litegpu.ops.base import COPY, NewValue, Op, Shape, register
from litegpu.ops.broadcast_to import broadcast_node
from litegpu.ops.common import checks, facts
from litegpu.ops.common.facts import KNOWN_LATE, Array, Folded
from litegpu.ops.common.functions import of_integers
from litegpu.ops.common.types import INTEGERS

_START, _LIMIT, _DELTA = range(3)
_MOVES = ("EXPAND_DIMS", "RESHAPE", "SQUEEZE")
"""Ops that do not change a single number."""


@register
class Range(Op):
    """Returns integers from a computed start to a limit at a known distance, in constant steps."""

    name = "RANGE"
    max_version = 2
    shape_operands = (_START, _LIMIT, _DELTA)
    takes = (INTEGERS,)
    gives = INTEGERS

    def fold(self, graph: Graph, node: Node, operands: Sequence[Array]) -> Folded | None:
        found = facts.integers(np.arange, graph, node, operands)
        start, limit, delta = (int(each) for each in operands)
        return found and Folded(_count(limit - start, delta), found.make)

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            checks.input_count(node, 3, 3), lambda: "" if _known(graph, node) else KNOWN_LATE
        )

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        return ((_known(graph, node),),)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        dtype = graph.values[node.outputs[0]].dtype
        (count,) = graph.values[node.outputs[0]].shape
        delta = _number(graph, node.inputs[_DELTA])
        starts = new_value((count,))
        steps = new_value((count,), np.arange(count, dtype=dtype.value) * delta)
        spread = replace(node, inputs=node.inputs[:1], outputs=(starts,))
        add = EpilogueOp(of_integers("ADD"), (steps,))
        return (
            broadcast_node(graph, spread, (count,)),
            Node(node.index, COPY, 1, (starts,), node.outputs, epilogue=(add,)),
        )


def _count(distance: int, delta: int) -> int:
    return max(0, -(-distance // delta))


def _known(graph: Graph, node: Node) -> int:
    """Return the number of elements; 0 if the range is empty or the number is unknown."""
    delta = _number(graph, node.inputs[_DELTA])
    (first, begin), (last, end) = (_sum(graph, node.inputs[i]) for i in (_START, _LIMIT))
    one = all(graph.values[v].elements == 1 for v in node.inputs)
    return _count(end - begin, delta) if one and delta and first == last else 0


def _number(graph: Graph, v: int) -> int | None:
    """Return the only element of a constant; None for values of any other kind."""
    data = graph.values[v].data
    return None if data is None or data.size != 1 else int(np.ravel(data)[0])


def _sum(graph: Graph, v: int) -> tuple[int, int]:
    """Split value `v` into a value that is not computed as a sum, and a constant offset."""
    added = 0
    while (node := graph.producers().get(v)) is not None:
        first, *others = node.inputs
        second = _number(graph, others[0]) if others else None
        plain = node.params.get("activation", "none") == "none"
        if node.op in _MOVES:
            v = first
        elif node.op in ("ADD", "SUB") and second is not None and plain:
            v, added = first, added + (second if node.op == "ADD" else -second)
        elif node.op == "ADD" and plain and (number := _number(graph, first)) is not None:
            v, added = others[0], added + number
        else:
            break
    return v, added
