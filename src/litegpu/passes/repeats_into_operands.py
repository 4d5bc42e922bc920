"""Lets elementwise ops read a value that is repeated along axes before the repetition.

A language model joins one mask of a token as many times as heads share a key; elementwise ops
broadcast such an operand themselves.
"""

from __future__ import annotations

from dataclasses import replace

from litegpu.codegen.storage import Shape4
from litegpu.graph import SELF, EpilogueOp, Graph, Node
from litegpu.ops.common.functions import element_operands
from litegpu.ops.common.permutation import Permutation, repetition_of, simplified
from litegpu.ops.index_map import strides
from litegpu.passes.base import Editor, PassResult, label


def repeats_into_operands(graph: Graph) -> PassResult:
    """Replace operands of epilogues by values of size 1 along the axes of a repetition."""
    edit = Editor(graph)
    repeats = {
        node.outputs[0]: node
        for node in graph.nodes
        if node.outputs[0] not in graph.outputs and _is_broadcast(graph, node)
    }
    for position, node in enumerate(graph.nodes):
        epilogue = tuple(_unrepeated(each, repeats) for each in node.epilogue)
        if epilogue != node.epilogue:
            edit.nodes[position] = replace(node, epilogue=epilogue)
            read = {v for each in node.epilogue for v in each.operands} & repeats.keys()
            edit.applied += [f"{label(repeats[v])} into {label(node)}" for v in sorted(read)]
    edit.drop_unread([node for node in reversed(graph.nodes) if node.outputs[0] in repeats])
    return edit.result()


def _unrepeated(epilogue_op: EpilogueOp, repeats: dict[int, Node]) -> EpilogueOp:
    """Return the op with its elementwise operands before their repetition."""
    if epilogue_op.extend:
        return epilogue_op
    elements = len(element_operands(epilogue_op))
    operands = tuple(
        repeats[v].inputs[0] if v != SELF and number < elements and v in repeats else v
        for number, v in enumerate(epilogue_op.operands)
    )
    return replace(epilogue_op, operands=operands)


def _is_broadcast(graph: Graph, node: Node) -> bool:
    """Whether a node repeats a value of the same rank along axes where it has size 1."""
    repetition = repetition_of(graph, node) if node.inputs else None
    if repetition is None:
        return False
    source, result = (graph.values[v] for v in (node.inputs[0], node.outputs[0]))
    if len(source.shape) != len(result.shape) or len(source.shape) > 4:
        return False
    fits = all(a in (1, b) for a, b in zip(source.shape, result.shape, strict=True))
    different = source.shape != result.shape
    return fits and different and repetition == _broadcast(source.shape4, result.shape4)


def _broadcast(source: Shape4, result: Shape4) -> Permutation | None:
    """Return the digits of a value that is broadcast to a shape."""
    digits = zip(result, source, strides(source), strict=True)
    return simplified([(size, step if own > 1 else 0) for size, own, step in digits])
