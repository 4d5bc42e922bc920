"""FULLY_CONNECTED: a 1x1 convolution over the rows of its input."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from litegpu.graph import ABSENT, Graph, Node
from litegpu.ops import checks, window
from litegpu.ops.base import (
    KernelRequest,
    LowerContext,
    NewValue,
    Op,
    Shape,
    as_float32,
    register,
)
from litegpu.ops.conv_2d import ConvAttributes, bias_of, check_bias, dense_kernel
from litegpu.ops.elementwise import activation_stages

_POINT = window.Window((1, 1), (1, 1))


@register
class FullyConnected(Op):
    """Matrix product with constant weights [outputs, inputs]; any rank of input."""

    name = "FULLY_CONNECTED"
    max_version = 9

    def check(self, graph: Graph, node: Node) -> str:
        return checks.weighted(graph, node, "The weights", _check_shapes)

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        source = graph.values[node.inputs[0]]
        outputs, inputs = graph.values[node.inputs[1]].shape
        if node.params.get("keep_num_dims"):
            return ((*source.shape[:-1], outputs),)
        return ((source.elements // inputs, outputs),)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        source = graph.values[node.inputs[0]]
        inputs = graph.values[node.inputs[1]].shape[1]
        attributes = ConvAttributes(_POINT, node.inputs[1], bias_of(node))
        stages = activation_stages(node.params)
        dense = replace(node, inputs=node.inputs[:1], attributes=attributes, stages=stages)
        if source.shape and source.shape[-1] == inputs:
            return (dense,)
        flat = new_value((source.elements // inputs, inputs))
        reshape = Node(node.index, "RESHAPE", 1, (source.id,), (flat,))
        return (reshape, replace(dense, inputs=(flat,)))

    def lower(self, node: Node, ctx: LowerContext) -> Sequence[KernelRequest]:
        attributes: ConvAttributes = node.attributes
        weights = as_float32(ctx.value(attributes.weights))[:, None, None, :]
        bias = None if attributes.bias == ABSENT else as_float32(ctx.value(attributes.bias))
        return (dense_kernel(node, ctx, weights, bias, attributes.window),)


def _check_shapes(graph: Graph, node: Node) -> str:
    source = graph.values[node.inputs[0]]
    weights = graph.values[node.inputs[1]].shape
    if node.params.get("weights_format", 0) != 0:
        return f"Unsupported FullyConnected weights format: {node.params['weights_format']}"
    if len(weights) != 2:
        return f"The weights must have 2 dimensions, not {list(weights)}."
    if source.elements % weights[1]:
        return f"Input {list(source.shape)} does not divide into rows of {weights[1]}."
    if node.params.get("keep_num_dims") and source.shape[-1:] != weights[1:]:
        return (
            "Amount of input channels should match weights width: "
            f"{list(source.shape)} and {list(weights)} (keep_num_dims)."
        )
    return check_bias(graph, node, weights[0])
