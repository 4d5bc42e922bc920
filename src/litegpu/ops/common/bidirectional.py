"""Bidirectional recurrent layers, computed as two unidirectional layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from litegpu.graph import ABSENT, Graph, Node, Value
from litegpu.ops.base import Exact, NewValue, Op, Shape, as_float32
from litegpu.ops.common import checks, facts
from litegpu.ops.concatenation import ConcatAttributes

REVERSE = "reverse"
"""The parameter of a unidirectional layer that makes it process the sequence backward."""


@dataclass(frozen=True, slots=True)
class Direction:
    """The positions of the operands for one direction of a bidirectional layer.

    `operands` begins with the input weights. `auxiliary` has the weights of the auxiliary input,
    one operand for each operand with input weights.
    """

    title: str
    operands: range
    states: tuple[int, ...]
    auxiliary: range


class Bidirectional(Op):
    """A bidirectional recurrent layer, computed as two unidirectional layers."""

    max_version = 3

    def __init__(
        self,
        name: str,
        one_way: Op,
        directions: tuple[Direction, Direction],
        auxiliary: int,
        backward_data: Callable[[Node], int],
        exact: Exact | None,
    ) -> None:
        """Create the op from the unidirectional op and the positions of its operands.

        `backward_data` returns the input of the backward direction if the auxiliary input has no
        weights.
        """
        self.name = name  # type: ignore[misc]
        self.accepts = one_way.accepts  # type: ignore[misc]
        self.exact = exact  # type: ignore[misc]
        self._one_way, self._directions = one_way, directions
        self._auxiliary, self._backward_data = auxiliary, backward_data

    def flops(self, graph: Graph, node: Node) -> int:
        products = [
            p
            for direction in self._directions
            for p in (*direction.operands, *direction.auxiliary)
            if len(graph.values[v].shape if (v := _operand(node, p)) in graph.values else ()) == 2
        ]
        return facts.product_by_input(graph, node, 0, products)

    def states(self, node: Node) -> tuple[int, ...]:
        return tuple(node.inputs[p] for each in self._directions for p in each.states)

    def check(self, graph: Graph, node: Node) -> str:
        count = self._directions[-1].auxiliary.stop
        results = 1 if node.params["merge_outputs"] else 2
        if len(node.outputs) != results:
            return f"Expected {results} output tensor(s), but node has {len(node.outputs)}."
        return checks.first_of(
            checks.input_count(node, count, count),
            lambda: checks.computed(graph, node, 0, "The input"),
            lambda: self._check_auxiliary(graph, node),
            lambda: checks.first_of(
                *(self._check_direction(graph, node, each) for each in self._directions)
            ),
        )

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        forward, backward = (
            self._one_way.infer(graph, self._view(node, each))[0] for each in self._directions
        )
        if node.params["merge_outputs"]:
            return ((*forward[:-1], forward[-1] + backward[-1]),)
        return forward, backward

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        merged = bool(node.params["merge_outputs"])
        count = 1 if merged else 2
        states = iter(node.outputs[count:])
        graph, node, nodes = self._joined(graph, node, new_value)
        results = list(node.outputs[:count])
        if merged:
            results = [new_value(shape) for shape in self._shapes(graph, node)]
            nodes.append(
                Node(
                    *(node.index, "CONCATENATION", 1, tuple(results), node.outputs[:1]),
                    attributes=ConcatAttributes(3),
                )
            )
        for result, direction in zip(results, self._directions, strict=True):
            view = self._view(node, direction)
            outputs = (result, *(next(states) for _ in direction.states))
            layer = self._one_way.normalize(graph, replace(view, outputs=outputs), new_value)
            nodes[len(nodes) - merged : len(nodes) - merged] = layer
        return nodes

    def _shapes(self, graph: Graph, node: Node) -> list[Shape]:
        return [self._one_way.infer(graph, self._view(node, each))[0] for each in self._directions]

    def _view(self, node: Node, direction: Direction) -> Node:
        """Return one direction of a node as a node of the unidirectional op."""
        backward = direction is self._directions[1]
        data = 0
        if backward and _operand(node, self._auxiliary) != ABSENT and not self._is_linked(node):
            data = self._backward_data(node)
        positions = (data, *direction.operands, *direction.states)
        return replace(
            node,
            op=self._one_way.name,
            inputs=tuple(node.inputs[p] for p in positions),
            outputs=node.outputs[:1],
            params={**node.params, REVERSE: backward},
        )

    def _is_linked(self, node: Node) -> bool:
        """Whether both directions multiply the auxiliary input by auxiliary weights."""
        return any(_operand(node, p) != ABSENT for p in self._weights_of_auxiliary())

    def _weights_of_auxiliary(self) -> Sequence[int]:
        return [p for each in self._directions for p in each.auxiliary]

    def _joined(
        self, graph: Graph, node: Node, new_value: NewValue
    ) -> tuple[Graph, Node, list[Node]]:
        """Return a node whose input is concatenated with the auxiliary input, if that has weights.

        The returned graph contains the new values; the returned nodes compute the new values.
        """
        if not self._is_linked(node):
            return graph, node, []
        values, inputs = dict(graph.values), list(node.inputs)
        data, auxiliary = (graph.values[node.inputs[p]] for p in (0, self._auxiliary))
        shape = (*data.shape[:-1], data.shape[-1] + auxiliary.shape[-1])
        inputs[0] = new_value(shape)
        values[inputs[0]] = replace(data, id=inputs[0], shape=shape)
        for direction in self._directions:
            for place, other in zip(direction.operands, direction.auxiliary, strict=False):
                if node.inputs[place] == ABSENT:
                    continue
                parts = [graph.values[node.inputs[p]] for p in (place, other)]
                array = np.concatenate([as_float32(part) for part in parts], axis=1)
                v = inputs[place] = new_value(array.shape, array)
                values[v] = _with_data(parts[0], v, array)
        join = Node(
            *(node.index, "CONCATENATION", 1, (data.id, auxiliary.id), (inputs[0],)),
            attributes=ConcatAttributes(3),
        )
        inputs[self._auxiliary] = ABSENT
        for p in self._weights_of_auxiliary():
            inputs[p] = ABSENT
        return replace(graph, values=values), replace(node, inputs=tuple(inputs)), [join]

    def _check_direction(self, graph: Graph, node: Node, direction: Direction) -> str:
        view = self._view(node, direction)
        reason = self._one_way.check(graph, view)
        return f"{direction.title}, as {self._one_way.name}: {reason}" if reason else ""

    def _check_auxiliary(self, graph: Graph, node: Node) -> str:
        """Require an auxiliary input of the input's shape, except the channels if it has weights.

        The node must have auxiliary weights for all input weights, or for none.
        """
        if not self._is_linked(node) and node.inputs[self._auxiliary] == ABSENT:
            return ""
        data, p = graph.values[node.inputs[0]].shape, self._auxiliary
        if reason := checks.computed(graph, node, p, "The auxiliary input"):
            return reason
        auxiliary = graph.values[node.inputs[p]].shape
        if not self._is_linked(node):
            return "" if auxiliary == data else self._wrong_auxiliary(auxiliary, data)
        if auxiliary[:-1] != data[:-1] or len(data) != 3:
            return self._wrong_auxiliary(auxiliary, data)
        for direction in self._directions:
            for place, other in zip(direction.operands, direction.auxiliary, strict=False):
                if node.inputs[place] == ABSENT == node.inputs[other]:
                    continue
                if reason := checks.constant(graph, node, other, "The auxiliary weights"):
                    return reason
                found = graph.values[node.inputs[other]].shape
                wanted = (*_shape(graph, node, place)[:1], auxiliary[-1])
                if found != wanted:
                    return (
                        f"The auxiliary weights (input {other}) have the shape {list(found)} "
                        f"instead of {list(wanted)}."
                    )
        return ""

    def _wrong_auxiliary(self, found: Shape, data: Shape) -> str:
        return f"The auxiliary input has the shape {list(found)}, the input {list(data)}."


def _operand(node: Node, position: int) -> int:
    return node.inputs[position] if position < len(node.inputs) else ABSENT


def _shape(graph: Graph, node: Node, position: int) -> Shape:
    v = node.inputs[position]
    return () if v == ABSENT else graph.values[v].shape


def _with_data(like: Value, v: int, array: Any) -> Value:
    return replace(like, id=v, shape=array.shape, data=array)
