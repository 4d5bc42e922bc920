"""DEPTHWISE_CONV_2D: computes `multiplier` output channels from each input channel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from litegpu.graph import Graph, Node
from litegpu.ops.base import NewValue, Op, Shape, SpecContext, as_float32, register
from litegpu.ops.common import checks, facts, weights, window
from litegpu.ops.common.depthwise_spec import DepthwiseSpec
from litegpu.ops.common.traits import Trait
from litegpu.ops.common.window import DepthwiseAttributes
from litegpu.ops.exact.depthwise import ExactDepthwise
from litegpu.ops.exact.hybrid import HybridDepthwise, OrHybrid


@register
class DepthwiseConv2D(Op):
    """Depthwise convolution with stride, dilation, multiplier, bias, activation; any weights."""

    name = "DEPTHWISE_CONV_2D"
    max_version = 7
    traits = Trait.SUMS_PRODUCTS | Trait.WEIGHTED | Trait.WINDOWED
    exact = OrHybrid(
        ExactDepthwise(lambda graph, node: _check_geometry(graph, node)),
        HybridDepthwise(lambda graph, node: _check_geometry(graph, node)),
    )

    def flops(self, graph: Graph, node: Node) -> int:
        return facts.product_by_output(graph, node)

    def check(self, graph: Graph, node: Node) -> str:
        return checks.weighted(graph, node, "The filter", _check_shapes)

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        image = graph.values[node.inputs[0]].shape
        _, kh, kw, outputs = graph.values[node.inputs[1]].shape
        return (window.result_shape(node.params, image, (kh, kw), outputs),)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        _, height, width, _ = graph.values[node.inputs[0]].shape
        _, kh, kw, _ = graph.values[node.inputs[1]].shape
        view = window.window_of(node.params, (kh, kw), (height, width))
        bias, epilogue = weights.normalize_bias(graph, node)
        attributes = DepthwiseAttributes(view, node.inputs[1], bias)
        computed = [v for v in node.inputs[1:2] if not graph.values[v].is_constant]
        inputs = (node.inputs[0], *computed)
        return (replace(node, inputs=inputs, attributes=attributes, epilogue=epilogue),)

    def specs(self, node: Node, ctx: SpecContext) -> Sequence[DepthwiseSpec]:
        attributes: DepthwiseAttributes = node.attributes
        src, dst = ctx.storage(node.inputs[0]), ctx.storage(node.outputs[0])
        bias, weight_value = weights.read_bias(ctx, attributes.bias), ctx.value(attributes.weights)
        if weight_value.is_constant:
            return (DepthwiseSpec(src, dst, attributes.window, as_float32(weight_value)[0], bias),)
        return (DepthwiseSpec(src, dst, attributes.window, None, bias, weight_value.id),)


def _check_shapes(graph: Graph, node: Node) -> str:
    return checks.first_of(
        _check_geometry(graph, node),
        lambda: weights.check_bias(graph, node, graph.values[node.inputs[1]].shape[3]),
    )


def _check_geometry(graph: Graph, node: Node) -> str:
    image = graph.values[node.inputs[0]].shape
    taps = graph.values[node.inputs[1]].shape
    for what, shape in (("input", image), ("filter", taps)):
        if len(shape) != 4:
            return f"{what}.dims.size != 4: it has the shape {list(shape)}."
    if taps[0] != 1 or taps[3] % image[3]:
        return f"A filter of {list(taps)} does not match {image[3]} input channels."
    return window.check_window(node.params, (taps[1], taps[2]), (image[1], image[2]))
