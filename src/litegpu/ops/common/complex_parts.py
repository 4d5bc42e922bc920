"""Expresses products and casts of complex numbers by their real and imaginary parts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from litegpu.graph import DType, Graph, Node, Value

Parts = tuple[int, int]
"""The values of the real and the imaginary parts."""


def by_parts(graph: Graph) -> Graph:
    """Return a graph with nodes on float32 tensors in place of MUL and CAST of complex numbers."""
    numbers = {v for v, value in graph.values.items() if value.dtype is DType.COMPLEX64}

    def computes(node: Node) -> bool:
        return node.op in _COMPUTED and not numbers.isdisjoint((*node.inputs, *node.outputs))

    if not any(map(computes, graph.nodes)):
        return graph
    writer = _Writer(dict(graph.values), iter(graph.fresh_ids()))
    for node in graph.nodes:
        writer.node = node
        if computes(node):
            _COMPUTED[node.op](writer)
        else:
            writer.nodes.append(node)
    return replace(graph, values=writer.values, nodes=tuple(writer.nodes))


@dataclass
class _Writer:
    """The values and nodes of the new graph, and the node that is being replaced."""

    values: dict[int, Value]
    fresh: Iterator[int]
    nodes: list[Node] = field(default_factory=list)
    parts: dict[int, Parts] = field(default_factory=dict)
    """Of complex values whose parts exist."""
    node: Node = field(init=False)

    def value(self, shape: tuple[int, ...], data: npt.NDArray[Any] | None = None) -> int:
        """Add a float tensor, which is never stored as float16, or a constant."""
        dtype = DType.FLOAT32 if data is None else DType(data.dtype.name)
        v = next(self.fresh)
        self.values[v] = Value(v, f"litegpu_parts_{v}", shape, dtype, data, precise=True)
        return v

    def op(self, op: str, inputs: Sequence[int], shape: tuple[int, ...], **params: Any) -> int:
        """Add a node of one float result."""
        target = self.value(shape)
        self.add(op, inputs, target, **params)
        return target

    def add(self, op: str, inputs: Sequence[int], target: int, **params: Any) -> None:
        """Add a node that computes an existing value."""
        self.nodes.append(Node(self.node.index, op, 1, (*inputs,), (target,), params=params))

    def parts_of(self, v: int) -> Parts:
        """Return the parts of a complex value."""
        if v not in self.parts:
            value = self.values[v]
            if value.data is None:
                self.parts[v] = (
                    self.op("REAL", (v,), value.shape),
                    self.op("IMAG", (v,), value.shape),
                )
            else:
                data = np.asarray(value.data)
                self.parts[v] = (
                    self.value(value.shape, np.ascontiguousarray(data.real)),
                    self.value(value.shape, np.ascontiguousarray(data.imag)),
                )
        return self.parts[v]


def _product(writer: _Writer) -> None:
    """Multiply complex numbers, broadcast as in NumPy."""
    node, (target,) = writer.node, writer.node.outputs
    shape = writer.values[target].shape
    (a, b), (c, d) = (writer.parts_of(v) for v in node.inputs)

    def pair(op: str, first: int, second: int) -> int:
        return writer.op(op, (first, second), shape, activation="none")

    real = pair("SUB", pair("MUL", a, c), pair("MUL", b, d))
    imaginary = pair("ADD", pair("MUL", a, d), pair("MUL", b, c))
    stacked = writer.op("PACK", (real, imaginary), (*shape, 2), values_count=2, axis=-1)
    writer.add("RESHAPE", (stacked,), target)


def _cast(writer: _Writer) -> None:
    """Convert the real parts; imaginary parts of real numbers are zero."""
    (source,), (target,) = writer.node.inputs, writer.node.outputs
    given, result = (writer.values[v] for v in (source, target))
    if given.dtype is result.dtype:
        writer.add("RESHAPE", (source,), target)
    elif given.dtype is DType.COMPLEX64:
        writer.add("CAST", writer.parts_of(source)[:1], target)
    else:
        real = writer.op("CAST", (source,), given.shape)
        column = writer.op("RESHAPE", (real,), (*given.shape, 1))
        paddings = np.zeros((len(given.shape) + 1, 2), np.int32)
        paddings[-1, 1] = 1
        widths = writer.value(paddings.shape, paddings)
        padded = writer.op("PAD", (column, widths), (*given.shape, 2))
        writer.add("RESHAPE", (padded,), target)


_COMPUTED = {"MUL": _product, "CAST": _cast}
