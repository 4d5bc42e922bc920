"""MediaPipe's Resampler: samples an image at computed positions."""

from __future__ import annotations

from collections.abc import Sequence

from litegpu.graph import Graph, Node
from litegpu.ops.base import KernelRequest, LowerContext, Op, Shape, register
from litegpu.ops.common import checks
from litegpu.ops.common.units import Unit


@register
class Resampler(Op):
    """Samples an image at positions (x, y) in pixels, bilinearly; pixels outside are zero."""

    name = "Resampler"
    max_version = 2

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            checks.input_count(node, 2, 2),
            checks.operands(graph, node, (1, 2)),
            checks.constants(graph, node, "The operand"),
            lambda: _check_warp(graph, node),
        )

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        image, warp = (graph.values[v].shape for v in node.inputs)
        return ((*warp[:3], image[3]),)

    def lower(self, node: Node, ctx: LowerContext) -> Sequence[KernelRequest]:
        dst = ctx.storage(node.outputs[0])
        request = KernelRequest(
            template="resampler",
            grid=(dst.channel_blocks, dst.rows, 1),
            output=node.outputs[0],
            reads={"src": node.inputs[0], "warp": node.inputs[1]},
            work={Unit.FP32: 8 * dst.rows * dst.channels},
        )
        return (request,)


def _check_warp(graph: Graph, node: Node) -> str:
    image, warp = (graph.values[v].shape for v in node.inputs)
    if len(image) != 4 or len(warp) != 4:
        return f"src or warp dims size != 4: {list(image)} and {list(warp)}."
    if image[0] != warp[0]:
        return f"src.b != warp.b: {list(image)} and {list(warp)}."
    if warp[3] < 2:
        return f"warp.c < 2: {list(warp)}."
    return ""
