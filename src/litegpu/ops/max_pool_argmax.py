"""MediaPipe's MaxPoolingWithArgmax2D, and MaxUnpooling2D that puts its results back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from litegpu.graph import Graph, Node
from litegpu.ops import checks, raw_options, window
from litegpu.ops.base import KernelRequest, LowerContext, NewValue, Op, Shape, register
from litegpu.ops.elementwise import activation_stages
from litegpu.ops.pool_2d import PoolAttributes


@register
class MaxPoolingWithArgmax2D(Op):
    """Maximum over a window, and where in its window it lies (y * width + x, as a float)."""

    name = "MaxPoolingWithArgmax2D"
    max_version = 2

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            checks.input_count(node, 1, 1),
            checks.operands(graph, node, (1,), outputs=2),
            lambda: checks.activation(_with_params(node)),
            lambda: _check_image(graph, node),
        )

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        params, image = _params(node), graph.values[node.inputs[0]].shape
        return (window.result_shape(params, image, _kernel(params), image[3]),) * 2

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        params = _params(node)
        _, height, width, _ = graph.values[node.inputs[0]].shape
        view = window.window_of(params, _kernel(params), (height, width))
        return (replace(node, attributes=PoolAttributes(view), stages=activation_stages(params)),)

    def lower(self, node: Node, ctx: LowerContext) -> Sequence[KernelRequest]:
        view: window.Window = node.attributes.window
        dst, index = (ctx.storage(v) for v in node.outputs)
        request = KernelRequest(
            template="max_pool_argmax",
            grid=(max(dst.slices, index.slices), dst.rows, 1),
            local=(8, 8, 1),
            output=node.outputs[0],
            reads={"src": node.inputs[0]},
            writes={"index": node.outputs[1]},
            variables={"kernel": view.kernel, "stride": view.stride, "pads": view.pads},
            flops=dst.rows * dst.channels * view.kernel[0] * view.kernel[1],
        )
        return (request,)


@register
class MaxUnpooling2D(Op):
    """Each element at the place of its window that its index tells, zeros elsewhere."""

    name = "MaxUnpooling2D"
    max_version = 2

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            checks.input_count(node, 2, 2),
            checks.operands(graph, node, (1, 2)),
            checks.constants(graph, node, "The operand"),
            lambda: checks.activation(_with_params(node)),
            lambda: _check_pair(graph, node),
            lambda: _check_image(graph, node, grow=True),
        )

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        n, height, width, channels = graph.values[node.inputs[0]].shape
        kernel_height, kernel_width = _kernel(_params(node))
        return ((n, height * kernel_height, width * kernel_width, channels),)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        params = _params(node)
        ((_, height, width, _),) = self.infer(graph, node)
        view = window.window_of(params, _kernel(params), (height, width))
        return (replace(node, attributes=PoolAttributes(view), stages=activation_stages(params)),)

    def lower(self, node: Node, ctx: LowerContext) -> Sequence[KernelRequest]:
        view: window.Window = node.attributes.window
        dst = ctx.storage(node.outputs[0])
        request = KernelRequest(
            template="max_unpool",
            grid=(dst.slices, dst.rows, 1),
            local=(8, 8, 1),
            output=node.outputs[0],
            reads={"src": node.inputs[0], "index": node.inputs[1]},
            variables={"kernel": view.kernel, "stride": view.stride, "pads": view.pads},
        )
        return (request,)


def _params(node: Node) -> dict[str, Any]:
    return dict(raw_options.read(node.custom, raw_options.POOL))


def _with_params(node: Node) -> Node:
    return replace(node, params=_params(node))


def _kernel(params: dict[str, Any]) -> tuple[int, int]:
    return params["filter_height"], params["filter_width"]


def _check_image(graph: Graph, node: Node, grow: bool = False) -> str:
    """Require an image; with `grow` every pixel becomes a window of the result."""
    image, params = graph.values[node.inputs[0]].shape, _params(node)
    if len(image) != 4:
        return f"The image must have 4 dimensions, not {list(image)}."
    kernel = _kernel(params)
    height, width = (image[1 + i] * (kernel[i] if grow else 1) for i in (0, 1))
    return window.check_window(params, kernel, (height, width))


def _check_pair(graph: Graph, node: Node) -> str:
    values, places = (list(graph.values[v].shape) for v in node.inputs)
    if values != places:
        return f"Values of {values} and places of {places} do not belong together."
    return ""
