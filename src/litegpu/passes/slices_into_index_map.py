"""Replaces a CONCATENATION of reordered slices of one value by one index map.

Rotary position embeddings use a CONCATENATION of reordered slices: one half of the channels,
negated, precedes the other half.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from litegpu.graph import DType, EpilogueOp, Graph, Node
from litegpu.ops.base import COPY
from litegpu.ops.channel_maps import MAX_CHANNELS
from litegpu.ops.copy import CopyAttributes
from litegpu.ops.index_map import MixedRadix, Source, index_map_node, plain
from litegpu.ops.strided_slice import STRIDED_SLICE
from litegpu.passes.base import Editor, PassResult, label, only_consumer

_CHANNELS = 3


@dataclass(frozen=True, slots=True)
class _Part:
    """A slice: its indices along the axis of its source, its factor, and its nodes."""

    source: int
    indices: range
    factor: float
    nodes: tuple[Node, ...]


def slices_into_index_map(graph: Graph) -> PassResult:
    """Visit each CONCATENATION of slices; slices with other readers remain."""
    edit = Editor(graph)
    producers, consumers = graph.producers(), graph.consumers()
    for position, node in enumerate(graph.nodes):
        if node.op != "CONCATENATION" or len(node.inputs) < 2:
            continue
        found = [_part(graph, node, v, producers, consumers) for v in node.inputs]
        parts = [each for each in found if isinstance(each, _Part)]
        reason = next((each for each in found if isinstance(each, str)), "")
        if not reason and len({each.source for each in parts}) > 1:
            reason = "the parts come from several values"
        if not reason and any(_adjacent(*pair) for pair in pairwise(parts)):
            reason = "the pass join_slices joins the parts"
        if reason:
            edit.declined.append(f"{label(node)}: {reason}")
            continue
        nodes = [each for part in parts for each in part.nodes]
        edit.nodes[position] = _node(edit, node, parts)
        edit.drop_unread(sorted(set(nodes), key=edit.position, reverse=True))
        edit.applied.append(f"{', '.join(map(label, nodes))} into {label(node)}")
    return edit.result()


def _part(
    graph: Graph,
    joined: Node,
    value: int,
    producers: Mapping[int, Node],
    consumers: Mapping[int, list[Node]],
) -> _Part | str:
    """Return a part as a slice, or why an index map cannot compute it."""
    axis, shape = joined.attributes.axis, graph.values[value].shape4
    if axis == _CHANNELS and graph.values[joined.outputs[0]].shape4[axis] <= MAX_CHANNELS:
        return "the pass join_channels joins so few channels"
    node, factor, nodes = producers.get(value), 1.0, list[Node]()
    if node is not None and (scale := _factor(graph, node)) is not None:
        if only_consumer(value, consumers, graph.outputs) is None:
            return f"other nodes also read {label(node)}"
        nodes.append(node)
        factor, node = scale, producers.get(node.inputs[0])
    if node is None or node.op != STRIDED_SLICE or node.epilogue:
        return "a part is not a slice"
    source = graph.values[node.inputs[0]]
    attributes: CopyAttributes = node.attributes
    others = [i for i in range(4) if i != axis]
    cut = any(source.shape4[i] != shape[i] or attributes.begin[i] for i in others)
    if cut or any(attributes.step[i] != 1 for i in others) or len(source.shape) > 4:
        return f"{label(node)} cuts other axes"
    begin, step = attributes.begin[axis], attributes.step[axis]
    indices = range(begin, begin + shape[axis] * step, step)
    return _Part(source.id, indices, factor, (*nodes, node))


def _adjacent(a: _Part, b: _Part) -> bool:
    """Whether one part begins where the other ends, so that a single slice can compute both."""
    dense = (a.indices.step, b.indices.step) == (1, 1)
    return dense and a.indices.stop == b.indices.start and a.factor == b.factor


def _factor(graph: Graph, node: Node) -> float | None:
    """Return the factor if a node only multiplies all elements by a constant; otherwise None."""
    if node.op != COPY or node.attributes is not None or len(node.epilogue) != 1:
        return None
    same = graph.values[node.inputs[0]].shape == graph.values[node.outputs[0]].shape
    (epilogue_op,) = node.epilogue
    if not same or graph.values[node.outputs[0]].dtype is not DType.FLOAT32:
        return None
    if epilogue_op.function == "NEG":
        return -1.0
    if epilogue_op.function != "MUL" or len(epilogue_op.operands) != 1:
        return None
    operand = graph.values.get(epilogue_op.operands[0])
    number = None if operand is None else operand.data
    return float(number.item()) if number is not None and number.size == 1 else None


def _node(edit: Editor, node: Node, parts: Sequence[_Part]) -> Node:
    """Return the index map that joins the parts, with their factors as an epilogue op."""
    value = edit.values[node.outputs[0]]
    axis = node.attributes.axis - 4 + len(value.shape)
    digits, sources = _map(value.shape, axis, [each.indices for each in parts])
    moved = index_map_node(edit.graph, replace(node, inputs=(parts[0].source,)), digits, sources)
    numbers = (number for part in parts for each in part.nodes for number in (each.index,))
    factors = np.concatenate([np.full(len(p.indices), p.factor, np.float32) for p in parts])
    epilogue = node.epilogue
    if (factors != 1).any():
        shape = [1] * len(value.shape)
        shape[axis] = len(factors)
        constant = edit.new_constant(f"{value.name}/factors", factors.reshape(shape))
        epilogue = (EpilogueOp("MUL", (constant,)), *epilogue)
    return replace(moved, epilogue=epilogue, merged=(*node.merged, *dict.fromkeys(numbers)))


def _map(
    shape: Sequence[int], axis: int, indices: Sequence[range]
) -> tuple[list[MixedRadix], list[Source]]:
    """Return digits and sources: with constant steps from part to part, or with a table."""
    digits, sources = list(plain(tuple(shape))), [Source(((i, 1),)) for i in range(len(shape))]
    first = indices[0]
    steps = {b.start - a.start for a, b in pairwise(indices)}
    if len(steps) > 1 or any(
        (len(each), each.step) != (len(first), first.step) for each in indices
    ):
        table = tuple(i for each in indices for i in each)
        sources[axis] = Source(((axis, 1),), table=table)
        return digits, sources
    digits[axis] = MixedRadix((len(indices), len(first)))
    sources = [Source(((i + (i > axis), 1),)) for i in range(len(shape))]
    sources[axis] = Source(((axis, steps.pop()), (axis + 1, first.step)), first.start)
    return digits, sources
