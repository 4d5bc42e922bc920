"""The graphs of a model before a delegate changes any graph, and how each graph is called."""

from __future__ import annotations

import contextlib
import ctypes
import enum
import itertools
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from litegpu.errors import ModelError
from litegpu.graph import ABSENT, Graph, Node
from litegpu.runtime_abi import reader
from litegpu.runtime_abi.budget import ReadBudget
from litegpu.runtime_abi.file import ModelFile, ModelSource
from litegpu.runtime_abi.structs import TfLiteContext, unheard

_CALLS: Mapping[str, tuple[str, ...]] = {
    "CALL_ONCE": ("init_subgraph_index",),
    "IF": ("then_subgraph_index", "else_subgraph_index"),
    "STABLEHLO_CASE": ("branch_subgraph_indices",),
    "STABLEHLO_COMPOSITE": ("subgraph_index",),
    "STABLEHLO_REDUCE_WINDOW": ("body_subgraph_index",),
    "STABLEHLO_SCATTER": ("update_computation_subgraph_index",),
    "WHILE": ("cond_subgraph_index", "body_subgraph_index"),
}
"""Maps each op that runs other graphs to its parameters with the numbers of these graphs."""

COMPOSITE = "STABLEHLO_COMPOSITE"
_INLINED = (COMPOSITE, "IF", "STABLEHLO_CASE", "WHILE")
"""Operations whose graphs may run in a partition."""
_DESCRIBED = ("STABLEHLO_REDUCE_WINDOW", "STABLEHLO_SCATTER")
"""Operations whose graphs never run: the runtime only inspects their nodes."""
_MAX_NODES = 1 << 17
"""Maximum number of nodes that replace calls in a model, to limit the reading time."""

_Place = tuple[int, int]
"""The number of a graph, and the index of a node in that graph that runs other graphs."""


@dataclass(frozen=True)
class Call:
    """A call of a graph by a node of another graph, whose context is `context`.

    `called` is the called graph with its inputs in order; `body` is the body if the node is a loop.
    An unknown `called` or `body` is None.
    """

    context: int
    node: Node
    called: Graph | None
    body: Graph | None


class Runs(enum.Enum):
    """How a graph is started, which determines when delegation of its nodes pays off."""

    INVOKED = enum.auto()
    """The graph runs once per invoke: the main graph, or the graph of another signature."""
    CALLED = enum.auto()
    """A node of another graph (WHILE, IF, a composite) runs the graph, often repeatedly."""
    ONCE = enum.auto()
    """The graph runs once in the lifetime of an interpreter."""


class Subgraphs:
    """The graphs of a model as they are before a delegate replaces nodes.

    The runtime applies a delegate to the graphs in sequence. The body of a loop may precede the
    graph with the loop. When the runtime applies the delegate to that graph, the body no longer
    contains the nodes of the file.
    """

    def __init__(self, context: int) -> None:
        """Register the main graph by its context; no graph is read yet."""
        self.numbers = {context: 0}
        """The number of each graph in the model, by its context."""
        self._context = context
        self._budget = ReadBudget()
        self._graphs = dict[int, Graph]()
        """The graphs by number."""
        self._bodies = dict[int, Graph]()
        """The conditions and bodies of loops by graph number, with their inputs and outputs."""
        self._callers = dict[int, dict[_Place, Node]]()
        self._in_invokes = set[int]()
        self._waiting = set[int]()
        self._unrolled = set[_Place]()

    def read(self, source: ModelSource | None) -> None:
        """Read all graphs of the model; skip graphs that cannot be read.

        Only the model's file states the inputs and outputs of a loop's graphs. The file is
        `source`, or is in the runtime's memory; without a file, no loop can be unrolled. For a
        composite's graph, dtypes and shapes may identify the inputs and outputs without a file. If
        `source` cannot be read or is the file of another model, the method raises ModelError, but
        only after reading all graphs.
        """
        self._read(0, self._context)
        for number in itertools.count(1):
            with acquired(self._context, number) as other:
                if not other:
                    break
                self.numbers[other] = number
                self._read(number, other)
        for number, graph in self._graphs.items():
            for node in graph.nodes:
                for called in _called(node):
                    self._callers.setdefault(called, {})[number, node.index] = node
        self._in_invokes = self._find_in_invokes()
        self._waiting = set(self._graphs)
        nodes = [node for node in self._nodes(self._graphs) if node.op in _INLINED]
        numbers = sorted({number for node in nodes for number in _called(node) if number})
        try:
            file = self._file(source) if numbers else None
            if file is not None:
                self._find_bodies(file, numbers, source is not None)
        finally:
            left = _Allowance(_MAX_NODES)
            self._graphs = {n: self._with_bodies(each, left) for n, each in self._graphs.items()}

    def _read(self, number: int, context: int) -> None:
        with contextlib.suppress(ModelError):  # its own turn will say why
            self._graphs[number] = reader.read_graph(context, self._budget)

    def _nodes(self, numbers: Collection[int]) -> Iterator[Node]:
        """Yield the nodes of the graphs with these numbers."""
        return (node for n in numbers if n in self._graphs for node in self._graphs[n].nodes)

    def _find_bodies(self, file: ModelFile, numbers: Iterable[int], given: bool) -> None:
        """Read bodies with their inputs and outputs; raise ModelError if a `given` file lacks one.

        The file does not contain nodes that replace the partitions of other delegates.
        """
        for number in (n for n in numbers if n in self._graphs):
            if (body := self._body(number, file)) is not None:
                self._bodies[number] = body
            elif given:
                raise ModelError(
                    f"Graph {number} of the delegate's model differs from the interpreter's. Give "
                    "the delegate the file that the interpreter loads."
                )

    def _file(self, source: ModelSource | None) -> ModelFile | None:
        """Return the model's file. Raises ModelError for a `source` that cannot be read."""
        if source is not None:
            return ModelFile.open(source)
        for number, graph in self._graphs.items():
            constants = [v for v, value in graph.values.items() if value.is_constant]
            with self._opened(number) as context:
                tensors = TfLiteContext.from_address(context).tensors if context else None
                for v in constants if tensors else ():
                    if (file := ModelFile.around(reader.tensor_at(tensors or 0, v))) is not None:
                        return file
        return None

    @contextlib.contextmanager
    def _opened(self, number: int) -> Iterator[int]:
        """Make the nodes of a graph readable; yield the graph's context, 0 for a missing graph."""
        if not number:  # the runtime already has the main graph open
            yield self._context
            return
        with acquired(self._context, number) as context:
            yield context

    def _body(self, number: int, file: ModelFile) -> Graph | None:
        """Return a graph with its inputs and outputs; None if the file lacks it."""
        graph = self._graphs[number]
        ends = file.graph_io(number, graph.nodes)
        if ends is None:
            return None
        passed = {v for each in ends for v in each} - graph.values.keys()
        with acquired(self._context, number) as context:
            passed_values = reader.read_values(context, passed, self._budget)
        return Graph({**graph.values, **passed_values}, graph.nodes, *ends)

    def _find_in_invokes(self) -> set[int]:
        """Return the numbers of all graphs except those that only CALL_ONCE runs."""
        found = set[int]()
        new = {number for number in self._graphs if not number or number not in self._callers}
        while new:
            found |= new
            called = (_called(node) for node in self._nodes(new) if node.op != "CALL_ONCE")
            new = {number for numbers in called for number in numbers} - found
        return found

    def graph(self, context: int) -> Graph:
        """Return the graph of a context. Raises the errors of `read_graph`.

        Loops in the graph contain their conditions and bodies, also loops inside of other loops.
        """
        found = self._graphs.get(self.numbers.get(context, -1))
        return found or reader.read_graph(context, self._budget)

    @contextlib.contextmanager
    def opened(self, context: int, applied: int) -> Iterator[None]:
        """Make the nodes of graph `context` readable while a delegate is applied to `applied`."""
        with contextlib.ExitStack() as stack:
            if context != applied:
                stack.enter_context(acquired(applied, self.numbers[context]))
            yield

    def awaits(self, context: int) -> bool:
        """Return whether the delegate is not yet applied to the graph of a context."""
        return self.numbers.get(context, -1) in self._waiting

    def done(self, context: int) -> bool:
        """Record that the delegate was applied to this graph; return whether no graph remains.

        After the last graph, the method discards all graphs.
        """
        self._waiting.discard(self.numbers.get(context, -1))
        if not self._waiting:
            self._graphs.clear()
            self._bodies.clear()
        return not self._waiting

    def calls(self, context: int) -> Iterator[Call]:
        """Yield the calls of a graph by the nodes of other graphs."""
        number = self.numbers.get(context, -1)
        contexts = list(self.numbers)
        for (caller, _), node in self._callers.get(number, {}).items():
            body = node.params["body_subgraph_index"] if node.op == "WHILE" else -1
            found = self._bodies.get(body, self._graphs.get(body))
            yield Call(contexts[caller], node, self._bodies.get(number), found)

    def with_nodes(self, ops: Collection[str]) -> Iterator[tuple[int, Graph]]:
        """Yield the context and the graph of each graph that has nodes of some operations."""
        contexts = {number: context for context, number in self.numbers.items()}
        for number, graph in self._graphs.items():
            if any(node.op in ops for node in graph.nodes):
                yield contexts[number], graph

    def _with_bodies(self, graph: Graph, left: _Allowance) -> Graph:
        nodes = []
        for node in graph.nodes:
            if node.op == "CALL_ONCE" or node.op in _DESCRIBED:  # inputs and outputs do not matter
                once = tuple(self._graphs[n] for n in _called(node) if n in self._graphs)
                nodes.append(replace(node, graphs=once))
                continue
            bodies = [
                self._flat(graph, node, n, left) for n in _called(node) if node.op in _INLINED
            ]
            known = tuple(body for body in bodies if body is not None)
            nodes.append(replace(node, graphs=known) if len(known) == len(bodies) else node)
        return replace(graph, nodes=tuple(nodes))

    def _flat(
        self, caller: Graph, node: Node, number: int, left: _Allowance, outer: tuple[int, ...] = ()
    ) -> Graph | None:
        """Return the graph that a node runs, with composites replaced by their nodes.

        Returns None if the graph's inputs and outputs are unknown, or if the graph has too many
        nodes.
        """
        graph = self._bodies.get(number)
        if graph is None and number in self._graphs and node.op == COMPOSITE:
            graph = _with_ends(self._graphs[number], caller, node)
        if graph is None or number in outer or not left.take(1 + len(graph.nodes)):
            return None
        if not any(each.op in _INLINED for each in graph.nodes):
            return graph
        fresh, values, nodes = iter(graph.fresh_ids()), dict(graph.values), list[Node]()
        names: dict[int, int] = {}
        for each in graph.nodes:
            inputs = tuple(names.get(v, v) for v in each.inputs)
            if each.op in _INLINED and each.op != COMPOSITE:
                bodies = [self._flat(graph, each, n, left, (*outer, number)) for n in _called(each)]
                known = tuple(body for body in bodies if body is not None)
                each = replace(each, graphs=known if len(known) == len(bodies) else ())
            called = _called(each) if each.op == COMPOSITE else ()
            inner = self._flat(graph, each, called[0], left, (*outer, number)) if called else None
            if inner is None:
                nodes.append(replace(each, inputs=inputs))
                continue
            if (len(inner.inputs), len(inner.outputs)) != (len(inputs), len(each.outputs)):
                return None
            inside = {ABSENT: ABSENT, **dict(zip(inner.inputs, inputs, strict=True))}
            for v, value in inner.values.items():
                if v not in inside:
                    inside[v] = next(fresh)
                    values[inside[v]] = replace(value, id=inside[v])
            nodes += (_renamed(one, each.index, inside) for one in inner.nodes)
            names.update(zip(each.outputs, (inside[v] for v in inner.outputs), strict=True))
        outputs = tuple(names.get(v, v) for v in graph.outputs)
        return Graph(values, tuple(nodes), graph.inputs, outputs)

    def runs(self, context: int) -> Runs:
        """Return how a graph is started; CALLED for a graph that was not read."""
        number = self.numbers.get(context)
        if number is None:
            return Runs.CALLED
        if number not in self._in_invokes:
            return Runs.ONCE
        return Runs.CALLED if number and number in self._callers else Runs.INVOKED

    def runners(self, context: int) -> frozenset[int]:
        """Return the numbers of a graph and of all graphs whose runs may run that graph."""
        found = set[int]()
        new = {self.numbers[context]} if context in self.numbers else set[int]()
        while new:
            found |= new
            new = {caller for number in new for caller, _ in self._callers.get(number, ())} - found
        return frozenset(found)

    def unroll(self, context: int, nodes: Collection[int]) -> None:
        """Record delegated nodes; loops among these nodes no longer call other graphs."""
        self._unrolled.update((self.numbers.get(context, -1), index) for index in nodes)

    def is_unrolled(self, context: int) -> bool:
        """Whether the runtime never runs a graph: all nodes that call it run in partitions."""
        return self._is_inlined(self.numbers.get(context, -1), set())

    def _is_inlined(self, number: int, seen: set[int]) -> bool:
        """Whether all nodes that call a graph run in partitions, or in graphs that are inlined."""
        callers = self._callers.get(number, {})
        seen.add(number)
        if any(node.op in _DESCRIBED for node in callers.values()):
            return True
        return bool(callers) and all(
            place in self._unrolled or (place[0] not in seen and self._is_inlined(place[0], seen))
            for place in callers
        )


@dataclass
class _Allowance:
    """The remaining number of nodes that may replace calls."""

    left: int

    def take(self, count: int) -> bool:
        """Subtract `count` nodes; return whether the remaining number was sufficient."""
        self.left -= count
        return self.left >= 0


def _with_ends(graph: Graph, caller: Graph, node: Node) -> Graph | None:
    """Return the graph of a composite with its inputs and outputs, if these are unambiguous.

    The inputs are the tensors that no node computes, and the outputs are the tensors that no node
    reads. Returns None if dtypes and shapes do not identify each input and output.
    """
    results = {v for each in graph.nodes for v in each.outputs}
    read = {v for each in graph.nodes for v in each.inputs} - {ABSENT}
    if not graph.values.keys() >= results | read:
        return None
    sources = [v for v in sorted(read - results) if not graph.values[v].is_constant]
    inputs = _matched(graph, sources, caller, node.inputs)
    outputs = _matched(graph, sorted(results - read), caller, node.outputs)
    if inputs is None or outputs is None:
        return None
    return replace(graph, inputs=inputs, outputs=outputs)


def _matched(
    graph: Graph, inner: Sequence[int], caller: Graph, outer: Sequence[int]
) -> tuple[int, ...] | None:
    """Return the tensors `inner` in the order of the caller's `outer`; None if ambiguous."""
    kinds = {(graph.values[v].dtype, graph.values[v].shape): v for v in inner}
    wanted = [(caller.values[v].dtype, caller.values[v].shape) for v in outer if v in caller.values]
    if not len(inner) == len(outer) == len(kinds) == len({*wanted}):
        return None
    found = tuple(kinds[kind] for kind in wanted if kind in kinds)
    return found if len(found) == len(outer) else None


def _renamed(node: Node, index: int, names: Mapping[int, int]) -> Node:
    """Return a node of another graph with a new index, and with its tensors renamed by `names`."""
    inputs, outputs = (tuple(names[v] for v in ends) for ends in (node.inputs, node.outputs))
    return replace(node, index=index, inputs=inputs, outputs=outputs)


def _called(node: Node) -> tuple[int, ...]:
    """Return the numbers of the graphs that a node runs."""
    found = [node.params[name] for name in _CALLS.get(node.op, ()) if name in node.params]
    return tuple(number for each in found for number in (each if type(each) is tuple else (each,)))


@contextlib.contextmanager
def acquired(context: int, number: int) -> Iterator[int]:
    """Make another graph of the model readable; yield its context, 0 for a missing graph.

    For a missing graph, the runtime reports an error, which is discarded.
    """
    struct, found = TfLiteContext.from_address(context), ctypes.c_void_p()
    with unheard(context):
        status = struct.AcquireSubgraphContext(context, number, ctypes.byref(found))
    if status or not found.value:
        yield 0
        return
    try:
        yield found.value
    finally:
        struct.ReleaseSubgraphContext(context, number)
