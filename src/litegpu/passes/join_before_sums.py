"""Replaces a concatenation of sums of two products by one sum of products of joined operands.

Rotary position embeddings compute each half of the channels separately, from slices of one value.
After the rewrite, one joined operand is the value itself, and the other joined operand is an index
map of the value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from litegpu.graph import DType, Graph, Node
from litegpu.ops.base import Cuts, get
from litegpu.passes.base import Editor, PassResult, label, only_consumer


@dataclass(frozen=True, slots=True)
class _Product:
    """A product in a sum: a slice of a value times a factor."""

    part: int
    factor: int
    cuts: Cuts
    node: Node

    def along(self, axis: int) -> range:
        """Return the indices of the slice along an axis of its source."""
        return self.cuts.ranges[0][axis]


@dataclass(frozen=True, slots=True)
class _Sum:
    """A sum or difference of two products."""

    products: tuple[_Product, _Product]
    node: Node


def join_before_sums(graph: Graph) -> PassResult:
    """Visit each CONCATENATION of sums of two products."""
    edit = Editor(graph)
    producers, consumers = graph.producers(), graph.consumers()
    for position, node in enumerate(graph.nodes):
        if node.op != "CONCATENATION" or node.params.get("activation", "none") != "none":
            continue
        found = [_sum(graph, v, producers, consumers) for v in node.inputs]
        sums = [each for each in found if each is not None]
        if len(sums) < len(found) or len(sums) < 2:
            continue
        axis = node.params["axis"] % len(graph.values[node.outputs[0]].shape)
        if reason := _reason(graph, sums, axis):
            edit.declined.append(f"{label(node)}: {reason}")
            continue
        _Rewrite(edit, position, node, axis).apply(sums)
        edit.applied.append(f"{label(node)} before {', '.join(label(each.node) for each in sums)}")
    return edit.result()


def _sum(
    graph: Graph, value: int, producers: Mapping[int, Node], consumers: Mapping[int, list[Node]]
) -> _Sum | None:
    """Return a value as a sum of two products; None if it is none or has several readers."""
    node = _alone(graph, value, producers, consumers, ("ADD", "SUB"))
    if node is None:
        return None
    products = []
    for v in node.inputs:
        product = _alone(graph, v, producers, consumers, ("MUL",))
        if product is None or graph.values[v].shape != graph.values[value].shape:
            return None
        first, second = product.inputs
        for part, factor in ((first, second), (second, first)):
            cuts = _cuts(graph, part, producers)
            if cuts is not None and graph.values[part].shape == graph.values[value].shape:
                products.append(_Product(part, factor, cuts, product))
                break
    return _Sum((products[0], products[1]), node) if len(products) == 2 else None


def _alone(
    graph: Graph,
    value: int,
    producers: Mapping[int, Node],
    consumers: Mapping[int, list[Node]],
    ops: Sequence[str],
) -> Node | None:
    """Return the producer of a float value, if it is one of `ops` and the value has one reader."""
    node = producers.get(value)
    if node is None or node.op not in ops or node.params.get("activation", "none") != "none":
        return None
    if any(graph.values[v].dtype is not DType.FLOAT32 for v in (*node.inputs, value)):
        return None
    return node if only_consumer(value, consumers, graph.outputs) is not None else None


def _cuts(graph: Graph, part: int, producers: Mapping[int, Node]) -> Cuts | None:
    """Return how a value is sliced from a value of the same rank; None if it is no slice."""
    node = producers.get(part)
    if node is None or sum(not graph.values[v].is_constant for v in node.operands) != 1:
        return None
    cuts = get(node.op).cuts(graph, node)
    if cuts is None or graph.values[cuts.source].is_constant:
        return None
    ranges = cuts.ranges[node.outputs.index(part)]
    if len(ranges) != len(graph.values[part].shape):
        return None
    return replace(cuts, ranges=(ranges,))


def _reason(graph: Graph, sums: Sequence[_Sum], axis: int) -> str:
    """Return why the operands of the sums cannot be joined; an empty text if they can."""
    products = [product for each in sums for product in each.products]
    if len({product.cuts.source for product in products}) > 1:
        return "the sums read parts of several values"
    shapes = set()
    for each in products:
        part, factor = graph.values[each.part].shape, list(graph.values[each.factor].shape)
        place = axis - len(part) + len(factor)
        if place < 0 or factor[place] != part[axis]:
            return f"{label(each.node)} repeats its factor along the axis"
        factor[place] = 0
        shapes.add(tuple(factor))
    return "the factors have several shapes" if len(shapes) > 1 else ""


@dataclass
class _Rewrite:
    """Replaces a concatenation of sums by one sum of products of joined operands."""

    edit: Editor
    position: int
    node: Node
    axis: int

    def apply(self, sums: Sequence[_Sum]) -> None:
        """Replace the concatenation, and remove the sums and their products."""
        rows = [*_aligned(sums)]
        products = (*(self._product([row[column] for row in rows]) for column in range(2)),)
        added = replace(sums[0].node, op="ADD", index=self.node.index)
        self.edit.nodes[self.position] = replace(added, inputs=products, outputs=self.node.outputs)
        for each in sums:
            for node in (each.node, *(product.node for product in each.products)):
                self.edit.nodes[self.edit.position(node)] = None

    def _product(self, column: Sequence[tuple[_Product, bool]]) -> int:
        """Add the product of joined slices (some negated) and joined factors."""
        products = [product for product, _ in column]
        parts = [self._negated(each.part) if minus else each.part for each, minus in column]
        source = self.edit.values[products[0].cuts.source]
        begins = [each.along(self.axis) for each in products]
        in_order = [i for each in begins for i in each] == [*range(source.shape[self.axis])]
        if in_order and not any(minus for _, minus in column):
            whole = source.id
        else:
            whole = self._joined(parts)
        factor = self._joined([each.factor for each in products])
        return self._added(replace(products[0].node, inputs=(whole, factor)), whole)

    def _negated(self, value: int) -> int:
        return self._added(Node(self.node.index, "NEG", 1, (value,), ()), value)

    def _joined(self, values: Sequence[int]) -> int:
        """Add a node that concatenates values along the axis, counted from the last axis."""
        like = self.edit.values[values[0]]
        rank = len(self.edit.values[self.node.outputs[0]].shape)
        axis = self.axis - rank + len(like.shape)
        arrays = [data for v in values if (data := self.edit.values[v].data) is not None]
        if len(arrays) == len(values):
            return self.edit.new_constant(f"{like.name}/joined", np.concatenate(arrays, axis))
        shape = [*like.shape]
        shape[axis] = sum(self.edit.values[v].shape[axis] for v in values)
        params = {**self.node.params, "axis": axis}
        joining = replace(self.node, inputs=(*values,), params=params)
        return self._added(joining, values[0], tuple(shape))

    def _added(self, node: Node, like: int, shape: tuple[int, ...] | None = None) -> int:
        """Add a node, and return its result (value id)."""
        value = self.edit.values[like]
        result = self.edit.new_value(value, shape=shape or value.shape)
        added = replace(node, index=self.node.index, outputs=(result,))
        self.edit.insert_before(self.position, added)
        return result


def _aligned(sums: Sequence[_Sum]) -> Iterator[tuple[tuple[_Product, bool], ...]]:
    """Yield the products of each sum, and whether each is subtracted.

    The first product has the same factor as the first product of the first sum.
    """
    factor = sums[0].products[0].factor
    for each in sums:
        first, second = each.products
        row = ((first, False), (second, each.node.op == "SUB"))
        yield row[::-1] if second.factor == factor != first.factor else row
