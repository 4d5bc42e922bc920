"""Merges a PAD that only appends zero channels into the elementwise op that reads it."""

from __future__ import annotations

from dataclasses import replace

from litegpu.graph import Graph, Node
from litegpu.ops.base import COPY
from litegpu.passes.base import Editor, PassResult, label, only_consumer


def pad_into_operand(graph: Graph) -> PassResult:
    """Let the epilogue op read the unpadded value, with zero for the missing channels."""
    edit = Editor(graph)
    consumers = graph.consumers()
    for position, node in enumerate(graph.nodes):
        if node.op != "PAD" or not _appends_channels(graph, node):
            continue
        reader = only_consumer(node.outputs[0], consumers, graph.outputs)
        # An earlier PAD may have changed the reader already: ADD(PAD(a), PAD(b)).
        current = reader and edit.nodes[edit.position(reader)]
        swapped = current and _as_operand(graph, current, node)
        if reader is None or swapped is None:
            edit.declined.append(f"{label(node)}: not read by one element-wise op alone")
            continue
        edit.nodes[edit.position(reader)] = swapped
        edit.nodes[position] = None
        edit.applied.append(f"{label(node)} into {label(reader)}")
    return edit.result()


def _appends_channels(graph: Graph, node: Node) -> bool:
    source = graph.values[node.inputs[0]].shape4
    padded = graph.values[node.outputs[0]].shape4
    padding = node.attributes
    zeros_behind = padding.begin == (0, 0, 0, 0) and padding.fill == 0
    return zeros_behind and not node.epilogue and source[:3] == padded[:3]


def _as_operand(graph: Graph, reader: Node, pad: Node) -> Node | None:
    """Return `reader` with the unpadded value as its first op's operand; None if impossible."""
    if reader.op != COPY or len(reader.operands) < 2:
        return None
    first, padded, narrow = reader.epilogue[0], pad.outputs[0], pad.inputs[0]
    whole = graph.values[padded].shape == graph.values[reader.outputs[0]].shape
    if not whole or sum(v == padded for v in reader.operands) > 1:
        return None
    if first.operands == (padded,):
        epilogue_op, inputs = replace(first, operands=(narrow,), extend=True), reader.inputs
    elif reader.inputs == (padded,) and _same_shape(graph, first.operands, padded):
        # The other input becomes the running value, the padded one the operand.
        inputs = first.operands
        epilogue_op = replace(first, operands=(narrow,), position=1 - first.position, extend=True)
    else:
        return None
    merged = (*reader.merged, pad.index)
    return replace(
        reader, inputs=inputs, epilogue=(epilogue_op, *reader.epilogue[1:]), merged=merged
    )


def _same_shape(graph: Graph, operands: tuple[int, ...], padded: int) -> bool:
    if len(operands) != 1 or operands[0] not in graph.values:
        return False
    other = graph.values[operands[0]]
    return not other.is_constant and other.shape == graph.values[padded].shape
