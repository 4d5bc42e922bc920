"""Feeds a depthwise convolution straight into the pointwise one that follows (tensor cores only).

The depthwise result then never leaves the chip, and a launch is saved.
"""

from __future__ import annotations

from dataclasses import replace

from litegpu.graph import Graph, Node
from litegpu.ops.conv_2d import ConvAttributes, DepthwiseStep
from litegpu.passes.base import Editor, PassResult, label, only_consumer

_TOO_MANY = 1 << 20
"""Elements of a depthwise result from which launches and latency matter less than work.

Merged, each block of output channels computes the result anew.
"""


def depthwise_into_pointwise(graph: Graph) -> PassResult:
    """Merge each depthwise convolution that only one pointwise convolution reads."""
    edit = Editor(graph)
    consumers = graph.consumers()
    for place, node in enumerate(graph.nodes):
        if node.op != "DEPTHWISE_CONV_2D":
            continue
        reader = only_consumer(node.outputs[0], consumers, graph.outputs)
        reason = _obstacle(graph, node, reader)
        if reader is None or reason:
            edit.declined.append(f"{label(node)}: {reason}")
            continue
        at = edit.place(reader)
        current = edit.nodes[at] or reader
        step = DepthwiseStep(node.attributes, node.stages, graph.values[node.outputs[0]].shape4)
        edit.nodes[at] = replace(
            current,
            inputs=node.inputs,
            attributes=replace(current.attributes, depthwise=step),
            merged=(*node.merged, node.index, *current.merged),
        )
        edit.nodes[place] = None
        edit.applied.append(f"{label(node)} into {label(reader)}")
    return edit.result()


def _obstacle(graph: Graph, node: Node, reader: Node | None) -> str:
    if reader is None or reader.inputs[0] != node.outputs[0]:
        return "not read by one convolution alone"
    attributes = reader.attributes
    if not isinstance(attributes, ConvAttributes) or reader.op != "CONV_2D":
        return f"{label(reader)} is no convolution"
    if not attributes.window.pointwise or attributes.groups > 1 or attributes.depthwise:
        return f"{label(reader)} is not pointwise"
    if node.outputs[0] in reader.operands[1:]:
        return f"{label(reader)} reads it twice"
    if not graph.values[attributes.weights].is_constant:
        return f"{label(reader)} has computed weights"
    channels = graph.values[node.inputs[0]].shape[3]
    outputs = graph.values[attributes.weights].shape[0]
    if channels != graph.values[node.outputs[0]].shape[3]:
        return "it multiplies channels"
    if channels < 16 or outputs < 8:
        return "too few channels for tensor cores"
    if graph.values[node.outputs[0]].elements >= _TOO_MANY:
        return "its result is so large that each is better made by itself"
    if any(not graph.values[v].is_constant for v in node.operands[1:]):
        return "it reads computed weights, or its steps do computed values"
    return ""
