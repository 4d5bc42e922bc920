"""Nodes that change their inputs: the new contents become results of the partition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from litegpu.graph import Graph, Node
from litegpu.ops.base import facts_of


def expose_states(graph: Graph) -> tuple[Graph, Mapping[int, int]]:
    """Give each node an output more for every state that it changes.

    States that come from outside become outputs of the graph; the mapping tells for each of these
    which value it replaces, so that the next run starts from it.
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
