"""The custom op Convolution2DTransposeBias of MediaPipe."""

from __future__ import annotations

from collections.abc import Sequence

from litegpu.graph import Graph, Node
from litegpu.ops.base import NewValue, Shape, register
from litegpu.ops.common import checks, facts, raw_options, weights, window
from litegpu.ops.conv_2d import conv_nodes
from litegpu.ops.transpose_conv import TransposeConv


@register
class Convolution2DTransposeBias(TransposeConv):
    """MediaPipe's transposed convolution, whose output size follows from the input size."""

    name = "Convolution2DTransposeBias"
    max_version = 2
    shape_operands = ()
    exact = None

    def flops(self, graph: Graph, node: Node) -> int:
        return facts.product_by_input(graph, node, 0, (1,))

    def check(self, graph: Graph, node: Node) -> str:
        return checks.weighted(graph, node, "The filter", _check_custom)

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        batch, outputs = (graph.values[v].shape[0] for v in node.inputs[:2])
        _, (height, width) = _custom_window(graph, node)
        return ((batch, height, width, outputs),)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        outputs, kh, kw, depth = graph.values[node.inputs[1]].shape
        view, _ = _custom_window(graph, node)
        normalized = weights.normalize(graph, node, new_value, (outputs, kh, kw, depth))
        return conv_nodes(node, node.inputs[0], view, normalized)


def _custom_window(graph: Graph, node: Node) -> tuple[window.Window, window.Pair]:
    """Return the window and the output's (H, W) of a checked Convolution2DTransposeBias."""
    params = raw_options.read(node.custom, raw_options.TRANSPOSE_CONV)
    image = graph.values[node.inputs[0]].shape[1:3]
    kernel = graph.values[node.inputs[1]].shape[1:3]
    strides = (params["stride_height"], params["stride_width"])
    pads, sizes = [], []
    for size, k, stride in zip(image, kernel, strides, strict=True):
        same = max(0, k - (size - 1) % stride - 1) if params["padding"] == "same" else 0
        pads.append(same // 2)
        sizes.append(stride * (size - 1) + k - same)
    view = window.Window((kernel[0], kernel[1]), strides, pads=(pads[0], pads[1]))
    return view, (sizes[0], sizes[1])


def _check_custom(graph: Graph, node: Node) -> str:
    taps = graph.values[node.inputs[1]].shape
    image = graph.values[node.inputs[0]].shape
    if len(taps) != 4 or len(image) != 4 or taps[3] != image[3]:
        return f"A filter of {list(taps)} does not fit an image of {list(image)}."
    params = raw_options.read(node.custom, raw_options.TRANSPOSE_CONV)
    activation = int.from_bytes(node.custom[12:16], "little")
    if activation:
        return (
            f"The options request the activation {activation}, which MediaPipe's CPU kernel "
            "ignores."
        )
    strides = (params["stride_height"], params["stride_width"])
    if min(strides) < 1:
        return f"Incorrect stride values: stride_height = {strides[0]}, stride_width = {strides[1]}"
    return weights.check_bias(graph, node, taps[0])
