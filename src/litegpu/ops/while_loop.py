"""Operations that run other graphs of the model: loops, branches and composites.

WHILE is a loop whose body may contain further loops and composites.

A loop is unrolled if its condition depends only on constants, such as a counter. Unrolling copies
the nodes of the loop's body into the graph once per iteration. In an unrolled iteration, the
counter is a constant, and slices that it selects have known bounds. If the condition depends on
data, a batch of iterations is unrolled and runs repeatedly until the condition is false.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from litegpu.graph import ABSENT, DType, Graph, Node, Value
from litegpu.ops.base import COPY, Op, Shape, constant_list, facts_of, get, register
from litegpu.ops.common import checks, fold
from litegpu.ops.common.facts import Array
from litegpu.ops.common.support import check_node
from litegpu.ops.common.types import MOVED, STORABLE, Types, computed_as, has_scale
from litegpu.ops.variables import VARIABLES

WHILE = "WHILE"
COMPOSITE = "STABLEHLO_COMPOSITE"
_BRANCHES = ("IF", "STABLEHLO_CASE")
"""Ops that run one of several graphs; the first input selects the graph."""
_INLINED = (WHILE, COMPOSITE, *_BRANCHES)
_CARRIED = Types(STORABLE.dtypes)
_MAX_PASSES = 256
_MAX_NODES = 1 << 13
"""Maximum number of unrolled nodes, which limits the compile time."""
_MAX_RUNS = 64
"""Nodes of a loop that the runtime's CPU kernels may fold, such as those of zero initial states."""
_MAX_STEPS = 1 << 17
"""Maximum number of visited nodes, including nodes without kernels, which limits the time to
unroll.
"""
_MAX_WORK = 1 << 26
"""Maximum number of operations of branches that are all computed although only one is selected."""


@register
class While(Op):
    """A loop, whose body is unrolled once per iteration or in batches of iterations."""

    name = WHILE
    max_version = 1
    takes = (_CARRIED,)
    gives = _CARRIED
    shape_unknown = True

    def work(self, graph: Graph, node: Node) -> tuple[int, int, int]:
        found = _unrolled(graph, node)
        if found is not None:
            nodes, unrolled, stepped = found.nodes, found.graph, found.stepped
        elif runs_in_batches(graph, node):  # as if it ran once
            unrolled = batch_of(graph, node, 1).graph
            nodes, stepped = list(unrolled.nodes), sum(len(each.nodes) for each in node.graphs)
        else:
            return super().work(graph, node)
        ops = [(facts_of(each.op), each) for each in nodes]
        return (
            sum(op.flops(unrolled, each) for op, each in ops),
            sum(op.launches for op, _ in ops),
            stepped,
        )

    def check(self, graph: Graph, node: Node) -> str:
        reason = _check_graphs(graph, node)
        if reason:
            return reason
        try:
            try:
                unrolled = _unroll(graph, node, iter(graph.fresh_ids()))
            except PassesUnknownError:
                batch_of(graph, node, 1)
                return ""
        except NotInlinedError as error:
            return str(error)
        for v, last in zip(node.outputs, unrolled.last, strict=True):
            if unrolled.values[last].is_constant and any(
                v in each.operands for each in graph.nodes
            ):
                return f"The loop's result {v} is a constant, which other nodes read."
        return ""

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        try:
            unrolled = _unroll(graph, node, iter(graph.fresh_ids()))
        except PassesUnknownError:
            return tuple(graph.values[v].shape for v in node.inputs)
        return tuple(unrolled.values[v].shape for v in unrolled.last)


@register
class StablehloComposite(While):
    """An op that the model defines by a graph; the nodes of this graph replace the op."""

    name = COMPOSITE
    takes = (Types(MOVED.dtypes),)
    gives = Types(MOVED.dtypes)


@register
class If(While):
    """Selects one of two graphs; for a computed condition, both graphs run before the selection."""

    name = "IF"
    takes = (Types(MOVED.dtypes),)
    gives = Types(MOVED.dtypes)


@register
class StablehloCase(If):
    """Selects one of several graphs; for a computed index, all graphs run before the selection."""

    name = "STABLEHLO_CASE"


class NotInlinedError(Exception):
    """The reason why nodes of other graphs cannot replace a node."""


class PassesUnknownError(NotInlinedError):
    """Raised if the number of iterations of a loop depends on data."""


_OPERAND_ERRORS = (
    NotInlinedError,
    ArithmeticError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""Exceptions that nodes with invalid operands raise."""


def inline_graphs(graph: Graph) -> Graph:
    """Return a graph in which loops, branches and composites are replaced by their nodes.

    The function omits nodes whose results no node reads. A constant result becomes a constant of
    the graph.
    """
    if not any(node.op in _INLINED for node in graph.nodes):
        return graph
    fresh, values, nodes = iter(graph.fresh_ids()), dict(graph.values), list[Node]()
    for node in graph.nodes:
        if node.op not in _INLINED:
            nodes.append(node)
            continue
        unrolled = _unroll(replace(graph, values=values), node, fresh)
        values = unrolled.values
        nodes += unrolled.nodes
        for v, last in zip(node.outputs, unrolled.last, strict=True):
            found = values[last]
            values[v] = replace(values[v], shape=found.shape, dtype=found.dtype, data=found.data)
            if not found.is_constant:
                nodes.append(Node(node.index, COPY, 1, (last,), (v,)))
    needed, remaining = set(graph.outputs), list[Node]()
    others = set(map(id, graph.nodes))
    for node in reversed(nodes):
        if id(node) in others or needed.intersection(node.outputs):
            needed.update(node.operands)
            remaining.append(node)
    used = {v for node in remaining for v in (*node.operands, *node.outputs)}
    used.update(graph.inputs, graph.outputs)
    return replace(
        graph,
        values={v: value for v, value in values.items() if v in used},
        nodes=tuple(reversed(remaining)),
    )


def _check_graphs(graph: Graph, node: Node) -> str:
    """Return why a node's graphs can never be unrolled, or an empty text if they may be."""
    if not node.graphs:
        return "The body is read from the model file: pass GpuDelegate(model=...)."
    conditions = node.graphs[:-1] if node.op == WHILE else ()
    bodies = node.graphs[len(conditions) :]
    inputs = [(graph, _passed(node)), *((each, each.inputs) for each in node.graphs)]
    outputs = [(graph, node.outputs), *((each, each.outputs) for each in bodies)]
    # The inputs and outputs of a loop correspond.
    groups = [[*inputs, *outputs]] if conditions else [inputs, outputs]
    counts = [len({len(ends) for _, ends in group}) for group in groups]
    if max(counts) > 1 or any(len(each.outputs) != 1 for each in conditions):
        return "The inputs and outputs of the condition and the body are not those of the loop."
    if node.op in _BRANCHES and not node.inputs:
        return "The loop has no condition."
    quantized = not conditions and any(
        has_scale(graph.values[v]) for v in (*node.inputs, *node.outputs)
    )
    if conditions and (handed := _shared_carry(bodies[0])):
        return "The body returns input {} as result {}, which the CPU may overwrite first.".format(
            *handed
        )
    for inner in node.graphs:
        used = {v for each in inner.nodes for v in (*each.inputs, *each.outputs)} - {ABSENT}
        if not inner.values.keys() >= {*used, *inner.inputs, *inner.outputs}:
            return "The body refers to tensors that the model does not have."
        if any(value.is_variable for value in inner.values.values()):
            return "The body has variable tensors."
        if node.op in _BRANCHES and any(each.op in VARIABLES for each in inner.nodes):
            return "The branches read or assign variables."
        if not quantized and any(
            has_scale(value) and not value.is_constant for value in inner.values.values()
        ):
            return "The body computes with quantized tensors."
    for group in groups:
        for carried in zip(*(ends for _, ends in group), strict=True):
            tables = (table for table, _ in group)
            values = [table.values[v] for table, v in zip(tables, carried, strict=True)]
            if len({computed_as(value) for value in values}) > 1:
                return f"Tensor {carried[0]}, which the loop carries, has another type in the body."
    return ""


def _shared_carry(body: Graph) -> tuple[int, int] | None:
    """Return the positions of an input and a later output of a loop's body that share a value.

    The result is None if no input and later output share a value. Unless a shape in the body is
    dynamic, the CPU copies the body's outputs to its inputs one by one, in place. If an input and a
    later output share a value, the later copy reads the value of the next iteration.
    """
    changed: dict[int, int] = {}
    for place, (source, result) in enumerate(zip(body.inputs, body.outputs, strict=True)):
        if result in changed:
            return changed[result], place
        if result != source:
            changed[source] = place
    return None


def _passed(node: Node) -> tuple[int, ...]:
    """Return the inputs of a node that are passed to its graphs."""
    return node.inputs[1:] if node.op in _BRANCHES else node.inputs


Pieces = tuple[tuple[int, int, int], ...]
"""A list of row ranges along the first axis: (value, first row, number of rows)."""


@dataclass
class Inlined:
    """The state of unrolling a loop or composite: the graph and the nodes so far."""

    graph: Graph
    node: Node
    fresh: Iterator[int]
    values: dict[int, Value]
    nodes: list[Node] = field(default_factory=list)
    stepped: int = 0
    """Number of nodes and iterations that the CPU would have run so far."""
    last: tuple[int, ...] = ()
    """The loop-carried values after the iterations so far."""
    budget: fold.Budget = field(default_factory=lambda: fold.Budget(runs=_MAX_RUNS))
    pieces: dict[int, Pieces] = field(default_factory=dict)
    """Values that are not materialized yet, such as a sequence that grows by one row per iteration.
    """

    def run(self, graph: Graph, constants: Mapping[int, int]) -> tuple[int, ...]:
        """Add the nodes of a graph of the loop, and return the graph's outputs (value ids)."""
        names = {**constants, **dict(zip(graph.inputs, self.last, strict=True)), ABSENT: ABSENT}
        for node in graph.nodes:
            for v in node.outputs:
                names[v] = self.value(graph.values[v])
            self.add(
                replace(
                    node,
                    index=self.node.index,
                    inputs=tuple(names[v] for v in node.inputs),
                    outputs=tuple(names[v] for v in node.outputs),
                ),
                f"Node {node.index} of its body ({node.op})",
            )
        return tuple(names[v] for v in graph.outputs)

    def trial(self, graph: Graph, constants: Mapping[int, int]) -> tuple[int, ...]:
        """Return the outputs of one of the loop's graphs, without adding its nodes."""
        before, pieces = len(self.nodes), dict(self.pieces)
        found = self.run(graph, constants)
        del self.nodes[before:]
        self.pieces = pieces
        return found

    def value(self, like: Value) -> int:
        """Add a value and return its id."""
        v = next(self.fresh)
        self.values[v] = replace(like, id=v)
        return v

    def constant(self, data: Array) -> int:
        """Add a constant and return its id."""
        dtype = DType(data.dtype.name)
        return self.value(Value(0, "litegpu_constant", data.shape, dtype, data))

    def add(self, node: Node, what: str) -> None:
        """Add a node, or record its results if they are known. May raise NotInlinedError."""
        known = fold.evaluate(self.graph, node, self.budget) or _of_zeros(self.graph, node)
        if known is not None:
            for v, array in zip(node.outputs, known, strict=True):
                self.values[v] = fold.constant(self.values[v], array)
            return
        joined = self.joined(node)
        if joined is not None:
            (v,) = node.outputs
            self.pieces[v] = joined
            rows = sum(count for _, _, count in joined)
            shape = (rows, *self.values[joined[0][0]].shape[1:])
            self.values[v] = replace(self.values[v], shape=shape)
            return
        if node.op in _INLINED:
            return self.inline(node, what)
        inputs = [*map(self.materialized, node.inputs)]
        if node.op == "CONCATENATION":  # a sequence that grows may begin without elements
            inputs = [v for v in inputs if v == ABSENT or self.values[v].elements]
        node = replace(node, inputs=tuple(inputs))
        reason, shapes = check_node(self.graph, node, "exact")
        if reason:
            raise NotInlinedError(f"{what}: {reason}")
        for v, shape in zip(node.outputs, shapes, strict=True):
            self.values[v] = replace(self.values[v], shape=shape)
        self.append(node)

    def inline(self, node: Node, what: str) -> None:
        """Add the nodes of a nested loop or composite, or raise NotInlinedError."""
        if reason := _check_graphs(self.graph, node):
            raise NotInlinedError(f"{what}: {reason}")
        inner = replace(self, node=node, last=_passed(node))
        try:
            _run_graphs(inner)
        except NotInlinedError as error:
            raise NotInlinedError(f"{what}: {error}") from None
        self.pieces, self.stepped = inner.pieces, inner.stepped
        for v, last in zip(node.outputs, inner.last, strict=True):
            found = self.values[last]
            self.values[v] = replace(
                self.values[v], shape=found.shape, dtype=found.dtype, data=found.data
            )
            if not found.is_constant:
                self.append(Node(self.node.index, COPY, 1, (last,), (v,)))

    def step(self, count: int) -> None:
        """Count nodes that the CPU would run, or raise NotInlinedError if there are too many."""
        self.stepped += count
        if self.stepped > _MAX_STEPS:
            raise NotInlinedError(f"The iterations run more than {_MAX_STEPS} nodes.")

    def append(self, node: Node) -> None:
        """Add a checked node, or raise NotInlinedError if there are too many nodes."""
        self.nodes.append(node)
        if len(self.nodes) > _MAX_NODES:
            raise NotInlinedError(f"The iterations have more than {_MAX_NODES} nodes.")

    def joined(self, node: Node) -> Pieces | None:
        """Return the rows of other values that a node concatenates; None for other nodes."""
        inputs = [self.values[v] for v in node.inputs if v != ABSENT]
        if len(node.outputs) != 1 or not inputs or not inputs[0].shape:
            return None
        if self.values[node.outputs[0]].dtype is not computed_as(inputs[0]):
            return None
        shape = inputs[0].shape
        if node.op == "CONCATENATION":
            rests = {value.shape[1:] for value in inputs}
            dtypes = {computed_as(value) for value in inputs}
            plain = node.params["axis"] in (0, -len(shape)) and len(rests) == len(dtypes) == 1
            if not plain or node.params.get("activation", "none") != "none":
                return None
            return _merged(tuple(piece for value in inputs for piece in self.rows(value.id)))
        if node.op == "SLICE" and len(inputs) == 3 and all(v.is_constant for v in inputs[1:]):
            begin, size = (constant_list(self.graph, v.id) for v in inputs[1:])
            if len(begin) != len(shape) or len(size) != len(shape):
                return None
            count = shape[0] - begin[0] if size[0] == -1 else size[0]
            whole = all(
                first == 0 and wanted in (-1, extent)
                for first, wanted, extent in zip(begin[1:], size[1:], shape[1:], strict=True)
            )
            inside = 0 <= begin[0] <= begin[0] + count <= shape[0]
            return _cut(self.rows(inputs[0].id), begin[0], count) if whole and inside else None
        if node.op == "DYNAMIC_UPDATE_SLICE" and len(inputs) == 3 and inputs[2].is_constant:
            update = inputs[1]
            begin = constant_list(self.graph, inputs[2].id)
            whole = len(begin) == len(shape) and update.shape[1:] == shape[1:]
            same = computed_as(update) is computed_as(inputs[0])
            if not whole or not same or len(update.shape) != len(shape):
                return None
            count = update.shape[0]
            first = min(max(begin[0], 0), shape[0] - count)
            if first < 0:
                return None
            rows, end = self.rows(inputs[0].id), first + count
            before, after = _cut(rows, 0, first), _cut(rows, end, shape[0] - end)
            return _merged((*before, *self.rows(update.id), *after))
        return None

    def rows(self, v: int) -> Pieces:
        """Return the pieces of rows of which a value consists."""
        return self.pieces.get(v, ((v, 0, self.values[v].shape[0]),))

    def materialized(self, v: int) -> int:
        """Return a materialized value with the contents of a value that consists of pieces."""
        if v not in self.pieces:
            return v
        if reason := checks.size(v, self.values[v].shape):
            raise NotInlinedError(f"The body updates rows, but {reason}")
        parts = [self.part(*piece) for piece in self.pieces.pop(v) if piece[2]]
        if len(parts) == 1:
            self.pieces[v] = ((parts[0], 0, self.values[v].shape[0]),)
            return parts[0]
        self.append(
            Node(self.node.index, "CONCATENATION", 1, tuple(parts), (v,), params={"axis": 0})
        )
        return v

    def part(self, v: int, first: int, count: int) -> int:
        """Return a value with `count` rows of another value, from row `first` on."""
        whole = self.values[v]
        if count == whole.shape[0]:
            return v
        shape = (count, *whole.shape[1:])
        if whole.data is not None:
            return self.constant(np.ascontiguousarray(whole.data[first : first + count]))
        begin = self.constant(np.array([first, *(0 for _ in shape[1:])], np.int32))
        size = self.constant(np.array(shape, np.int32))
        found = self.value(replace(whole, shape=shape))
        self.append(Node(self.node.index, "SLICE", 1, (v, begin, size), (found,)))
        return found


def _unroll(graph: Graph, node: Node, fresh: Iterator[int]) -> Inlined:
    """Return the unrolled nodes of a node with checked graphs, or raise NotInlinedError."""
    values = dict(graph.values)
    found = Inlined(replace(graph, values=values), node, fresh, values, last=_passed(node))
    if node.op != WHILE:
        found.budget = fold.Budget()
    _run_graphs(found)
    return found


def _run_graphs(found: Inlined) -> None:
    """Add the nodes and outputs of a node's graphs, or raise NotInlinedError."""
    node, values = found.node, found.values
    constants = [
        {v: found.value(value) for v, value in each.values.items() if value.is_constant}
        for each in node.graphs
    ]
    if node.op == COMPOSITE:
        found.last = tuple(map(found.materialized, found.run(node.graphs[0], constants[0])))
        found.step(len(node.graphs[0].nodes))
        return
    if node.op in _BRANCHES:
        _run_branches(found, constants)
        return
    condition, body = node.graphs
    for passes in range(_MAX_PASSES + 1):
        (wanted,) = found.trial(condition, constants[0])
        again = values[wanted].data
        if again is None:
            raise PassesUnknownError("The number of iterations is known only when the model runs.")
        if again.dtype != np.bool_ or again.shape not in ((), (1,)):
            raise NotInlinedError(
                f"The condition returns {again.dtype} {list(again.shape)} instead of one bool."
            )
        if not again.item():
            if not passes:
                found.trial(body, constants[1])  # the CPU refuses what it could not run
            found.last = tuple(map(found.materialized, found.last))
            return
        found.last = found.run(body, constants[1])
        found.step(len(condition.nodes) + len(body.nodes))
    raise NotInlinedError(f"The loop has more than {_MAX_PASSES} iterations.")


def _run_branches(found: Inlined, constants: Sequence[Mapping[int, int]]) -> None:
    """Add the nodes of the selected graph, or of all graphs and a selection of their results."""
    node, values = found.node, found.values
    selector = values[found.materialized(node.inputs[0])]
    kind = DType.BOOL if node.op == "IF" else DType.INT32
    if selector.shape not in ((), (1,)) or selector.dtype is not kind:
        raise NotInlinedError(
            f"The branch is selected by {selector.dtype.name} {list(selector.shape)} instead of "
            f"one {kind.name}."
        )
    last, given = len(node.graphs) - 1, found.last
    if selector.data is not None:
        number = int(selector.data.item())
        chosen = 1 - number if node.op == "IF" else number if 0 <= number < last else last
        found.last = tuple(
            map(found.materialized, found.run(node.graphs[chosen], constants[chosen]))
        )
        found.step(len(node.graphs[chosen].nodes))
        return
    first = len(found.nodes)
    results = []
    for body, known in zip(node.graphs, constants, strict=True):
        found.last = given
        results.append(tuple(map(found.materialized, found.run(body, known))))
    work = sum(facts_of(each.op).flops(found.graph, each) for each in found.nodes[first:])
    if work > _MAX_WORK:
        raise NotInlinedError(
            f"The branches compute {work} operations, but only one branch is selected."
        )
    found.last = results[last]
    for number, branch in enumerate(results[:last]):
        condition = selector.id
        if node.op != "IF":
            condition = found.value(replace(selector, dtype=DType.BOOL, name="litegpu_condition"))
            equals = (selector.id, found.constant(np.array(number, np.int32)))
            found.add(Node(node.index, "EQUAL", 1, equals, (condition,)), "Its selection")
        found.last = tuple(
            _chosen(found, condition, *pair) for pair in zip(branch, found.last, strict=True)
        )
    found.step(max(len(body.nodes) for body in node.graphs))


def _chosen(found: Inlined, condition: int, first: int, second: int) -> int:
    """Add a value that equals `first` where the condition is true, else `second`."""
    shapes = [found.values[v].shape for v in (first, second)]
    if shapes[0] != shapes[1] or len(found.values[condition].shape) > len(shapes[0]):
        listed = " and ".join(str(list(shape)) for shape in shapes)
        raise NotInlinedError(
            f"The branches return values of {listed}, but all must have the same shape."
        )
    target = found.value(replace(found.values[first], data=None))
    choice = Node(found.node.index, "SELECT_V2", 1, (condition, first, second), (target,))
    found.add(choice, "Its choice of results")
    return target


@dataclass(frozen=True, slots=True)
class LoopBatch:
    """Several iterations of a loop as a plain graph; the next batch starts from its outputs.

    The graph's outputs are the loop-carried values after the iterations. The last output is a bool:
    whether the condition is still true. Iterations after the condition became false change no
    value.
    """

    graph: Graph
    carried: tuple[int, ...]
    """The positions of the loop's inputs and outputs that change between iterations."""
    inputs: tuple[int, ...]
    """The value id of each carried position before the iterations."""


def runs_in_batches(graph: Graph, node: Node) -> bool:
    """Whether a node is a loop whose number of iterations is known only at run time."""
    if node.op != WHILE or _check_graphs(graph, node):
        return False
    try:
        _unroll(graph, node, iter(graph.fresh_ids()))
    except PassesUnknownError:
        try:
            batch_of(graph, node, 1)
        except _OPERAND_ERRORS:
            return False
        return True
    except _OPERAND_ERRORS:
        pass
    return False


def batch_of(graph: Graph, node: Node, passes: int) -> LoopBatch:
    """Return a batch of iterations of a loop with checked graphs, or raise NotInlinedError."""
    condition, body = node.graphs
    places = range(len(node.inputs))
    carried = tuple(i for i in places if body.outputs[i] != body.inputs[i])
    values, fresh = dict(graph.values), iter(graph.fresh_ids())
    found = Inlined(replace(graph, values=values), node, fresh, values)
    before = {i: found.value(replace(values[node.inputs[i]], data=None)) for i in carried}
    found.last = tuple(before.get(i, v) for i, v in enumerate(node.inputs))
    constants = [
        {v: found.value(value) for v, value in each.values.items() if value.is_constant}
        for each in node.graphs
    ]
    (holds,) = map(found.materialized, found.run(condition, constants[0]))
    if values[holds].dtype is not DType.BOOL or values[holds].shape != ():
        raise NotInlinedError(
            f"The condition returns {values[holds].dtype.name} {list(values[holds].shape)} "
            "instead of one bool."
        )
    for _ in range(passes):
        last, after = found.last, tuple(map(found.materialized, found.run(body, constants[1])))
        for i in carried:
            if values[after[i]].shape != values[last[i]].shape:
                raise NotInlinedError("The shape of a carried tensor changes.")
        found.last = tuple(
            _chosen(found, holds, after[i], v) if i in before else v for i, v in enumerate(last)
        )
        (wanted,) = map(found.materialized, found.run(condition, constants[0]))
        still = found.value(replace(values[holds], data=None))
        found.add(Node(node.index, "LOGICAL_AND", 1, (holds, wanted), (still,)), "Its condition")
        holds = still
    if any(each.op in VARIABLES for each in found.nodes):
        raise NotInlinedError(
            "The iterations read or assign variables, and the number of iterations is unknown."
        )
    outputs = (*(found.last[i] for i in carried), holds)
    used = {v for each in found.nodes for v in (*each.operands, *each.outputs)}
    inputs = (*before.values(), *(v for v in node.inputs if v in used))
    batch = Graph(
        {v: values[v] for v in (*used, *inputs, *outputs)},
        tuple(found.nodes),
        tuple(v for v in dict.fromkeys(inputs) if not values[v].is_constant),
        outputs,
    )
    return LoopBatch(batch, carried, tuple(before.values()))


def _unrolled(graph: Graph, node: Node) -> Inlined | None:
    """Return the unrolled nodes of a node, for estimates; None if the node stays on the CPU."""
    try:
        if not _check_graphs(graph, node):
            return _unroll(graph, node, iter(graph.fresh_ids()))
    except _OPERAND_ERRORS:
        pass  # what operands make no sense, its check tells
    return None


def _of_zeros(graph: Graph, node: Node) -> list[Array] | None:
    """Fold products of an all-zero operand, as in an LSTM's first step, to the bias."""
    if node.op not in ("FULLY_CONNECTED", "BATCH_MATMUL"):
        return None
    operands = [graph.values[v].data for v in node.inputs if v != ABSENT]
    if node.params.get("activation", "none") != "none" or len(operands) < 2:
        return None
    if any(each is None for each in operands):
        return None
    zeros, weights, *bias = (each for each in operands if each is not None)
    if any(each.dtype != np.float32 for each in (zeros, *bias)) or zeros.any():
        return None
    if weights.dtype.kind not in "if" or not np.isfinite(weights).all():
        return None
    try:
        (shape,) = get(node.op).infer(graph, node)
    except (ArithmeticError, LookupError, TypeError, ValueError):
        return None
    return [np.zeros(shape, np.float32) + (bias[0] if bias else np.float32(0))]


def _merged(pieces: Pieces) -> Pieces:
    """Return pieces in which consecutive rows of one value are merged.

    The function drops empty pieces, unless all pieces are empty.
    """
    found: list[tuple[int, int, int]] = []
    for v, first, count in pieces:
        if found and found[-1][0] == v and sum(found[-1][1:]) == first:
            found[-1] = (v, found[-1][1], found[-1][2] + count)
        elif count:
            found.append((v, first, count))
    return tuple(found) or pieces[:1]


def _cut(pieces: Pieces, first: int, count: int) -> Pieces:
    """Return the pieces of `count` rows from row `first` on; an empty piece for 0 rows."""
    found, start, end = list[tuple[int, int, int]](), 0, first + count
    for v, begin, rows in pieces:
        low, high = max(first, start), min(end, start + rows)
        if low < high:
            found.append((v, begin + low - start, high - low))
        start += rows
    return tuple(found) or ((pieces[0][0], 0, 0),)
