"""Folds scales and shifts by constants behind a convolution into its weights and its bias.

What goes are element-wise steps, and the constants that the kernel would read for them.
"""

from __future__ import annotations

from dataclasses import replace

from litegpu.graph import Graph, Node
from litegpu.ops import affine
from litegpu.ops.base import COPY, has
from litegpu.ops.traits import Trait
from litegpu.passes.base import Editor, PassResult, Weighted, label, only_consumer


def scale_into_weights(graph: Graph) -> PassResult:
    """Fold the steps of nodes that alone read a convolution, up to the first of another kind."""
    edit = Editor(graph)
    weighted = Weighted(edit)
    consumers = graph.consumers()
    makers: dict[int, int] = {}  # value id -> place of the weighted node that makes it by now
    for place, node in enumerate(graph.nodes):
        if has(node, Trait.WEIGHTED):
            makers[node.outputs[0]] = place
        source = makers.get(node.inputs[0]) if node.op == COPY else None
        maker = None if source is None else edit.nodes[source]
        if source is None or maker is None:
            continue
        channels = graph.values[node.outputs[0]].shape4[3]
        step, count = affine.affine_steps(graph, node.stages, channels)
        if not count:
            continue
        alone = only_consumer(node.inputs[0], consumers, graph.outputs) is not None
        reason = "" if alone else "others read its result too"
        reason = reason or _obstacle(graph, maker, node)
        folded = reason or weighted.fold(maker, step, affine.after)
        if isinstance(folded, str):
            edit.declined.append(f"{_names(node, count)} into {label(maker)}: {folded}")
            continue
        if count == len(node.stages):
            merged = (*folded.merged, *node.merged, node.index)
            folded = replace(folded, outputs=node.outputs, merged=merged)
            edit.nodes[place] = None
            makers[node.outputs[0]] = source
        else:
            edit.nodes[place] = replace(node, stages=node.stages[count:])
        edit.nodes[source] = folded
        edit.applied.append(f"{_names(node, count)} into {label(maker)}")
    return edit.result()


def _obstacle(graph: Graph, maker: Node, node: Node) -> str:
    if maker.stages:
        return "a step lies between"
    if graph.values[node.inputs[0]].shape != graph.values[node.outputs[0]].shape:
        return "the step broadcasts its result"
    return ""


def _names(node: Node, count: int) -> str:
    return "+".join(stage.function for stage in node.stages[:count]) + f" {node.index}"
