"""Composes elementwise ops that depend on one value only into one epilogue op.

Models express activations such as GELU, swish or mish in several ops, of which at least two read x.
x must therefore be stored, and the producer of x cannot have an epilogue. The composed epilogue op
reads x once, and a pass can fuse it with the producer of x.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from litegpu.codegen import FLOAT, register_of
from litegpu.graph import SELF, EpilogueOp, Graph, Node, Step
from litegpu.ops.base import COPY, as_float32
from litegpu.ops.common.functions import (
    EXPRESSION,
    NUMBER,
    depends_on_position,
    element_operands,
    registers,
    steps_of,
)
from litegpu.passes.base import Editor, PassResult, label

_MAX_STEPS = 64
"""Maximum number of steps: compilers are slow for thousands of them."""
_MAX_BUFFERS = 2
"""Maximum number of constants that are not single numbers: devices limit the number of buffers."""


def compose_elementwise(graph: Graph) -> PassResult:
    """Walk in execution order, so that composed ops become parts of larger ones."""
    edit = Editor(graph)
    producers = {v: position for position, n in enumerate(graph.nodes) for v in n.outputs}
    for position, node in enumerate(graph.nodes):
        found = _expression(edit, producers, position)
        if found is None:
            continue
        if found.is_read:
            edit.declined.append(f"{label(node)}: other nodes read a value in between")
            continue
        nodes = [found.nodes[each] for each in sorted(found.nodes)]
        *inner, last = nodes
        merged = [*last.merged, *(index for n in inner for index in (*n.merged, n.index))]
        epilogue = (_composed(graph, found.x, nodes),)
        edit.nodes[position] = replace(
            last, inputs=(found.x,), epilogue=epilogue, merged=tuple(merged)
        )
        for each in found.nodes.keys() - {position}:
            edit.nodes[each] = None
        edit.applied.append(f"{label(node)}: one op for {len(merged) + 1} nodes")
    return edit.result()


@dataclass(frozen=True, slots=True)
class _Found:
    """The nodes, by position, between a value `x` and the result of the last node."""

    x: int
    nodes: Mapping[int, Node]
    is_read: bool
    """Whether a node that does not belong to the expression reads a value in between."""


def _expression(edit: Editor, producers: Mapping[int, int], position: int) -> _Found | None:
    """Return the smallest expression of one value that ends in a node of at least two values.

    Returns None if there is none. Other passes fuse chains of nodes that read one value each.
    """
    values = edit.values
    nodes: dict[int, Node] = {}
    waiting: dict[int, int] = {}  # value id -> position of its producer
    budget, buffers = _MAX_STEPS, set[int]()
    is_read = False
    at = position
    while True:
        node = edit.nodes[at] if at >= 0 else None
        if node is None or not _composable(edit.graph, node):
            return None
        nodes[at] = node
        constants = {v for v in node.operands if values[v].is_constant}
        waiting |= {v: producers.get(v, -1) for v in node.operands if v not in constants}
        buffers |= {v for v in constants if values[v].elements > 1}
        budget -= sum(len(steps_of(each)) for each in node.epilogue)
        if budget < 0 or len(buffers) > _MAX_BUFFERS:
            return None
        if len(waiting) == 1:
            return _Found(next(iter(waiting)), nodes, is_read) if len(nodes) > 1 else None
        v = max(waiting, key=waiting.__getitem__)
        at = waiting.pop(v)
        is_read |= v in edit.graph.outputs or not nodes.keys() >= {*edit.nodes.readers(v)}


def _composable(graph: Graph, node: Node) -> bool:
    """Whether a node computes floats from floats of its own shape and constants."""
    if node.op != COPY or not node.epilogue or depends_on_position(node.epilogue):
        return False
    shape = graph.values[node.outputs[0]].shape
    tensors = [v for v in node.operands if not graph.values[v].is_constant]
    return (
        all(graph.values[v].shape == shape for v in tensors)
        and all(register_of(graph.values[v].dtype) is FLOAT for v in node.operands)
        and all(_takes_floats(each) for each in node.epilogue)
    )


def _takes_floats(epilogue_op: EpilogueOp) -> bool:
    plain = not epilogue_op.extend and element_operands(epilogue_op) == epilogue_op.operands
    operands = [FLOAT] * len(epilogue_op.operands)
    return plain and registers(epilogue_op, FLOAT, operands) == (FLOAT, FLOAT)


def _composed(graph: Graph, x: int, nodes: Sequence[Node]) -> EpilogueOp:
    """Return the epilogue op that computes the last node's result from `x`."""
    read = dict.fromkeys(v for node in nodes for v in node.operands)
    constants = [graph.values[v] for v in read if graph.values[v].is_constant]
    operands = [each.id for each in constants if each.elements > 1]
    scalars = {each.id: as_float32(each).item() for each in constants if each.elements == 1}
    numbers = {v: number for number, v in enumerate([x, *operands, *scalars])}
    steps = [Step(NUMBER, (), (("value", each),)) for each in scalars.values()]
    for node in nodes:
        running = numbers[node.inputs[0]]
        for epilogue_op in node.epilogue:
            others = (v for v in epilogue_op.operands if v != SELF)
            inputs = [running, *(numbers[v] for v in others)]
            for step in steps_of(epilogue_op):
                steps.append(replace(step, inputs=tuple(inputs[each] for each in step.inputs)))
                inputs.append(len(operands) + len(steps))
            running = inputs[-1]
        numbers[node.outputs[0]] = running
    return EpilogueOp(EXPRESSION, tuple(operands), steps=tuple(steps))
