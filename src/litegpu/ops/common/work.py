"""Estimates the work of a node from its shapes, independent of the device and its kernels."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from litegpu.graph import ABSENT, Graph, Node
from litegpu.ops.base import facts_of
from litegpu.ops.common.facts import elements


@dataclass(frozen=True, slots=True)
class Work:
    """Floating-point operations (a multiply-add is two), bytes to move, kernels that it takes.

    `inner_nodes` are those that the CPU runs for it in other graphs, once for each time.
    """

    flops: int
    nbytes: int
    launches: int
    inner_nodes: int = 0


def work_of(graph: Graph, node: Node) -> Work:
    """Estimate a node of a checked graph; what no one knows before the model runs counts 0."""
    op = facts_of(node.op)
    touched = dict.fromkeys((*node.inputs, *node.outputs))
    flops, launches, inner_nodes = op.work(graph, node)
    return Work(flops, sum(tensor_bytes(graph, touched)), launches, inner_nodes)


def tensor_bytes(graph: Graph, values: Iterable[int]) -> list[int]:
    """Return the bytes of tensors as the runtime holds them, 0 for those of unknown shape."""
    return [
        elements(graph, v) * graph.values[v].dtype.size
        for v in values
        if v != ABSENT and v in graph.values
    ]


def variables_of(graph: Graph) -> dict[int, int]:
    """Return the handles of variables (value ids), with the first one of the same variable."""
    first = dict[tuple[Any, ...], int]()
    return {
        v: first.setdefault(tuple(sorted(node.params.items())), v)
        for node in graph.nodes
        if node.op == "VAR_HANDLE"
        for v in node.outputs
    }


def states_of(node: Node) -> tuple[int, ...]:
    """Return the inputs that a node changes, also of one that stays on the CPU."""
    try:
        found = facts_of(node.op).states(node)
    except LookupError:  # operands are missing: the runtime will say what is wrong
        return ()
    return tuple(v for v in found if v != ABSENT)
