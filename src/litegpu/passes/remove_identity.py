"""Removes nodes that change nothing: COPY, CAST to the same type, same-shape RESHAPE, empty PAD.

The pass also replaces a RESHAPE of a constant by a constant. Elementwise ops skip a RESHAPE that
adds or removes leading axes of size 1.
"""

from __future__ import annotations

from dataclasses import replace

from litegpu.graph import Graph, Node, Value
from litegpu.ops.base import COPY, Shape, has
from litegpu.ops.common.traits import Trait
from litegpu.ops.copy import CopyAttributes
from litegpu.ops.reshape import RESHAPE
from litegpu.passes.base import Editor, PassResult, label

_CASTS = frozenset(("CAST", COPY))
"""Operations, before and after normalization, that are the identity for equal type and shape."""

_MAX_AXES = 4
"""Maximum rank for which leading axes of size 1 do not change the storage of a value."""


def remove_identity(graph: Graph) -> PassResult:
    """Let readers of an identity read its input; nodes that compute graph outputs remain."""
    edit = Editor(graph)
    for position, node in enumerate(graph.nodes):
        target = node.outputs[0]
        if node.op == RESHAPE and _is_constant(edit, position) and target not in graph.outputs:
            edit.nodes[position] = None
            edit.applied.append(f"{label(node)} of a constant")
            continue
        if not _is_identity(graph, node) and not _is_skipped(graph, node):
            continue
        if target in graph.outputs:
            edit.declined.append(f"{label(node)} computes an output of the partition")
            continue
        current = edit.nodes[position]
        source = current.inputs[0] if current else node.inputs[0]
        edit.nodes[position] = None
        edit.rename(target, source)
        edit.applied.append(f"{label(node)} changes nothing")
    return edit.result()


def _is_constant(edit: Editor, position: int) -> bool:
    """Replace the RESHAPE of a constant by a constant; return whether that was possible."""
    node = edit.nodes[position]
    source = edit.values[node.inputs[0]] if node else None
    if node is None or source is None or source.data is None:
        return False
    result = edit.values[node.outputs[0]]
    data = source.data.reshape(result.shape)
    edit.values[result.id] = replace(source, id=result.id, shape=result.shape, data=data)
    return True


def _is_identity(graph: Graph, node: Node) -> bool:
    if node.epilogue or len(node.inputs) != 1:
        return False
    if node.op not in _CASTS and not has(node, Trait.RESIZES):
        return False
    if isinstance(node.attributes, CopyAttributes) and node.attributes.moves:
        return False
    source, result = (graph.values[v] for v in (node.inputs[0], node.outputs[0]))
    return source.shape == result.shape and _same_type(source, result)


def _is_skipped(graph: Graph, node: Node) -> bool:
    """Whether a RESHAPE changes leading axes of size 1 only, and only elementwise ops read it."""
    if node.op != RESHAPE or node.epilogue:
        return False
    source, result = (graph.values[v] for v in (node.inputs[0], node.outputs[0]))
    if _without_leading(source.shape) != _without_leading(result.shape):
        return False
    if not _same_type(source, result):
        return False
    readers = graph.consumers().get(result.id, [])
    ranks = (len(graph.values[each.outputs[0]].shape) for each in readers)
    elementwise = (each.op == COPY and each.epilogue and not each.attributes for each in readers)
    return (
        bool(readers)
        and all(elementwise)
        and all(len(source.shape) <= rank <= _MAX_AXES for rank in ranks)
    )


def _without_leading(shape: Shape) -> Shape:
    """Return a shape without its leading axes of size 1."""
    return shape[next((axis for axis, size in enumerate(shape) if size != 1), len(shape)) :]


def _same_type(source: Value, result: Value) -> bool:
    return (source.dtype, source.quantization) == (result.dtype, result.quantization)
