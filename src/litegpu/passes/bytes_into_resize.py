"""Lets RESIZE_BILINEAR read an integer image, which saves the cast of the whole image to float.

The pass also merges a preceding operation that selects or reorders up to four channels, since each
pixel of the result reads four channels.
"""

from __future__ import annotations

from dataclasses import replace

from litegpu.codegen import INT, register_of
from litegpu.graph import DType, Graph, Node
from litegpu.ops.base import COPY
from litegpu.ops.common.functions import cast_name
from litegpu.ops.common.lookups import lookups
from litegpu.ops.resize_bilinear import RESIZE_BILINEAR
from litegpu.passes.base import Editor, PassResult, label, only_consumer

_LANES = 4


def bytes_into_resize(graph: Graph) -> PassResult:
    """Merge each cast to float whose only reader is a bilinear resize."""
    edit = Editor(graph)
    producers, consumers = graph.producers(), graph.consumers()
    for position, node in enumerate(graph.nodes):
        cast = producers.get(node.inputs[0]) if node.op == RESIZE_BILINEAR else None
        if cast is None or not _is_cast(graph, cast):
            continue
        found = _lanes(graph, cast)
        if isinstance(found, str):
            reason = found
        elif only_consumer(node.inputs[0], consumers, graph.outputs) is None:
            reason = "other nodes also read the floats"
        else:
            edit.nodes[position] = replace(
                node,
                inputs=cast.inputs[:1],
                attributes=replace(node.attributes, lanes=found),
                merged=(*cast.merged, cast.index, *node.merged),
            )
            edit.nodes[edit.position(cast)] = None
            edit.applied.append(f"{label(cast)} into {label(node)}")
            continue
        edit.declined.append(f"{label(cast)} into {label(node)}: {reason}")
    return edit.result()


def _is_cast(graph: Graph, node: Node) -> bool:
    """Whether a node only casts integers to float."""
    names = [epilogue_op.function for epilogue_op in node.epilogue]
    source = register_of(graph.values[node.inputs[0]].dtype)
    return source is INT and names == [cast_name(INT, DType.FLOAT32)]


def _lanes(graph: Graph, node: Node) -> tuple[int, ...] | str:
    """Return the channels that a node selects (none: all in order), or why it cannot be merged."""
    source, result = (graph.values[v].shape for v in (node.inputs[0], node.outputs[0]))
    if node.op == COPY and node.attributes is None and source == result:
        return ()
    found = lookups(graph, node)
    if found is None or not all(found[i].keeps(i, result[i]) for i in range(3)):
        return "the node moves elements along other axes than the channels"
    if source[:3] != result[:3] or found[3].axis != 3:
        return "the node moves elements along other axes than the channels"
    if max(source[3], result[3]) > _LANES:
        return f"the node moves channels, and there are more than {_LANES}"
    return found[3].indices
