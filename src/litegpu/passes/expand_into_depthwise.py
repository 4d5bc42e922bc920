"""Fuses the convolution before a depthwise convolution into the depthwise kernel.

A MobileNet v2 block becomes a single kernel, which keeps the widest value on the chip. The pass
also fuses the first layers of MobileNets.
"""

from __future__ import annotations

from dataclasses import replace

from litegpu.graph import Graph, Node
from litegpu.kernels.selector import Fusions
from litegpu.ops.conv_2d import ConvAttributes, DepthwiseOperand, ExpandOperand
from litegpu.passes.base import Editor, PassResult, label, only_consumer


def expand_into_depthwise(graph: Graph, fusions: Fusions) -> PassResult:
    """Merge each convolution whose only reader is a fused depthwise and pointwise convolution.

    The implementation decides whether a kernel can compute all three convolutions and is faster.
    """
    edit = Editor(graph)
    consumers = graph.consumers()
    producers = {v: node for node in graph.nodes for v in node.outputs}
    for reader in graph.nodes:
        inner: DepthwiseOperand | None = getattr(reader.attributes, "depthwise", None)
        node = producers.get(reader.inputs[0]) if inner is not None else None
        if inner is None or node is None or not isinstance(node.attributes, ConvAttributes):
            continue
        at, position = edit.position(reader), edit.position(node)
        before = edit.nodes[position] or node
        alone = only_consumer(node.outputs[0], consumers, graph.outputs) is reader
        reason = (
            _obstacle(graph, before, reader, inner) if alone else "other nodes also read the result"
        )
        merged = _merged(graph, before, edit.nodes[at] or reader, inner)
        reason = reason or fusions.obstacle(graph, merged, node.outputs[0])
        if reason:
            edit.declined.append(f"{label(node)}: {reason}")
            continue
        edit.nodes[at] = merged
        edit.nodes[position] = None
        edit.applied.append(f"{label(node)} into {label(reader)}")
    return edit.result()


def _merged(graph: Graph, node: Node, reader: Node, inner: DepthwiseOperand) -> Node:
    output = node.outputs[0]
    shape = graph.values[output].shape4
    expand = ExpandOperand(node.attributes, node.epilogue, shape, output)
    depthwise = replace(inner, expand=expand)
    return replace(
        reader,
        inputs=(node.inputs[0], *reader.inputs[1:]),
        attributes=replace(reader.attributes, depthwise=depthwise),
        merged=(*node.merged, node.index, *reader.merged),
    )


def _obstacle(graph: Graph, node: Node, reader: Node, inner: DepthwiseOperand) -> str:
    attributes: ConvAttributes = node.attributes
    output = node.outputs[0]
    if node.op != "CONV_2D" or attributes.groups > 1:
        return "the node is not a convolution with one group"
    if attributes.depthwise is not None:
        return "the node already includes a depthwise convolution"
    if output in reader.operands[1:]:
        return f"{label(reader)} reads the result twice"
    if not graph.values[attributes.weights].is_constant:
        return "the weights are computed"
    if any(not graph.values[v].is_constant for v in node.operands[1:]):
        return "the epilogue reads computed values"
    return ""
