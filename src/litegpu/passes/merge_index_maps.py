"""Merges two maps that treat each axis by itself: they resize, mirror, reverse, exchange axes.

The kernel that goes would have written a whole value, often one larger than what it read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from litegpu.graph import Graph, Node
from litegpu.ops.base import Shape
from litegpu.ops.index_map import INDEX_MAP, IndexMapAttributes, Source, index_map_node, plain
from litegpu.passes.base import PASSES, Editor, PassResult, label, only_consumer


@dataclass(frozen=True, slots=True)
class _Lookup:
    """Where the indices along one axis of the input come from.

    `indices` has one for each place along `axis` of the output; without an axis, it has just one.
    """

    axis: int | None
    indices: tuple[int, ...]


@PASSES.add(after="index_map_into_window", because="what convolutions do not see by themselves")
def merge_index_maps(graph: Graph) -> PassResult:
    """Let the second of two such index maps look its elements up in the input of the first."""
    edit = Editor(graph)
    consumers = graph.consumers()
    producers: dict[int, int] = {}  # value id -> place of the index map that makes it by now
    for position, node in enumerate(graph.nodes):
        if node.op != INDEX_MAP or node.epilogue:
            continue
        producers[node.outputs[0]] = position
        source = producers.get(node.inputs[0])
        producer = None if source is None else edit.nodes[source]
        if source is None or producer is None or producer.op != INDEX_MAP:
            continue
        first, second = _lookups(graph, producer), _lookups(graph, node)
        reason = ""
        if first is None or second is None:
            reason = "one depends on more than its own axis"
        elif only_consumer(node.inputs[0], consumers, graph.outputs) is None:
            reason = "others read the value in between"
        if first is None or second is None or reason:
            edit.declined.append(f"{label(producer)} and {label(node)}: {reason}")
            continue
        both = [_then(each, second) for each in first]
        edit.nodes[position] = _node(graph, replace(node, inputs=producer.inputs), both, producer)
        edit.nodes[source] = None
        edit.applied.append(f"{label(producer)} into {label(node)}")
    return edit.result()


def _lookups(graph: Graph, node: Node) -> list[_Lookup] | None:
    """Return the lookup of each axis of the input, if there is no more to an index map."""
    attributes: IndexMapAttributes = node.attributes
    shape, out = (graph.values[v].shape for v in (node.inputs[0], node.outputs[0]))
    if any(len(axis.sizes) > 1 or axis.begin for axis in attributes.digits):
        return None
    found = [_lookup(s, size, out) for s, size in zip(attributes.sources, shape, strict=True)]
    known = [each for each in found if each is not None]
    return known if len(known) == len(found) else None


def _lookup(source: Source, size: int, out: Shape) -> _Lookup | None:
    if source.bounded or source.operand or len(source.terms) > 1:
        return None
    axis, factor = source.terms[0] if source.terms else (None, 0)
    positions = (source.offset + factor * i for i in range(1 if axis is None else out[axis]))
    if source.mirror is not None:
        positions = (_mirrored(i, source.mirror, size) for i in positions)
    table = source.table
    return _Lookup(axis, tuple(i if table is None else table[i] for i in positions))


def _mirrored(index: int, edge: int, size: int) -> int:
    """Return an index reflected at both ends, as a kernel does it."""
    inner = max(index, edge - index)
    return min(inner, 2 * size - 2 - edge - inner)


def _then(first: _Lookup, second: Sequence[_Lookup]) -> _Lookup:
    """Return where the index along an axis comes from over two index maps."""
    if first.axis is None:
        return first
    further = second[first.axis]
    return _Lookup(further.axis, tuple(first.indices[i] for i in further.indices))


def _node(graph: Graph, node: Node, lookups: Sequence[_Lookup], producer: Node) -> Node:
    """Return the index map of these lookups: steps of one size where they are, else a table."""
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
