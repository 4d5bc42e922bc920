"""The interface of passes: a function from graph to graph that reports its changes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from litegpu.graph import ABSENT, SELF, DType, EpilogueOp, Graph, Node, Value
from litegpu.kernels.selector import Fusions
from litegpu.ops.common import affine


@dataclass(frozen=True, slots=True)
class PassResult:
    """The new graph, and one line for each applied or declined rewrite (with the reason)."""

    graph: Graph
    applied: tuple[str, ...] = ()
    declined: tuple[str, ...] = ()


Pass = Callable[[Graph], PassResult]
FusionPass = Callable[[Graph, Fusions], PassResult]


class NodePositions:
    """The nodes of a graph by position (None if removed), and the positions of all readers."""

    def __init__(self, nodes: Iterable[Node]) -> None:
        """Start with all nodes of the graph, in order."""
        self._nodes: list[Node | None] = list(nodes)
        self._names: dict[int, int] = {}
        self._outdated: set[int] = set()
        """Positions of nodes whose inputs were renamed, but that are not updated yet."""
        self.changed = False
        """Whether the pass changed any node."""

    def __getitem__(self, position: int) -> Node | None:
        node = self._nodes[position]
        if position in self._outdated:
            self._outdated.remove(position)
            names = {v: self._name(v) for v in node.operands if v in self._names} if node else {}
            self._nodes[position] = node = node and node.reading(names)
        return node

    def __setitem__(self, position: int, node: Node | None) -> None:
        before, self.changed = self[position], True
        self._nodes[position] = node
        if "_readers" in self.__dict__:  # few passes need it
            for v in before.operands if before else ():
                self._readers[v].discard(position)
            for v in node.operands if node else ():
                self._readers.setdefault(v, set()).add(position)

    def __iter__(self) -> Iterator[Node | None]:
        return (self[position] for position in range(len(self._nodes)))

    def readers(self, value: int) -> list[int]:
        """Return the positions of the nodes that read a value, in order."""
        return sorted(self._readers.get(value, ()))

    def reader_count(self, value: int) -> int:
        """Return the number of nodes that read a value."""
        return len(self._readers.get(value, ()))

    def rename(self, old: int, new: int) -> None:
        """Let all readers of value `old` read value `new`.

        A node is updated at its next access, since one node may read thousands of renamed values.
        """
        if old == new:
            return
        if new in self._names:  # earlier readers of `new` were themselves renamed
            for position in [*self._outdated]:
                self[position]
            self._names.clear()
        places = self._readers.pop(old, set())
        self._readers.setdefault(new, set()).update(places)
        self._names[old] = new
        self._outdated |= places
        self.changed = True

    @cached_property
    def _readers(self) -> dict[int, set[int]]:
        found: dict[int, set[int]] = {}
        for position, node in enumerate(self):
            for v in node.operands if node else ():
                found.setdefault(v, set()).add(position)
        return found

    def _name(self, value: int) -> int:
        while value in self._names:
            value = self._names[value]
        return value


@dataclass
class Editor:
    """Collects a pass's changes to a graph, then builds the new graph."""

    graph: Graph
    applied: list[str] = field(default_factory=list)
    declined: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Start from the nodes and values of the graph."""
        self.nodes = NodePositions(self.graph.nodes)
        self.values: dict[int, Value] = dict(self.graph.values)
        self._inserted: dict[int, list[Node]] = {}
        self._read_ahead: set[int] = set()
        self._fresh = iter(self.graph.fresh_ids())

    @cached_property
    def _positions(self) -> Mapping[int, int]:
        return {id(node): i for i, node in enumerate(self.graph.nodes)}

    def position(self, node: Node) -> int:
        """Return the position of one of the graph's original nodes."""
        return self._positions[id(node)]

    def new_value(self, like: Value, **changes: object) -> int:
        """Add a value with the properties of `like` and return its id."""
        fresh = next(self._fresh)
        self.values[fresh] = replace(like, id=fresh, **changes)  # type: ignore[arg-type]
        return fresh

    def new_constant(self, name: str, data: npt.NDArray[Any]) -> int:
        """Add a constant to the graph and return its id."""
        fresh = next(self._fresh)
        self.values[fresh] = Value(fresh, name, data.shape, DType(data.dtype.name), data)
        return fresh

    def insert_before(self, position: int, node: Node) -> None:
        """Add a node directly before the node at `position`, after nodes inserted there earlier."""
        self._inserted.setdefault(position, []).append(node)
        self._read_ahead.update(node.operands)

    def drop_unread(self, nodes: Iterable[Node]) -> None:
        """Remove nodes whose results have no readers; `nodes` is in reverse execution order."""
        for node in nodes:
            if not any(
                v in self._read_ahead or v in self.graph.outputs or self.nodes.reader_count(v)
                for v in node.outputs
            ):
                self.nodes[self.position(node)] = None

    def _all(self) -> Iterator[Node]:
        for position, node in enumerate(self.nodes):
            yield from self._inserted.get(position, ())
            if node is not None:
                yield node

    def rename(self, old: int, new: int) -> None:
        """Let all readers of value `old` read value `new`."""
        self.nodes.rename(old, new)

    def result(self, nodes: Iterable[Node] | None = None) -> PassResult:
        """Build the new graph without unused values."""
        graph = self.graph
        if nodes is not None or self.nodes.changed or self._inserted:
            graph = replace(
                graph, values=self.values, nodes=tuple(self._all() if nodes is None else nodes)
            )
            graph = without_unused(graph)
        return PassResult(graph, tuple(self.applied), tuple(self.declined))


def numbered(
    epilogue: Sequence[EpilogueOp], inputs: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[EpilogueOp, ...]]:
    """Return the inputs plus the epilogue's operands, and the epilogue with their positions.

    Attributes store such an epilogue, since passes may rename the inputs of a node.
    """
    read = [v for each in epilogue for v in each.operands if v != SELF]
    numbers = {v: len(inputs) + i for i, v in enumerate(dict.fromkeys(read))}
    return (*inputs, *numbers), tuple(each.with_operands(numbers.__getitem__) for each in epilogue)


def without_unused(graph: Graph) -> Graph:
    """Return a graph without unused values."""
    used = {v for node in graph.nodes for v in (*node.operands, *node.outputs, *_constants(node))}
    used.update(graph.inputs, graph.outputs)
    values = {v: value for v, value in graph.values.items() if v in used}
    return replace(graph, values=values)


_MAX_WEIGHTS = 1 << 22
"""Maximum size of weights that passes change: changing larger weights is slow and doubles their
memory.
"""

Fold = Callable[[Node, affine.Operands, affine.Affine], affine.Operands]


@dataclass
class Weighted:
    """Changes the constant weights and biases of convolutions."""

    edit: Editor

    def __post_init__(self) -> None:
        """Count the readers of each constant."""
        self._readers = Counter(v for node in self.edit.graph.nodes for v in _constants(node))

    def fold(self, node: Node, scaling: affine.Affine, fold: Fold) -> Node | str:
        """Return the node with an affine op folded into its weights, or the reason why not."""
        graph = replace(self.edit.graph, values=self.edit.values)
        like, bias = graph.values[node.attributes.weights], node.attributes.bias
        if self._readers[like.id] > 1:
            return "other nodes share the weights"
        if like.elements > _MAX_WEIGHTS:
            return "with weights so large, an epilogue op costs nothing"
        operands = affine.operands_of(graph, node)
        if operands is None:
            return "the weights are computed"
        new = fold(node, operands, scaling)
        reason = affine.obstacle(node, operands, new)
        if reason:
            return reason
        weights = self._constant(like, new.weights)
        bias = self._constant(like, new.bias) if bias != ABSENT or np.any(new.bias) else ABSENT
        attributes = replace(node.attributes, weights=weights, bias=bias)
        return replace(node, attributes=attributes)

    def _constant(self, like: Value, data: npt.NDArray[np.float64]) -> int:
        array = data.astype(np.float32)
        return self.edit.new_value(like, shape=array.shape, dtype=DType.FLOAT32, data=array)


def only_consumer(
    value: int, consumers: Mapping[int, list[Node]], outputs: Collection[int]
) -> Node | None:
    """Return the only node that reads a value; None if other nodes or an output use the value."""
    readers = consumers.get(value, [])
    return readers[0] if len(readers) == 1 and value not in outputs else None


def label(node: Node) -> str:
    """Return a node's name for the report of a pass."""
    return f"{node.op} {node.index}"


def _constants(node: Node) -> list[int]:
    """Return the constants that a node's attributes refer to."""
    return list(getattr(node.attributes, "constants", ()))
