"""MediaPipe's MaxPoolingWithArgmax2D: returns each window's maximum and its index in the window."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from litegpu.graph import Graph, Node
from litegpu.ops.base import KernelRequest, LowerContext, NewValue, Op, Shape, register
from litegpu.ops.common import checks, raw_options, window
from litegpu.ops.common.functions import activation_epilogue
from litegpu.ops.common.units import Unit
from litegpu.ops.common.window import PoolAttributes


@register
class MaxPoolingWithArgmax2D(Op):
    """Returns each window's maximum, and its index in the window (y * width + x, as a float)."""

    name = "MaxPoolingWithArgmax2D"
    max_version = 2

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            checks.input_count(node, 1, 1),
            checks.operands(graph, node, (1,), outputs=2),
            lambda: checks.activation(with_params(node)),
            lambda: check_image(graph, node),
        )

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        params, image = params_of(node), graph.values[node.inputs[0]].shape
        return (window.result_shape(params, image, kernel_of(params), image[3]),) * 2

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        params = params_of(node)
        _, height, width, _ = graph.values[node.inputs[0]].shape
        view = window.window_of(params, kernel_of(params), (height, width))
        return (
            replace(node, attributes=PoolAttributes(view), epilogue=activation_epilogue(params)),
        )

    def lower(self, node: Node, ctx: LowerContext) -> Sequence[KernelRequest]:
        view: window.Window = node.attributes.window
        dst, index = (ctx.storage(v) for v in node.outputs)
        request = KernelRequest(
            template="max_pool_argmax",
            grid=(max(dst.channel_blocks, index.channel_blocks), dst.rows, 1),
            output=node.outputs[0],
            reads={"src": node.inputs[0]},
            writes={"index": node.outputs[1]},
            variables={"kernel": view.kernel, "stride": view.stride, "pads": view.pads},
            work={Unit.FP32: dst.rows * dst.channels * view.kernel[0] * view.kernel[1]},
        )
        return (request,)


def params_of(node: Node) -> dict[str, Any]:
    """Return the pool's parameters from the custom options."""
    return dict(raw_options.read(node.custom, raw_options.POOL))


def with_params(node: Node) -> Node:
    """Return the node with the parameters of the custom options, like a builtin pool."""
    return replace(node, params=params_of(node))


def kernel_of(params: dict[str, Any]) -> tuple[int, int]:
    """Return the (height, width) of the window."""
    return params["filter_height"], params["filter_width"]


def check_image(graph: Graph, node: Node, grow: bool = False) -> str:
    """Require a 4-D image; with `grow`, each pixel becomes a window of the result."""
    image, params = graph.values[node.inputs[0]].shape, params_of(node)
    if len(image) != 4:
        return f"The image must have 4 dimensions, not {list(image)}."
    kernel = kernel_of(params)
    height, width = (image[1 + i] * (kernel[i] if grow else 1) for i in (0, 1))
    return window.check_window(params, kernel, (height, width))
