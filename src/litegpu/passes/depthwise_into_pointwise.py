"""Fuses a depthwise convolution, or a mean, into the pointwise convolution that reads it.

The fusion keeps the intermediate value on the chip, and saves a launch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from litegpu.graph import ABSENT, DType, Graph, Node
from litegpu.kernels.selector import Fusions
from litegpu.ops.base import has
from litegpu.ops.common.traits import Trait
from litegpu.ops.common.window import DepthwiseAttributes, Window
from litegpu.ops.conv_2d import ConvAttributes, DepthwiseOperand
from litegpu.passes.base import Editor, PassResult, label, only_consumer


def depthwise_into_pointwise(graph: Graph, fusions: Fusions) -> PassResult:
    """Merge each depthwise convolution or mean whose only reader is a pointwise convolution.

    The implementations decide whether a kernel can compute both operations and is faster.
    """
    edit = Editor(graph)
    consumers = graph.consumers()
    for position, node in enumerate(graph.nodes):
        attributes = _depthwise(graph, node)
        if attributes is None:
            continue
        output, views = _seen_through_views(graph, node.outputs[0], consumers)
        reader = only_consumer(output, consumers, graph.outputs)
        reason = _obstacle(graph, node, output, reader)
        if reader is None or reason:
            edit.declined.append(f"{label(node)}: {reason}")
            continue
        at = edit.position(reader)
        merged = _merged(graph, node, attributes, edit.nodes[at] or reader)
        reason = fusions.obstacle(graph, merged, node.outputs[0])
        if reason:
            edit.declined.append(f"{label(node)}: {reason}")
            continue
        edit.nodes[at] = merged
        for gone in (position, *map(edit.position, views)):
            edit.nodes[gone] = None
        edit.applied.append(f"{label(node)} into {label(reader)}")
    return edit.result()


def _merged(graph: Graph, node: Node, attributes: DepthwiseAttributes, reader: Node) -> Node:
    output = node.outputs[0]
    operand = DepthwiseOperand(attributes, node.epilogue, graph.values[output].shape4, output)
    return replace(
        reader,
        inputs=(node.inputs[0], *reader.inputs[1:]),
        attributes=replace(reader.attributes, depthwise=operand),
        merged=(*node.merged, node.index, *reader.merged),
    )


def _seen_through_views(
    graph: Graph, value: int, consumers: Mapping[int, list[Node]]
) -> tuple[int, list[Node]]:
    """Return the value behind RESHAPEs that preserve rows of channels, and these RESHAPEs."""
    views: list[Node] = []
    while True:
        view = only_consumer(value, consumers, graph.outputs)
        if view is None or view.op != "RESHAPE" or view.epilogue:
            return value, views
        if graph.values[view.outputs[0]].shape4[3] != graph.values[value].shape4[3]:
            return value, views
        value = view.outputs[0]
        views.append(view)


def _depthwise(graph: Graph, node: Node) -> DepthwiseAttributes | None:
    """Return a node as a depthwise convolution; a mean becomes one without weights."""
    if node.op == "DEPTHWISE_CONV_2D":
        attributes: DepthwiseAttributes = node.attributes
        return attributes
    source = graph.values[node.inputs[0]].shape4 if node.inputs else None
    if node.op == "AVERAGE_POOL_2D" and source is not None:
        view = node.attributes.window
        inside = not view.leaves(source[1:3], graph.values[node.outputs[0]].shape4[1:3])
        return DepthwiseAttributes(view, ABSENT, ABSENT) if inside else None
    if node.op == "MEAN" and source is not None and node.attributes.axes == (1, 2):
        return DepthwiseAttributes(Window(source[1:3], (1, 1)), ABSENT, ABSENT)
    return None


def _obstacle(graph: Graph, node: Node, value: int, reader: Node | None) -> str:
    if reader is None or reader.inputs[0] != value:
        return "not read by one convolution alone"
    attributes = reader.attributes
    if not isinstance(attributes, ConvAttributes) or not has(reader, Trait.CONTRACTION):
        return f"{label(reader)} is no convolution"
    if not attributes.window.pointwise or attributes.groups > 1 or attributes.depthwise:
        return f"{label(reader)} is not pointwise"
    image, result = (graph.values[v].shape4[:3] for v in (value, reader.outputs[0]))
    if reader.op == "CONV_2D" and image != result:
        return f"{label(reader)} pads the value"
    if graph.values[node.inputs[0]].dtype is not DType.FLOAT32:
        return "the depthwise convolution sums integers"
    if value in reader.operands[1:]:
        return f"{label(reader)} reads the result twice"
    if not graph.values[attributes.weights].is_constant:
        return f"{label(reader)} has computed weights"
    channels, output = (graph.values[v].shape4[3] for v in (node.inputs[0], node.outputs[0]))
    if channels != output:
        return "the depthwise convolution multiplies the number of channels"
    if any(not graph.values[v].is_constant for v in node.operands[1:]):
        return "the weights are computed, or the epilogue reads computed values"
    return ""
