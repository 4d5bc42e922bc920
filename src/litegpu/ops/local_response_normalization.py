"""LOCAL_RESPONSE_NORMALIZATION: divides elements by a norm of neighboring channels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from litegpu.codegen import literal
from litegpu.graph import Graph, Node
from litegpu.ops.base import KernelRequest, LowerContext, Op, Shape, Values, register
from litegpu.ops.common import checks
from litegpu.ops.common.units import Unit

_MAX_CHANNELS = 1 << 15
"""Maximum radius, since Mesa's software devices abort long loops."""


@register
class LocalResponseNormalization(Op):
    """Computes x / (bias + alpha * sum of squares over `radius` channels on either side) ^ beta."""

    name = "LOCAL_RESPONSE_NORMALIZATION"
    max_version = 1
    accepts: ClassVar = {
        "radius": Values(least=0),
        **dict.fromkeys(("alpha", "beta", "bias"), Values()),
    }

    def flops(self, graph: Graph, node: Node) -> int:
        width = 2 * int(node.params.get("radius", 0)) + 1
        return 2 * width * super().flops(graph, node)

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            checks.input_count(node, 1, 1),
            checks.operands(graph, node, (1,)),
            lambda: _check_channels(graph, node),
        )

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        return (graph.values[node.inputs[0]].shape,)

    def lower(self, node: Node, ctx: LowerContext) -> Sequence[KernelRequest]:
        dst = ctx.storage(node.outputs[0])
        params = node.params
        request = KernelRequest(
            template="local_response_normalization",
            grid=(dst.channel_blocks, dst.rows, 1),
            output=node.outputs[0],
            reads={"src": node.inputs[0]},
            variables={
                "radius": min(params["radius"], dst.channels),
                "bias": literal(params["bias"]),
                "alpha": literal(params["alpha"]),
                "power": literal(-params["beta"]),
            },
            work={Unit.FP32: dst.rows * dst.channels * 2 * (2 * params["radius"] + 1)},
        )
        return (request,)


def _check_channels(graph: Graph, node: Node) -> str:
    shape, radius = graph.values[node.inputs[0]].shape, node.params["radius"]
    if len(shape) == 4 and radius >= 0 and shape[3] <= _MAX_CHANNELS:
        return ""
    return f"A radius of {radius} in {list(shape)} is not supported."
