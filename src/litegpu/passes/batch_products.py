"""Replaces products of slices by one product of the value that is sliced.

Recurrent layers, unrolled loops and layers that are applied to each time step multiply the slices
of a sequence by the same weights. One product of the whole sequence reads the weights once and is
one launch; its slices are read in place.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from litegpu.graph import Graph, Node, Value
from litegpu.ops.base import Shape, get
from litegpu.ops.reshape import reshape_node
from litegpu.passes.base import Editor, PassResult, label

_ITEM_AXES: Mapping[str, int] = {"FULLY_CONNECTED": 1, "CONV_2D": 3, "DEPTHWISE_CONV_2D": 3}
"""The number of last axes of an item: these ops compute all items of a batch independently."""
_JOINS = frozenset(("CONCATENATION", "PACK"))


@dataclass(frozen=True, slots=True, eq=False)
class _Part:
    """A product of items of `source`, from `first` to before `first + count`."""

    position: int
    node: Node
    source: int
    first: int
    count: int


def batch_products(graph: Graph) -> PassResult:
    """Group the products of slices by their weights, and join each group."""
    edit = Editor(graph)
    producers = graph.producers()
    groups: dict[object, list[_Part]] = {}
    for position, node in enumerate(graph.nodes):
        part = _part(graph, producers, position, node)
        if part is not None:
            groups.setdefault(_key(graph, part), []).append(part)
    for parts in groups.values():
        first = parts[0].node
        items = _items(graph.values[parts[0].source], _ITEM_AXES[first.op])
        if len(parts) == 1:
            edit.declined.append(f"{label(first)}: no other product has its weights")
        elif sum(part.count for part in parts) < items:
            edit.declined.append(f"{label(first)}: the products read only a part of the value")
        else:
            _join(edit, parts, items)
            slices = {producers[part.node.inputs[0]] for part in parts}
            edit.drop_unread(sorted(slices, key=edit.position, reverse=True))
            edit.applied.append(f"{label(first)} and {len(parts) - 1} others with its weights")
    return edit.result()


def _part(graph: Graph, producers: Mapping[int, Node], position: int, node: Node) -> _Part | None:
    """Return a node as a product of consecutive items of a computed value, or None."""
    axes = _ITEM_AXES.get(node.op)
    cut = None if axes is None else producers.get(node.inputs[0])
    cuts = None if cut is None else get(cut.op).cuts(graph, cut)
    if axes is None or cut is None or cuts is None:
        return None
    source, operand = graph.values[cuts.source], graph.values[node.inputs[0]]
    result = graph.values[node.outputs[0]]
    if source.is_constant or not all(_is_constant(graph, v) for v in node.inputs[1:]):
        return None
    item = source.shape[-axes:]
    if len(source.shape) < axes or operand.shape[-axes:] != item or len(result.shape) < axes:
        return None
    if not _alike(source, operand):
        return None
    if node.op == "FULLY_CONNECTED" and graph.values[node.inputs[1]].shape[-1] != item[0]:
        return None  # an item is not a row of the product
    ranges = cuts.ranges[cut.outputs.index(operand.id)]
    whole = zip(ranges[-axes:], item, strict=True)
    if any(each != range(size) for each, size in whole):
        return None
    numbers = np.arange(_items(source, axes)).reshape(source.shape[:-axes])
    read = numbers[np.ix_(*ranges[:-axes])].ravel() if numbers.ndim else numbers.ravel()
    first, count = int(read[0]), read.size
    if [*read] != [*range(first, first + count)] or count != _items(result, axes):
        return None
    return _Part(position, node, source.id, first, count)


def _is_constant(graph: Graph, value: int) -> bool:
    return value < 0 or graph.values[value].is_constant


def _items(value: Value, axes: int) -> int:
    return math.prod(value.shape[:-axes])


def _key(graph: Graph, part: _Part) -> object:
    """Return a key that is equal for all products that can be computed as one batch."""
    node, result = part.node, graph.values[part.node.outputs[0]]
    axes = _ITEM_AXES[node.op]
    options = repr(sorted(node.params.items()))
    kind = (result.shape[-axes:], result.dtype, repr(result.quantization))
    return node.op, node.version, node.inputs[1:], options, part.source, kind


def _join(edit: Editor, parts: list[_Part], items: int) -> None:
    """Add the product of all items before the first part; the parts become its slices."""
    position, node = parts[0].position, parts[0].node
    axes = _ITEM_AXES[node.op]
    source, result = edit.values[parts[0].source], edit.values[node.outputs[0]]
    flat = _shaped(edit, source, (items, *source.shape[-axes:]))
    if flat != source.id:
        edit.insert_before(position, reshape_node(node, source.id, flat))
    rows = edit.new_value(result, shape=(items, *result.shape[-axes:]), siblings=len(parts))
    product = replace(node, inputs=(flat, *node.inputs[1:]), outputs=(rows,))
    edit.insert_before(position, product)
    for part in parts:
        output = edit.values[part.node.outputs[0]]
        shape = (part.count, *output.shape[-axes:])
        begin = edit.new_constant("litegpu_begin", np.array([part.first, *[0] * axes], np.int32))
        size = edit.new_constant("litegpu_size", np.array(shape, np.int32))
        cut = _shaped(edit, output, shape)
        # All slices precede the ops on them: an op of a slice and of a later result is then fused
        # with the kernel of the later result.
        edit.insert_before(position, Node(part.node.index, "SLICE", 1, (rows, begin, size), (cut,)))
        if cut != output.id:
            edit.insert_before(position, reshape_node(part.node, cut, output.id))
        edit.nodes[part.position] = None
    _drop_joins(edit, parts, rows)


def _drop_joins(edit: Editor, parts: Sequence[_Part], rows: int) -> None:
    """Replace each node that only joins all parts again by a view of the product."""
    ends = [part.first + part.count for part in parts]
    if [part.first for part in parts] != [0, *ends[:-1]]:
        return
    outputs = tuple(part.node.outputs[0] for part in parts)
    for position in edit.nodes.readers(outputs[0]):
        node = edit.nodes[position]
        if node is None or node.op not in _JOINS or node.inputs != outputs:
            continue
        product, result = edit.values[rows], edit.values[node.outputs[0]]
        axis = node.params["axis"] % len(result.shape)
        plain = node.params.get("activation", "none") == "none"
        if plain and math.prod(result.shape[:axis]) == 1 and _alike(product, result):
            edit.nodes[position] = reshape_node(node, rows, result.id)


def _alike(value: Value, other: Value) -> bool:
    return (value.dtype, value.quantization) == (other.dtype, other.quantization)


def _shaped(edit: Editor, value: Value, shape: Shape) -> int:
    """Return a value, or a new value for it in another shape."""
    return value.id if value.shape == shape else edit.new_value(value, shape=shape)
