"""Lets products around a softmax keep the dimensions of its scores.

litert-torch multiplies matrices of [batch * heads, rows, columns]: a RESHAPE, or a mask of more
dimensions, leads from the product to the softmax of [batch, heads, rows, columns], and a RESHAPE
back. The reshapes move to the operands and to the result, where they merge with the transposes of
heads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from litegpu.graph import Graph, Node
from litegpu.ops.common.types import is_quantized
from litegpu.ops.reshape import RESHAPE, reshape_node
from litegpu.passes.base import Editor, PassResult, label, only_consumer

_MATMUL = "BATCH_MATMUL"
_MOST_DIMS = 4
_SCALES = frozenset(("ADD", "DIV", "MUL", "SUB"))
_BROADCAST = _SCALES | {"MAXIMUM", "MINIMUM", "SELECT_V2"}
"""Operations for which a value that gets dimensions of size 1 in front remains the same."""


def regroup_matrices(graph: Graph) -> PassResult:
    """Exchange reshapes that regroup matrices and the products before or after them."""
    regrouper = _Regrouper(graph, Editor(graph))
    for position, node in enumerate(graph.nodes):
        if node.op == _MATMUL:
            regrouper.after(position, node)
        elif node.op == RESHAPE or node.op in _BROADCAST:
            regrouper.before(position, node)
    return regrouper.edit.result()


@dataclass
class _Regrouper:
    graph: Graph
    edit: Editor

    def __post_init__(self) -> None:
        self._producers: Mapping[int, Node] = self.graph.producers()
        self._consumers = self.graph.consumers()
        self._done: set[int] = set()
        """The products that are regrouped, by their results."""

    def before(self, position: int, node: Node) -> None:
        """Let a product compute matrices as a node gives them, or broadcasts them to."""
        shape, reshapes = self.graph.values[node.outputs[0]].shape, node.op == RESHAPE
        for v in node.inputs[:1] if reshapes else node.inputs:
            own = self.graph.values[v].shape
            gained = (1,) * (len(shape) - len(own)) + own
            if own == shape or not (reshapes or gained == shape):
                continue
            scaled, product = self._scaled(v)
            if product is None or product.outputs[0] in self._done or not self._to_softmax(node):
                continue
            if not self._regroups(product, own, shape):
                continue
            self._done.add(product.outputs[0])
            place = self.edit.position(product)
            operands = tuple(self._regrouped(place, product, o, shape) for o in product.inputs)
            first = replace(product, inputs=operands)
            for each in (first, *scaled):
                (output,) = each.outputs
                at = self.edit.position(product if each is first else each)
                found = self.edit.new_value(self.graph.values[output], shape=shape)
                current = first if each is first else self.edit.nodes[at]
                assert current is not None
                self.edit.nodes[at] = replace(current, outputs=(found,))
                self.edit.rename(output, found)
            if reshapes:
                self.edit.nodes[position] = None
                self.edit.rename(node.outputs[0], found)
            self.edit.applied.append(f"{label(product)} as {label(node)} gives it")

    def _scaled(self, value: int) -> tuple[list[Node], Node | None]:
        """Return the product that computes a value for one reader, and the scales in between."""
        scales: list[Node] = []
        while self._alone(value):
            node = self._producers.get(value)
            if node is None or node.op == _MATMUL:
                return scales[::-1], node
            if node.op not in _SCALES:
                break
            others = [v for v in node.inputs if self.graph.values[v].elements > 1]
            if len(others) != 1:
                break
            scales.append(node)
            (value,) = others
        return [], None

    def after(self, position: int, product: Node) -> None:
        """Let a product read the result of a softmax as it is, before a reshape."""
        reshape = self._producers.get(product.inputs[0])
        if reshape is None or reshape.op != RESHAPE or not self._alone(reshape.outputs[0]):
            return
        scores = reshape.inputs[0]
        softmax = self._producers.get(scores)
        before, own = (self.graph.values[v].shape for v in (scores, reshape.outputs[0]))
        if softmax is None or not _is_softmax(softmax) or not self._regroups(product, own, before):
            return
        self._done.add(product.outputs[0])
        result = self.graph.values[product.outputs[0]]
        found = self.edit.new_value(result, shape=(*before[:-2], *result.shape[-2:]))
        second = self._regrouped(position, product, product.inputs[1], before)
        regrouped = replace(product, inputs=(scores, second), outputs=(found,))
        self.edit.insert_before(position, regrouped)
        self.edit.nodes[position] = reshape_node(product, found, product.outputs[0])
        self.edit.nodes[self.edit.position(reshape)] = None
        self.edit.applied.append(f"{label(product)} as {label(softmax)} gives its operand")

    def _to_softmax(self, node: Node) -> bool:
        """Whether a softmax reads the result of a node, perhaps masked or reshaped."""
        reader: Node | None = node
        while reader is not None and (reader.op == RESHAPE or reader.op in _BROADCAST):
            reader = only_consumer(reader.outputs[0], self._consumers, self.graph.outputs)
        return _is_softmax(reader)

    def _alone(self, value: int) -> bool:
        """Whether one node alone reads a value."""
        return only_consumer(value, self._consumers, self.graph.outputs) is not None

    def _regroups(self, product: Node, own: tuple[int, ...], shape: tuple[int, ...]) -> bool:
        """Whether a shape regroups the matrices of a product of as many pairs of matrices."""
        if product.op != _MATMUL or is_quantized(self.graph, product):
            return False
        values = (*product.inputs, *product.outputs)
        batches = {self.graph.values[v].shape[:-2] for v in values}
        same = min(len(own), len(shape)) > 2 and own[-2:] == shape[-2:]
        return same and max(len(own), len(shape)) <= _MOST_DIMS and len(batches) == 1

    def _regrouped(self, place: int, product: Node, operand: int, shape: tuple[int, ...]) -> int:
        """Return an operand as matrices of these dimensions, by a reshape before the product."""
        value = self.edit.values[operand]
        whole = (*shape[:-2], *value.shape[-2:])
        if value.data is not None:
            return self.edit.new_value(value, shape=whole, data=value.data.reshape(whole))
        found = self.edit.new_value(value, shape=whole)
        self.edit.insert_before(place, reshape_node(product, operand, found))
        return found


def _is_softmax(node: Node | None) -> bool:
    return node is not None and node.op == "SOFTMAX"
