"""Registration of users' ops: checks of their names, and their code for cache keys."""

from __future__ import annotations

from litegpu.graph import Graph
from litegpu.ops import base
from litegpu.ops.base import Op, facts_of, registered


def add_custom(op: Op, replace: bool) -> str:
    """Register a user's operation; return why that is not possible, or an empty text."""
    there = registered(op.name)
    if there is not None and not there.code:
        return "it is litegpu's own. Use another name."
    if there is not None and there.code != op.code and not replace:
        return "it was registered before. Use another name, or register_op(..., replace=True)."
    base.add(op)
    return ""


def custom_code(graph: Graph) -> list[tuple[str, str]]:
    """Return (name, code) of each user's operation in a graph, sorted, for the cache."""
    found = {(node.op, facts_of(node.op).code) for node in graph.nodes}
    for node in graph.nodes:
        for inner in node.graphs:
            found.update(custom_code(inner))
    return sorted(each for each in found if each[1])
