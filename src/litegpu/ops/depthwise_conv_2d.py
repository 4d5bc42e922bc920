"""DEPTHWISE_CONV_2D: each input channel makes `multiplier` output channels of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from litegpu.graph import Graph, Node
from litegpu.ops import checks, weights, window
from litegpu.ops.base import (
    KernelRequest,
    LowerContext,
    NewValue,
    Op,
    Shape,
    as_float32,
    by_load,
    register,
)
from litegpu.ops.window import DepthwiseAttributes


@register
class DepthwiseConv2D(Op):
    """Depthwise convolution with stride, dilation, multiplier, bias, activation; any weights."""

    name = "DEPTHWISE_CONV_2D"
    max_version = 6

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
        bias, stages = weights.normalize_bias(graph, node)
        attributes = DepthwiseAttributes(view, node.inputs[1], bias)
        computed = [v for v in node.inputs[1:2] if not graph.values[v].is_constant]
        inputs = (node.inputs[0], *computed)
        return (replace(node, inputs=inputs, attributes=attributes, stages=stages),)

    def lower(self, node: Node, ctx: LowerContext) -> Sequence[KernelRequest]:
        attributes: DepthwiseAttributes = node.attributes
        view = attributes.window
        dst, src = ctx.storage(node.outputs[0]), ctx.storage(node.inputs[0])
        n, height, width, outputs = dst.shape
        constants = {}
        bias = weights.read_bias(ctx, attributes.bias)
        if bias is not None:
            constants["bias"] = weights.pad_channels(bias, dst.slices * 4)
        reads = {"src": node.inputs[0]}
        taps = ctx.value(attributes.weights)
        if taps.is_constant:
            padded = np.zeros((*view.kernel, dst.slices * 4), np.float32)
            padded[:, :, :outputs] = as_float32(taps)[0]
            constants["weights"] = weights.in_precision(padded, ctx)
        else:
            reads["taps"] = taps.id
        work = n * height * width * dst.slices
        fitting = [pixels for pixels in (4, 2, 1) if pixels <= max(width, 1)]
        made = (n, height, width, dst.slices)
        problem = ("depthwise_conv_2d", src.shape, src.dtype.value, made, view)
        pixels = ctx.choose(problem, by_load(fitting, lambda pixels: work // pixels, ctx))
        request = KernelRequest(
            template="depthwise_conv_2d",
            grid=(dst.slices, n * height * -(-width // pixels), 1),
            local=(8, 8, 1),
            output=node.outputs[0],
            reads=reads,
            constants=constants,
            variables={
                "PIXELS": pixels,
                "columns": _columns(view, pixels),
                "kernel": view.kernel,
                "stride": view.stride,
                "dilation": view.dilation,
                "pads": view.pads,
                "padded": view.leaves(src.shape[1:3], dst.shape[1:3]),
                "multiplier": outputs // src.channels,
                "has_bias": bias is not None,
                "computed": not taps.is_constant,
            },
            flops=2 * dst.rows * taps.elements,
            needed={"src": view.taken(dst.rows, src.lanes)},
        )
        return (request,)


def _columns(view: window.Window, pixels: int) -> list[tuple[int, list[tuple[int, int]]]]:
    """Return the input columns that neighbouring pixels read: (offset, [(pixel, tap)])."""
    readers: dict[int, list[tuple[int, int]]] = {}
    for kx in range(view.kernel[1]):
        for pixel in range(pixels):
            offset = pixel * view.stride[1] + kx * view.dilation[1]
            readers.setdefault(offset, []).append((pixel, kx))
    return sorted(readers.items())


def _check_shapes(graph: Graph, node: Node) -> str:
    image = graph.values[node.inputs[0]].shape
    taps = graph.values[node.inputs[1]].shape
    for what, shape in (("input", image), ("filter", taps)):
        if len(shape) != 4:
            return f"{what}.dims.size != 4: it has the shape {list(shape)}."
    if taps[0] != 1 or taps[3] % image[3]:
        return f"A filter of {list(taps)} does not match {image[3]} input channels."
    return checks.first_of(
        weights.check_bias(graph, node, taps[3]),
        window.check_window(node.params, (taps[1], taps[2]), (image[1], image[2])),
    )
