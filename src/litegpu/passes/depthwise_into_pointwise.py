"""Computes the operand of a pointwise convolution inside it (tensor cores only).

A depthwise convolution, or a mean over pixels, that feeds it then never leaves the chip, and a
launch is saved.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from litegpu.graph import ABSENT, Graph, Node
from litegpu.ops.conv_2d import ConvAttributes, DepthwiseStep
from litegpu.ops.conv_tile import is_large
from litegpu.ops.window import DepthwiseAttributes, Shape4, Window
from litegpu.passes.base import Editor, PassResult, label, only_consumer

_TOO_MANY = 1 << 20
"""Elements of a depthwise result from which launches and latency matter less than work.

Merged, each block of output channels computes the result anew. Where the pointwise convolution is
large, there are many, and large tiles, which only multiply, are several times as fast.
"""
_MOST_TAPS, _MOST_MEANS = 64, 16
"""Pixels of a mean, which are written out in the kernel, and means, which each block computes."""

_FEWEST = 8
"""Channels that fill half an instruction: what idles then costs less than another launch."""


def depthwise_into_pointwise(graph: Graph) -> PassResult:
    """Merge each depthwise convolution or mean that only one pointwise convolution reads."""
    return merge_depthwise(graph, _is_small)


def _is_small(made: Shape4, _held: DepthwiseAttributes, outputs: int) -> bool:
    elements: int = math.prod(made)
    return elements < _TOO_MANY and not is_large(math.prod(made[:3]), made[3] * outputs)


def merge_depthwise(
    graph: Graph, suits: Callable[[Shape4, DepthwiseAttributes, int], bool]
) -> PassResult:
    """Merge those depthwise convolutions that suit.

    What decides is the result's shape, the attributes, and the outputs of the reader.
    """
    edit = Editor(graph)
    consumers = graph.consumers()
    for place, node in enumerate(graph.nodes):
        held = _depthwise(graph, node)
        if held is None:
            continue
        made, views = _seen_through_views(graph, node.outputs[0], consumers)
        reader = only_consumer(made, consumers, graph.outputs)
        reason = _obstacle(graph, node, held, made, reader)
        if reader is not None and not reason:
            outputs = graph.values[reader.outputs[0]].shape4[3]
            if not suits(graph.values[node.outputs[0]].shape4, held, outputs):
                reason = "its result is so large that each is better made by itself"
        if reader is None or reason:
            edit.declined.append(f"{label(node)}: {reason}")
            continue
        at = edit.place(reader)
        current = edit.nodes[at] or reader
        step = DepthwiseStep(held, node.stages, graph.values[node.outputs[0]].shape4)
        edit.nodes[at] = replace(
            current,
            inputs=(node.inputs[0], *current.inputs[1:]),
            attributes=replace(current.attributes, depthwise=step),
            merged=(*node.merged, node.index, *current.merged),
        )
        for gone in (place, *map(edit.place, views)):
            edit.nodes[gone] = None
        edit.applied.append(f"{label(node)} into {label(reader)}")
    return edit.result()


def _seen_through_views(
    graph: Graph, value: int, consumers: Mapping[int, list[Node]]
) -> tuple[int, list[Node]]:
    """Return the value that has the same rows of channels as another, and the RESHAPEs between."""
    views: list[Node] = []
    while True:
        view = only_consumer(value, consumers, graph.outputs)
        if view is None or view.op != "RESHAPE" or view.stages:
            return value, views
        if graph.values[view.outputs[0]].shape4[3] != graph.values[value].shape4[3]:
            return value, views
        value = view.outputs[0]
        views.append(view)


def _depthwise(graph: Graph, node: Node) -> DepthwiseAttributes | None:
    """Return a node as a depthwise convolution; that of a mean has no weights."""
    if node.op == "DEPTHWISE_CONV_2D":
        held: DepthwiseAttributes = node.attributes
        return held
    source = graph.values[node.inputs[0]].shape4 if node.inputs else None
    if node.op == "AVERAGE_POOL_2D" and source is not None:
        view = node.attributes.window
        inside = not view.leaves(source[1:3], graph.values[node.outputs[0]].shape4[1:3])
        return DepthwiseAttributes(view, ABSENT, ABSENT) if inside else None
    if node.op == "MEAN" and source is not None and node.attributes.axes == (1, 2):
        return DepthwiseAttributes(Window(source[1:3], (1, 1)), ABSENT, ABSENT)
    return None


def _obstacle(
    graph: Graph, node: Node, held: DepthwiseAttributes, value: int, reader: Node | None
) -> str:
    if reader is None or reader.inputs[0] != value:
        return "not read by one convolution alone"
    attributes = reader.attributes
    if not isinstance(attributes, ConvAttributes) or reader.op not in _READERS:
        return f"{label(reader)} is no convolution"
    if not attributes.window.pointwise or attributes.groups > 1 or attributes.depthwise:
        return f"{label(reader)} is not pointwise"
    image, result = (graph.values[v].shape4[:3] for v in (value, reader.outputs[0]))
    if reader.op == "CONV_2D" and image != result:
        return f"{label(reader)} pads it"
    if value in reader.operands[1:]:
        return f"{label(reader)} reads it twice"
    if not graph.values[attributes.weights].is_constant:
        return f"{label(reader)} has computed weights"
    channels = graph.values[node.inputs[0]].shape4[3]
    outputs = graph.values[attributes.weights].shape[0]
    made = graph.values[node.outputs[0]].shape4
    if channels != made[3]:
        return "it multiplies channels"
    if min(channels, outputs) < _FEWEST:
        return "too few channels for tensor cores"
    is_mean = held.weights == ABSENT
    if is_mean and (
        math.prod(held.window.kernel) > _MOST_TAPS or math.prod(made[:3]) > _MOST_MEANS
    ):
        return "each block would compute too many means, or means of too many pixels"
    if any(not graph.values[v].is_constant for v in node.operands[1:]):
        return "it reads computed weights, or its steps do computed values"
    return ""


_READERS = ("CONV_2D", "FULLY_CONNECTED")
