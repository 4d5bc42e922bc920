"""Formats the state of an interpreter's graphs as text and as ModelRuntimeDetails."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from litegpu.tools.benchmark_model.graph_state import GraphState, NodeState, TensorState
from litegpu.tools.proto import Field, Named, Proto


@dataclass(frozen=True)
class Lengths:
    """The column widths of tensor names, types and allocation types."""

    name: int = 25
    kind: int = 15
    allocation: int = 18


def state_text(graphs: Sequence[GraphState], lengths: Lengths) -> str:
    """Return all tensors and nodes, in the format of TensorFlow Lite's tools.

    Tensor addresses are -1, because the runtime's Python API does not report them.
    """
    lines = [f"Interpreter has {len(graphs)} subgraphs.", ""]
    for graph in graphs:
        lines += _graph(graph, lengths)
    return "\n".join(lines)


def _graph(graph: GraphState, lengths: Lengths) -> Iterator[str]:
    counts = f"{len(graph.tensors)} tensors and {len(graph.nodes)} nodes"
    yield f"-----------Subgraph-{graph.index} has {counts}------------"
    for title, tensors in (("Inputs", graph.inputs), ("Outputs", graph.outputs)):
        yield f"{len(tensors)} {title}: {_numbers(tensors)}{_size(graph.size(tensors))}"
    yield ""
    names = (("Name", lengths.name), ("Type", lengths.kind), ("AllocType", lengths.allocation))
    heading = " ".join(name.ljust(length) for name, length in names)
    yield f"Tensor {'ID':>3} {heading} {'Size (Bytes/MB)':<18} {'Shape':<10} MemAddr-Offset"
    for tensor in graph.tensors:
        yield _tensor(tensor, lengths)
    yield ""
    for kind in dict.fromkeys(tensor.allocation for tensor in graph.tensors):
        sizes = [tensor.bytes for tensor in graph.tensors if tensor.allocation == kind]
        yield f"{kind} Info: {len(sizes)} tensors{_size(sum(sizes))}"
    yield ""
    for node in graph.nodes:
        yield from _node(graph, node)
    yield ""
    count = len(graph.plan)
    plan = _numbers(graph.plan)
    yield f"Execution plan as the list of {count} nodes invoked in-order: {plan}"
    kernels = [node for node in graph.nodes if node.code is None]
    if kernels:
        yield "Among these nodes in the execution plan:"
    for node in kernels:
        yield (
            f"  Node {node.index} is a {node.name} node, which has delegated "
            f"{len(node.replaces)} nodes: {_numbers(node.replaces)}"
        )
    yield f"--------------Subgraph-{graph.index} dump has completed--------------"
    yield ""


def _tensor(tensor: TensorState, lengths: Lengths) -> str:
    cells = (
        _cut(tensor.name, lengths.name),
        _cut(type_name(tensor.kind), lengths.kind, from_the_end=True),
        _cut(tensor.allocation, lengths.allocation, from_the_end=True),
    )
    shape = f"[{','.join(map(str, tensor.shape))}]" if tensor.shape else "(null)"
    size = f"{tensor.bytes:<8} / {tensor.bytes / 2**20:.2f}"
    return f"Tensor {tensor.index:>3} {' '.join(cells)} {size} {shape} [-1, -1)"


def _node(graph: GraphState, node: NodeState) -> Iterator[str]:
    where = ""
    if node.code is not None:
        to = node.delegated_to
        where = " (not delegated)" if to is None else f" (delegated by node {to})"
    if node.code is None or node.code == _CUSTOM:
        yield f"Node {node.index:>3} Operator Custom Name {node.name}{where}"
    else:
        yield f"Node {node.index:>3} Operator Builtin Code {node.code:>3} {node.name}{where}"
    for title, tensors in (("Input", node.inputs), ("Output", node.outputs)):
        size = 0 if node.delegated_to is not None else graph.size(tensors)
        yield f"  {len(tensors)} {title} Tensors:{_numbers(tensors)}{_size(size)}"


_CUSTOM = 32
"""The code of custom operations."""


def _size(count: int) -> str:
    return f" -> {count}B ({count / 2**20:.2f}MB)"


def _numbers(values: Iterable[int]) -> str:
    """Return numbers as text, with ranges for consecutive numbers: `[0-3,7]`."""
    ranges: list[list[int]] = []
    for value in values:
        if ranges and value == ranges[-1][1] + 1:
            ranges[-1][1] = value
        else:
            ranges.append([value, value])
    if not ranges:
        return "(null)"
    texts = (
        str(low) if low == high else f"{low}{',' if high == low + 1 else '-'}{high}"
        for low, high in ranges
    )
    return f"[{','.join(texts)}]"


def _cut(text: str, length: int, from_the_end: bool = False) -> str:
    """Truncate text to at most this length, ending with `...`."""
    if len(text) > length:
        room = max(length - 3, 0)
        dots = "..."[:length]
        text = dots + text[len(text) - room :] if from_the_end else text[:room] + dots
    return text.ljust(length)


_SPELT = {
    **{name: name.capitalize() for name in ("BOOL", "STRING", "RESOURCE", "VARIANT")},
    **{"BFLOAT16": "BFloat16", "COMPLEX64": "Complex64", "COMPLEX128": "Complex128"},
}


def type_name(kind: str) -> str:
    """Return the runtime's name of a dtype, for example `kTfLiteFloat32` for `FLOAT32`."""
    if kind.startswith("UINT"):
        return f"kTfLiteUInt{kind[4:]}"
    return f"kTfLite{_SPELT.get(kind, kind.capitalize())}"


# For programs

_DATA_TYPES = (
    *("UNKNOWN_TYPE", "FLOAT32", "INT32", "UINT8", "INT64", "STRING", "BOOL", "INT16"),
    *("COMPLEX64", "INT8", "FLOAT16", "FLOAT64", "COMPLEX128", "UINT64", "RESOURCE", "VARIANT"),
    *("UINT32", "UINT16", "INT4", "BFLOAT16", "INT2", "UINT4"),
)
"""The data types of the message Edge, by number."""


def runtime_details(model: str, graphs: Sequence[GraphState]) -> Proto:
    """Return the state as the Protocol Buffers message ModelRuntimeDetails."""
    return Proto(((1, "model_name", model), *((2, "subgraphs", _subgraph(g)) for g in graphs)))


def _subgraph(graph: GraphState) -> Proto:
    return Proto(
        (
            (1, "subgraph_id", graph.index),
            *((2, "edges", _edge(tensor)) for tensor in graph.tensors),
            *((3, "nodes", _details(node)) for node in graph.nodes),
            (4, "execution_plan", graph.plan),
            (5, "subgraph_type", Named(1, "TFLITE_SUBGRAPH")),
            (6, "name", graph.name),
        )
    )


def _edge(tensor: TensorState) -> Proto:
    number = _DATA_TYPES.index(tensor.kind) if tensor.kind in _DATA_TYPES else 0
    return Proto(
        (
            (1, "id", tensor.index),
            (2, "name", tensor.name),
            (3, "data_type", Named(number, _DATA_TYPES[number])),
            (4, "shape", tensor.shape),
            (5, "allocation_type", tensor.allocation),
            (6, "layout_type", Named(0, "UNKNOWN")),
            (7, "size", tensor.bytes),
        )
    )


def _details(node: NodeState) -> Proto:
    custom = node.code is None or node.code == _CUSTOM
    kind = node.name if custom else str(node.code)
    if custom and node.delegated_to is not None:
        kind = f"Delegate/{kind}"
    fields: list[tuple[int, str, Field]] = [
        (1, "id", node.index),
        (2, "name", node.name),
        (3, "type", kind),
        (4, "inputs", node.inputs),
        (5, "outputs", node.outputs),
    ]
    if node.code is None:
        details = ((1, "delegate_name", node.name), (2, "tflite_node_ids_replaced", node.replaces))
        fields.append((8, "delegate_node_details", Proto(details)))
    elif node.delegated_to is not None:
        fields.append((9, "delegated_to_node_id", node.delegated_to))
    return Proto(tuple(fields))
