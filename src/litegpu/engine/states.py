"""Turns states that nodes update into outputs of the partition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from litegpu.graph import Graph, Node
from litegpu.ops.base import facts_of


def expose_states(graph: Graph) -> tuple[Graph, Mapping[int, int]]:
    """Add an output to each node for every state that the node updates.

    States that are inputs of the graph become outputs, too. The result maps each of these outputs
    to the input value that it replaces in the next run.
    """
    values, nodes = dict(graph.values), list[Node]()
    fresh = iter(graph.fresh_ids())
    replaced: dict[int, int] = {}
    for node in graph.nodes:
        states = facts_of(node.op).states(node)
        changed = [next(fresh) for _ in states]
        for state, v in zip(states, changed, strict=True):
            values[v] = replace(values[state], id=v, is_variable=False)
            if state in graph.inputs:
                replaced[v] = state
        nodes.append(replace(node, outputs=(*node.outputs, *changed)) if states else node)
    outputs = (*graph.outputs, *replaced)
    return replace(graph, values=values, nodes=tuple(nodes), outputs=outputs), replaced
