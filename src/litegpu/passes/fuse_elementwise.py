"""Fuses element-wise steps, residual additions among them, into the kernel before them."""

from __future__ import annotations

from dataclasses import replace

from litegpu.graph import SELF, Graph, Node
from litegpu.ops.base import COPY
from litegpu.passes.base import Editor, PassResult, label, only_consumer

_UNFUSABLE = ("RESHAPE", "CONCATENATION")
"""Ops that may cost nothing at all; a step on top would make them a kernel."""


def fuse_elementwise(graph: Graph) -> PassResult:
    """Walk in execution order, so that chains collapse into their first kernel."""
    edit = Editor(graph)
    consumers = graph.consumers()
    current: dict[int, int] = {}  # value id -> place of the node that makes it by now
    for place, node in enumerate(graph.nodes):
        current.update(dict.fromkeys(node.outputs, place))
        if node.op != COPY or not node.stages:
            continue
        chosen: tuple[int, Node, Node] | None = None
        for candidate in _orientations(graph, node):
            source = current.get(candidate.inputs[0])
            producer = None if source is None else edit.nodes[source]
            if source is None or producer is None:
                continue
            if producer.op in _UNFUSABLE or len(producer.outputs) > 1:
                continue
            if only_consumer(candidate.inputs[0], consumers, graph.outputs) is None:
                continue
            if graph.values[candidate.inputs[0]].shape != graph.values[node.outputs[0]].shape:
                continue
            if chosen is None or source > chosen[0]:
                chosen = (source, producer, candidate)
        if chosen is None:
            edit.declined.append(f"{label(node)} ({_names(node)}): no kernel before it is free")
            continue
        source, producer, step = chosen
        # The fused node stands where the step stood: its other operands are ready only there.
        edit.nodes[place] = replace(
            producer,
            outputs=step.outputs,
            stages=producer.stages + step.stages,
            merged=(*producer.merged, *step.merged, step.index),
        )
        edit.nodes[source] = None
        edit.applied.append(f"{_names(step)} {step.index} into {label(producer)}")
    return edit.result()


def _orientations(graph: Graph, node: Node) -> list[Node]:
    """Return the node, and the node with running value and first operand exchanged."""
    first = node.stages[0]
    if len(first.operands) != 1 or first.operands[0] == SELF or first.extend:
        return [node]
    operand = graph.values[first.operands[0]]
    if operand.is_constant or operand.shape != graph.values[node.outputs[0]].shape:
        return [node]
    swapped = replace(first, operands=node.inputs, position=1 - first.position)
    return [node, replace(node, inputs=first.operands, stages=(swapped, *node.stages[1:]))]


def _names(node: Node) -> str:
    return "+".join(stage.function for stage in node.stages)
