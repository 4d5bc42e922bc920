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
    """Floating-point operations (a multiply-add is two), bytes to move, and number of kernels.

    `inner_nodes` is the number of nodes of other graphs that the CPU executes per invoke.
    """

    flops: int
    nbytes: int
    launches: int
    inner_nodes: int = 0


def work_of(graph: Graph, node: Node) -> Work:
    """Estimate the work of a node of a checked graph; unknown sizes count as 0."""
    op = facts_of(node.op)
    touched = dict.fromkeys((*node.inputs, *node.outputs))
    flops, launches, inner_nodes = op.work(graph, node)
    return Work(flops, sum(tensor_bytes(graph, touched)), launches, inner_nodes)


def tensor_bytes(graph: Graph, values: Iterable[int]) -> list[int]:
    """Return the sizes of tensors in bytes, in the runtime's types; 0 for unknown shapes."""
    return [
        elements(graph, v) * graph.values[v].dtype.size
        for v in values
        if v != ABSENT and v in graph.values
    ]


def variables_of(graph: Graph) -> dict[int, int]:
    """Map each variable handle (value id) to the first handle of the same variable."""
    first = dict[tuple[Any, ...], int]()
    return {
        v: first.setdefault(tuple(sorted(node.params.items())), v)
        for node in graph.nodes
        if node.op == "VAR_HANDLE"
        for v in node.outputs
    }


def states_of(node: Node) -> tuple[int, ...]:
    """Return the inputs that a node updates (value ids), also for nodes that stay on the CPU."""
    try:
        found = facts_of(node.op).states(node)
    except LookupError:  # operands are missing: the runtime will report that
        return ()
    return tuple(v for v in found if v != ABSENT)
