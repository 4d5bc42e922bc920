"""Decides, before any partitioning, which nodes of a model can run on the GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from litegpu.graph import ABSENT, DType, Graph, Node, Value
from litegpu.ops import checks
from litegpu.ops.base import find


@dataclass(frozen=True, slots=True)
class Examination:
    """The graph with inferred shapes, and why each unsupported node is (by node index)."""

    graph: Graph
    reasons: Mapping[int, str]


def examine(graph: Graph) -> Examination:
    """Check every node in order, on the shapes that follow from the ones before it.

    The runtime may ask a delegate before it has computed any shape itself, so the shapes that
    the file states are replaced by inferred ones.
    """
    values = dict(graph.values)
    reasons: dict[int, str] = {}
    for node in graph.nodes:
        reason = _reason(replace(graph, values=values), node)
        if reason:
            reasons[node.index] = reason
            _distrust_outputs(values, node)
            continue
        op = find(node.op)
        shapes = op.infer(replace(graph, values=values), node) if op else ()
        for v, shape in zip(node.outputs, shapes, strict=True):
            values[v] = replace(values[v], shape=shape)
        if folds(node, values):
            # Its consumers must see a constant already while they are checked.
            source = values[node.inputs[0]]
            target = values[node.outputs[0]]
            values[target.id] = replace(target, data=source.data, dtype=DType.FLOAT16)
    return Examination(replace(graph, values=values), reasons)


def folds(node: Node, values: Mapping[int, Value]) -> bool:
    """Whether a node widens float16 weights, which the passes fold away."""
    if node.op != "DEQUANTIZE" or len(node.inputs) != 1:
        return False
    source = values[node.inputs[0]]
    return source.is_constant and source.dtype is DType.FLOAT16


def _reason(graph: Graph, node: Node) -> str:
    op = find(node.op)
    if op is None or node.op == "COPY":
        return "Operation is not supported."
    if any(v != ABSENT and v not in graph.values for v in (*node.inputs, *node.outputs)):
        return "It refers to tensors that the model does not have."
    late = [v for v in node.inputs if v != ABSENT and _UNKNOWN_SHAPE in graph.values[v].shape]
    if late:
        return f"The shape of tensor {late[0]} is known only when the model runs."
    reason = checks.first_of(checks.version(node, op.max_version), checks.shapes(graph, node))
    if not reason:
        reason = op.check(graph, node)
    if not reason and not folds(node, graph.values):
        reason = checks.types(graph, node)
    return reason


_UNKNOWN_SHAPE = -1


def _distrust_outputs(values: dict[int, Value], node: Node) -> None:
    """Mark shapes that only the CPU's own kernels can tell; files write them as scalars."""
    for v in node.outputs:
        if v != ABSENT and v in values and values[v].shape == ():
            values[v] = replace(values[v], shape=(_UNKNOWN_SHAPE,))
