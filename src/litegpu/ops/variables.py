"""Variables: named values that a model preserves between invokes and shares among its graphs.

VAR_HANDLE names a variable. READ_VARIABLE and ASSIGN_VARIABLE copy the value of a variable.
CALL_ONCE runs a graph that assigns initial values. Variables are stored on a GPU if no node of the
model needs them on the CPU (`delegation/called_shapes.py`). In that case, the handle's value id
represents the variable. The variable's value before a run is an input of the partition, and the
last assigned value is an output that replaces this input.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from litegpu.errors import ModelError
from litegpu.graph import DType, Graph, Node, Quantization, Value
from litegpu.ops.base import COPY, Op, Shape, register
from litegpu.ops.common import checks
from litegpu.ops.common.facts import Array
from litegpu.ops.common.types import MOVED, Types

VAR_HANDLE = "VAR_HANDLE"
READ_VARIABLE = "READ_VARIABLE"
ASSIGN_VARIABLE = "ASSIGN_VARIABLE"
CALL_ONCE = "CALL_ONCE"
VARIABLES = frozenset({VAR_HANDLE, READ_VARIABLE, ASSIGN_VARIABLE, CALL_ONCE})
"""The ops that read or assign variables."""

Name = tuple[str, str]
"""The container of a variable, and the variable's name in this container."""

_HANDLE = Types(MOVED.dtypes | {DType.OTHER})
_MOVED = Types(MOVED.dtypes)


@register
class VarHandle(Op):
    """Returns the handle of a variable, the first input of READ_VARIABLE and ASSIGN_VARIABLE."""

    name = VAR_HANDLE
    max_version = 1
    launches = 0
    takes = ()
    gives = _HANDLE
    shape_stated = True

    def check(self, graph: Graph, node: Node) -> str:
        return checks.input_count(node, 0, 0)

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        return (graph.values[node.outputs[0]].shape,)


@register
class ReadVariable(Op):
    """Returns the current value of a variable."""

    name = READ_VARIABLE
    max_version = 1
    takes = (_HANDLE,)
    gives = _MOVED
    shape_stated = True

    def check(self, graph: Graph, node: Node) -> str:
        return checks.input_count(node, 1, 1) or _stored_whole(graph, node.outputs[0])

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        return (graph.values[node.outputs[0]].shape,)


@register
class AssignVariable(Op):
    """Assigns a new value to a variable."""

    name = ASSIGN_VARIABLE
    max_version = 1
    takes = (_HANDLE, _MOVED)

    def states(self, node: Node) -> tuple[int, ...]:
        return node.inputs[:1]

    def check(self, graph: Graph, node: Node) -> str:
        if reason := checks.input_count(node, 2, 2):
            return reason
        variable, value = (graph.values[v] for v in node.inputs)
        if _is_resolved(graph, variable.id) and variable.shape != value.shape:
            return (
                f"The node assigns a value of shape {list(value.shape)} to a variable of shape "
                f"{list(variable.shape)}."
            )
        return _stored_whole(graph, value.id)

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        return ()


@register
class CallOnce(Op):
    """Runs, at the first invoke, a graph that assigns the initial values of variables."""

    name = CALL_ONCE
    max_version = 1
    launches = 0
    takes = ()

    def check(self, graph: Graph, node: Node) -> str:
        if reason := checks.input_count(node, 0, 0):
            return reason
        (first,) = node.graphs or (None,)
        if first is None:
            return "The graph that CALL_ONCE runs cannot be read."
        if first_values(first) is None:
            return "The graph that CALL_ONCE runs does not only assign constants to variables."
        return ""

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        return ()


def names_of(graph: Graph) -> dict[int, Name]:
    """Return the variables of a graph, by the value ids of their handles."""
    return {
        node.outputs[0]: (_text(node, "container"), _text(node, "shared_name"))
        for node in graph.nodes
        if node.op == VAR_HANDLE and node.outputs
    }


def _text(node: Node, name: str) -> str:
    return str(node.params.get(name) or "")


def first_values(graph: Graph) -> dict[Name, Array] | None:
    """Return the values that the graph of a CALL_ONCE assigns; None if it has other nodes."""
    names, found = names_of(graph), dict[Name, Array]()
    for node in graph.nodes:
        if node.op == ASSIGN_VARIABLE and len(node.inputs) == 2:
            value = graph.values.get(node.inputs[1])
            if node.inputs[0] not in names or value is None or value.data is None:
                return None
            found[names[node.inputs[0]]] = value.data
        elif node.op != VAR_HANDLE:
            return None
    return found


def shared_values(graphs: Iterable[Graph]) -> dict[Name, Value] | None:
    """Return one Value for each variable, with its type, shape and quantization.

    The result is None if nodes state different ones for a variable, or if a handle has any other
    use.
    """
    found = dict[Name, Value]()
    for graph in graphs:
        names = names_of(graph)
        for node in graph.nodes:
            uses = node.op in (READ_VARIABLE, ASSIGN_VARIABLE)
            if not names.keys().isdisjoint(node.inputs[uses:]):
                return None
            if not uses:
                continue
            v = node.outputs[0] if node.op == READ_VARIABLE else node.inputs[1]
            if node.inputs[0] not in names or v not in graph.values:
                return None
            value = graph.values[v]
            other = found.setdefault(names[node.inputs[0]], value)
            if _stated(value) != _stated(other):
                return None
    return found


def _stated(value: Value) -> tuple[DType, Shape, Quantization | None]:
    """Return what a file states of a variable's value."""
    return value.dtype, value.shape, value.quantization


def with_variables(graph: Graph, variables: Mapping[Name, Value]) -> tuple[Graph, dict[int, Name]]:
    """Return a partition with its variables as inputs, and the variables' names by value id.

    The function merges all handles of a variable into one handle. The function raises ModelError
    for a handle that is an output.
    """
    names = {v: name for v, name in names_of(graph).items() if name in variables}
    if found := [name for v, name in names.items() if v in graph.outputs]:
        raise ModelError(
            f"The handle of the variable '{found[0][1]}' is an output of the graph, which the GPU "
            "cannot make. Use the interpreter without the delegate."
        )
    first = {name: v for v, name in reversed(names.items())}
    same = {v: first[name] for v, name in names.items()}
    values = dict(graph.values)
    for name, v in first.items():
        like = variables[name]
        values[v] = replace(
            values[v],
            shape=like.shape,
            dtype=like.dtype,
            quantization=like.quantization,
            signature=(),
        )
    nodes = tuple(node.reading(same) for node in graph.nodes if node.op != VAR_HANDLE)
    inputs = (*graph.inputs, *first.values())
    return Graph(values, nodes, inputs, graph.outputs), {v: name for name, v in first.items()}


def resolve_variables(graph: Graph) -> tuple[Graph, Mapping[int, int]]:
    """Return a graph with variables as inputs and outputs, and map outputs to replaced inputs.

    A READ_VARIABLE returns the last value that an earlier node assigned. The last assigned value is
    an output.
    """
    if not any(node.op in VARIABLES for node in graph.nodes):
        return graph, {}
    values, nodes, present = dict(graph.values), list[Node](), dict[int, int]()
    fresh = iter(graph.fresh_ids())
    for node in graph.nodes:
        if node.op == READ_VARIABLE:
            source = present.get(node.inputs[0], node.inputs[0])
            nodes.append(Node(node.index, COPY, 1, (source,), node.outputs))
        elif node.op == ASSIGN_VARIABLE:
            variable, source = node.inputs
            present[variable] = next(fresh)
            values[present[variable]] = replace(values[variable], id=present[variable])
            nodes.append(Node(node.index, COPY, 1, (source,), (present[variable],)))
        elif node.op != CALL_ONCE:
            nodes.append(node)
    replaced = {last: variable for variable, last in present.items()}
    outputs = (*graph.outputs, *replaced)
    return Graph(values, tuple(nodes), graph.inputs, outputs), replaced


def _is_resolved(graph: Graph, variable: int) -> bool:
    """Whether a handle is resolved, so that its value id represents the variable."""
    return variable in graph.inputs


def _stored_whole(graph: Graph, v: int) -> str:
    if -1 in graph.values[v].signature:
        return f"Tensor {v}, the value of a variable, has no fixed size in the model file."
    return ""
