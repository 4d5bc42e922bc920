"""MediaPipe's MaxUnpooling2D, the inverse of MaxPoolingWithArgmax2D."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from litegpu.graph import Graph, Node
from litegpu.ops.base import KernelRequest, LowerContext, NewValue, Op, Shape, register
from litegpu.ops.common import checks, window
from litegpu.ops.common.functions import activation_epilogue
from litegpu.ops.common.window import PoolAttributes
from litegpu.ops.max_pooling_with_argmax_2d import check_image, kernel_of, params_of, with_params


@register
class MaxUnpooling2D(Op):
    """Places each element at the indexed position of a window; all other elements are zero."""

    name = "MaxUnpooling2D"
    max_version = 2

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            checks.input_count(node, 2, 2),
            checks.operands(graph, node, (1, 2)),
            checks.constants(graph, node, "The operand"),
            lambda: checks.activation(with_params(node)),
            lambda: _check_pair(graph, node),
            lambda: check_image(graph, node, grow=True),
        )

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        n, height, width, channels = graph.values[node.inputs[0]].shape
        kernel_height, kernel_width = kernel_of(params_of(node))
        return ((n, height * kernel_height, width * kernel_width, channels),)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        params = params_of(node)
        ((_, height, width, _),) = self.infer(graph, node)
        view = window.window_of(params, kernel_of(params), (height, width))
        return (
            replace(node, attributes=PoolAttributes(view), epilogue=activation_epilogue(params)),
        )

    def lower(self, node: Node, ctx: LowerContext) -> Sequence[KernelRequest]:
        view: window.Window = node.attributes.window
        dst = ctx.storage(node.outputs[0])
        request = KernelRequest(
            template="max_unpool",
            grid=(dst.channel_blocks, dst.rows, 1),
            output=node.outputs[0],
            reads={"src": node.inputs[0], "index": node.inputs[1]},
            variables={"kernel": view.kernel, "stride": view.stride, "pads": view.pads},
        )
        return (request,)


def _check_pair(graph: Graph, node: Node) -> str:
    values, indices = (list(graph.values[v].shape) for v in node.inputs)
    if values != indices:
        return f"The values {values} and the indices {indices} have different shapes."
    return ""
