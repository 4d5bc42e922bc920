"""Folds constant scales and shifts after a convolution into its weights and bias.

The pass saves elementwise ops, and the constants that the kernel would read for these ops.
"""

from __future__ import annotations

from dataclasses import replace

from litegpu.graph import Graph, Node
from litegpu.ops.base import COPY, has
from litegpu.ops.common import affine
from litegpu.ops.common.traits import Trait
from litegpu.passes.base import Editor, PassResult, Weighted, label, only_consumer


def scale_into_weights(graph: Graph) -> PassResult:
    """Fold the leading affine ops of nodes that are the only reader of a convolution."""
    edit = Editor(graph)
    weighted = Weighted(edit)
    consumers = graph.consumers()
    producers: dict[int, int] = {}  # value id -> position of its weighted producer
    for position, node in enumerate(graph.nodes):
        if has(node, Trait.WEIGHTED):
            producers[node.outputs[0]] = position
        source = producers.get(node.inputs[0]) if node.op == COPY else None
        producer = None if source is None else edit.nodes[source]
        if source is None or producer is None:
            continue
        channels = graph.values[node.outputs[0]].shape4[3]
        scaling, count = affine.affine_prefix(graph, node.epilogue, channels)
        if not count:
            continue
        alone = only_consumer(node.inputs[0], consumers, graph.outputs) is not None
        reason = "" if alone else "other nodes also read the result"
        reason = reason or _obstacle(graph, producer, node)
        folded = reason or weighted.fold(producer, scaling, affine.after)
        if isinstance(folded, str):
            edit.declined.append(f"{_names(node, count)} into {label(producer)}: {folded}")
            continue
        if count == len(node.epilogue):
            merged = (*folded.merged, *node.merged, node.index)
            folded = replace(folded, outputs=node.outputs, merged=merged)
            edit.nodes[position] = None
            producers[node.outputs[0]] = source
        else:
            edit.nodes[position] = replace(node, epilogue=node.epilogue[count:])
        edit.nodes[source] = folded
        edit.applied.append(f"{_names(node, count)} into {label(producer)}")
    return edit.result()


def _obstacle(graph: Graph, producer: Node, node: Node) -> str:
    if producer.epilogue:
        return "an epilogue op is in between"
    if graph.values[node.inputs[0]].shape != graph.values[node.outputs[0]].shape:
        return "the epilogue op broadcasts its result"
    return ""


def _names(node: Node, count: int) -> str:
    return (
        "+".join(epilogue_op.function for epilogue_op in node.epilogue[:count]) + f" {node.index}"
    )
