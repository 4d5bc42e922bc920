"""Removes nodes that change nothing: COPY, CAST to the same type, same-shape RESHAPE, empty PAD.

The pass also replaces a RESHAPE of a constant by a constant.
"""

from __future__ import annotations

from dataclasses import replace

from litegpu.graph import Graph, Node
from litegpu.ops.base import COPY, has
from litegpu.ops.common.traits import Trait
from litegpu.ops.copy import CopyAttributes
from litegpu.ops.reshape import RESHAPE
from litegpu.passes.base import Editor, PassResult, label

_CASTS = frozenset(("CAST", COPY))
"""Operations, before and after normalization, that are the identity for equal type and shape."""


def remove_identity(graph: Graph) -> PassResult:
    """Let readers of an identity read its input; nodes that compute graph outputs remain."""
    edit = Editor(graph)
    for position, node in enumerate(graph.nodes):
        target = node.outputs[0]
        if node.op == RESHAPE and _is_constant(edit, position) and target not in graph.outputs:
            edit.nodes[position] = None
            edit.applied.append(f"{label(node)} of a constant")
            continue
        if not _is_identity(graph, node):
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
    same_type = (source.dtype, source.quantization) == (result.dtype, result.quantization)
    return same_type and source.shape == result.shape
