"""SOFTMAX over the last axis, computed in float32 at any precision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from litegpu.graph import Graph, Node
from litegpu.ops import checks
from litegpu.ops.base import (
    KernelRequest,
    LowerContext,
    NewValue,
    Op,
    Shape,
    register,
    shared_items,
)
from litegpu.ops.elementwise import literal


@dataclass(frozen=True, slots=True)
class SoftmaxAttributes:
    """The factor in the exponent."""

    beta: float


@register
class Softmax(Op):
    """exp(beta * (x - max)) / sum, over the channels."""

    name = "SOFTMAX"
    max_version = 2

    def check(self, graph: Graph, node: Node) -> str:
        reason = checks.first_of(checks.input_count(node, 1, 1), checks.operands(graph, node, (1,)))
        if not reason and not graph.values[node.inputs[0]].shape:
            reason = "The input is a scalar; softmax needs at least 1 dimension."
        return reason

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        return (graph.values[node.inputs[0]].shape,)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        return (replace(node, attributes=SoftmaxAttributes(float(node.params["beta"]))),)

    def lower(self, node: Node, ctx: LowerContext) -> Sequence[KernelRequest]:
        dst = ctx.storage(node.outputs[0])
        slices = -(-dst.channels // 4)
        items = shared_items(dst.rows, slices, ctx)
        request = KernelRequest(
            template="softmax",
            grid=(items, dst.rows, 1),
            local=(items, 1, 1) if items > 1 else (1, 32, 1),
            output=node.outputs[0],
            reads={"src": node.inputs[0]},
            variables={
                "ITEMS": items,
                "real_slices": slices,
                "beta": literal(node.attributes.beta),
            },
            shared=(("float", "scratch", items),) if items > 1 else (),
            flops=5 * dst.rows * dst.channels,
        )
        return (request,)
