"""Moves element-wise ops above RESHAPE and CONCATENATION, to the kernels that can fuse them."""

from __future__ import annotations

from dataclasses import replace

from litegpu.graph import SELF, Graph, Node
from litegpu.ops.base import COPY, has
from litegpu.ops.functions import depends_on_position, element_operands
from litegpu.ops.reshape import RESHAPE
from litegpu.ops.traits import Trait
from litegpu.passes.base import Editor, PassResult, label, only_consumer


def hoist_elementwise(graph: Graph) -> PassResult:
    """Repeat the move until no epilogue op can rise any further."""
    applied: list[str] = []
    while True:
        result = _hoist_one(graph)
        if not result.applied:
            return replace(result, applied=tuple(applied))
        applied += result.applied
        graph = result.graph


def _hoist_one(graph: Graph) -> PassResult:
    edit = Editor(graph)
    producers, consumers = graph.producers(), graph.consumers()
    for position, node in enumerate(graph.nodes):
        if node.op != COPY or not node.epilogue:
            continue
        view = producers.get(node.inputs[0])
        if view is None or not has(view, Trait.HOLDS_INPUTS):
            continue
        reason = _obstacle(graph, node, view)
        if not reason and only_consumer(node.inputs[0], consumers, graph.outputs) is None:
            reason = "others read the value too"
        if not reason and any(v not in producers or v in graph.outputs for v in view.inputs):
            reason = "it reads an input, an output or a constant of the partition"
        if reason:
            edit.declined.append(f"epilogue ops after {label(view)}: {reason}")
            continue
        nodes: list[Node] = []
        renamed: list[int] = []
        for v in view.inputs:
            dtype = graph.values[node.outputs[0]].dtype
            renamed.append(edit.new_value(graph.values[v], dtype=dtype))
            nodes.append(replace(node, inputs=(v,), outputs=(renamed[-1],)))
        moved = replace(view, inputs=tuple(renamed), outputs=node.outputs)
        at = edit.position(view)
        rest = [n for i, n in enumerate(graph.nodes) if i not in (at, position)]
        edit.applied.append(f"{'+'.join(s.function for s in node.epilogue)} above {label(view)}")
        return edit.result([*rest[:at], *nodes, moved, *rest[at:]])
    return edit.result()


def _obstacle(graph: Graph, node: Node, view: Node) -> str:
    """Return why epilogue ops depend on where an element stands, or an empty text."""
    shape = graph.values[node.inputs[0]].shape
    if shape != graph.values[node.outputs[0]].shape:
        return "they broadcast their input"
    if depends_on_position(node.epilogue) and view.op != RESHAPE:
        return "their results depend on the positions of elements"
    rows = {graph.values[v].shape4[3] for v in (*view.inputs, *view.outputs)}
    by_channel = rows == {shape[-1]} if shape else False
    channels = (1, 1, 1, shape[-1]) if by_channel else ()
    read = {v for epilogue_op in node.epilogue for v in element_operands(epilogue_op)} - {SELF}
    operands = [graph.values[v] for v in read]
    if not all(v.is_constant and (v.elements == 1 or v.shape4 == channels) for v in operands):
        return "an operand differs from element to element"
    return ""
