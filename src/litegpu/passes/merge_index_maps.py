"""Merges two index maps along single axes: slices, resizes, reflections, reversals, transposes.

The merge saves a kernel that writes a whole value, which is often larger than its input.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from litegpu.graph import Graph, Node
from litegpu.ops.common.lookups import Lookup, lookups
from litegpu.ops.common.permutation import permutation_of
from litegpu.ops.copy import CopyAttributes
from litegpu.ops.index_map import INDEX_MAP, Source, index_map_node, plain
from litegpu.ops.strided_slice import STRIDED_SLICE
from litegpu.passes.base import Editor, PassResult, label, only_consumer

_UNIT = 8
"""Channel counts that are a multiple of this consist of whole channel blocks, also when stored as
half.
"""


def merge_index_maps(graph: Graph) -> PassResult:
    """Let the second of two index maps read the input of the first.

    The first index map may be a slice, which is either a separate kernel or a view of its input.
    """
    edit = Editor(graph)
    consumers = graph.consumers()
    producers: dict[int, int] = {}  # value id -> position of its current producer
    for position, node in enumerate(graph.nodes):
        if node.op not in (INDEX_MAP, STRIDED_SLICE) or node.epilogue:
            continue
        producers[node.outputs[0]] = position
        if node.op == STRIDED_SLICE:
            continue
        source = producers.get(node.inputs[0])
        producer = None if source is None else edit.nodes[source]
        if source is None or producer is None or producer.op not in (INDEX_MAP, STRIDED_SLICE):
            continue
        first, second = lookups(graph, producer), lookups(graph, node)
        reason = ""
        if first is None or second is None:
            reason = "an index depends on more than its own axis"
        elif only_consumer(node.inputs[0], consumers, graph.outputs) is None:
            reason = "other nodes read the value in between"
        elif _is_view(graph, producer) and permutation_of(graph, node) is not None:
            reason = "the slice is a view, and attention may read it in another order"
        if first is None or second is None or reason:
            edit.declined.append(f"{label(producer)} and {label(node)}: {reason}")
            continue
        both = [_then(each, second) for each in first]
        edit.nodes[position] = _node(graph, replace(node, inputs=producer.inputs), both, producer)
        edit.nodes[source] = None
        edit.applied.append(f"{label(producer)} into {label(node)}")
    return edit.result()


def _is_view(graph: Graph, node: Node) -> bool:
    """Whether a node slices whole units of channels of a computed value: a free view."""
    source, result = (graph.values[v] for v in (node.inputs[0], node.outputs[0]))
    if node.op != STRIDED_SLICE or source.id in graph.inputs or source.is_constant:
        return False
    cut: CopyAttributes = node.attributes
    if source.shape[:-1] != result.shape[:-1] or cut.step[-1] != 1:
        return False
    return cut.begin[-1] % _UNIT == 0 and result.shape[-1] % _UNIT == 0


def _then(first: Lookup, second: Sequence[Lookup]) -> Lookup:
    """Return the composition of two index maps for one axis."""
    if first.axis is None:
        return first
    further = second[first.axis]
    return Lookup(further.axis, tuple(first.indices[i] for i in further.indices))


def _node(graph: Graph, node: Node, lookups: Sequence[Lookup], producer: Node) -> Node:
    """Return the index map of these lookups: with constant steps if possible, else as a table."""
    sources = []
    for each in lookups:
        start, *rest = each.indices
        step = rest[0] - start if rest else 1
        if each.axis is None:
            sources.append(Source((), start))
        elif each.indices == tuple(start + i * step for i in range(len(each.indices))):
            sources.append(Source(((each.axis, step),), start))
        else:
            sources.append(Source(((each.axis, 1),), table=each.indices))
    digits = plain(graph.values[node.outputs[0]].shape)
    moved = index_map_node(graph, node, digits, sources)
    return replace(moved, merged=(*node.merged, *producer.merged, producer.index))
