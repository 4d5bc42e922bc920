"""SOFTMAX over the last axis, computed in float32 at both precisions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from litegpu.codegen import literal
from litegpu.graph import DType, Graph, Node
from litegpu.ops.base import KernelRequest, LowerContext, NewValue, Op, Shape, register
from litegpu.ops.common import checks
from litegpu.ops.common.functions import activation_epilogue, wraps
from litegpu.ops.common.types import FLOATS, Types
from litegpu.ops.common.units import Unit
from litegpu.ops.common.work_groups import lanes_of, shared_items
from litegpu.ops.exact.rows import ExactRows, ExactSoftmax


@dataclass(frozen=True, slots=True)
class SoftmaxAttributes:
    """The factor `beta` of the exponents."""

    beta: float


@register
class Softmax(Op):
    """Computes exp(beta * (x - max)) / sum over the channels."""

    name = "SOFTMAX"
    max_version = 4
    cpu_bytes_per_second: ClassVar[float] = 10e9
    takes: ClassVar[tuple[Types, ...]] = (Types(FLOATS.dtypes | {DType.FLOAT16}, common=True),)
    gives: ClassVar[Types | None] = None
    reduced: ClassVar[tuple[str, ...]] = ("sums", "maxima")
    """Number of values that the work items of a row exchange."""
    exact_rows: ClassVar[type[ExactRows] | None] = ExactSoftmax

    def __init__(self) -> None:
        self.exact = self.exact_rows(self.check) if self.exact_rows else None  # type: ignore[misc]

    def check(self, graph: Graph, node: Node) -> str:
        reason = checks.first_of(checks.input_count(node, 1, 1), checks.operands(graph, node, (1,)))
        if not reason and not graph.values[node.inputs[0]].shape:
            reason = "The input is a scalar; softmax needs at least 1 dimension."
        return reason or checks.activation(node) or _check_beta(node)

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        return (graph.values[node.inputs[0]].shape,)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        attributes = SoftmaxAttributes(float(node.params.get("beta", 1.0)))
        result = graph.values[node.outputs[0]].dtype
        rounded = wraps(result) if result is DType.FLOAT16 else ()
        epilogue = (*activation_epilogue(node.params), *rounded)
        return (replace(node, attributes=attributes, epilogue=epilogue),)

    def lower(self, node: Node, ctx: LowerContext) -> Sequence[KernelRequest]:
        dst = ctx.storage(node.outputs[0])
        channel_blocks = -(-dst.channels // 4)
        items = shared_items(dst.rows, channel_blocks, ctx)
        request = KernelRequest(
            template="softmax",
            grid=(items, dst.rows, 1),
            local=(items, 1, 1) if items > 1 else (1, 32, 1),
            output=node.outputs[0],
            reads={"src": node.inputs[0]},
            variables={
                "kind": self.name.lower(),
                "ITEMS": items,
                "LANES": lanes_of(items, ctx.target),
                "real_blocks": channel_blocks,
                "beta": literal(node.attributes.beta),
            },
            shared=tuple(("float", name, items) for name in self.reduced) if items > 1 else (),
            work={Unit.FP32: 5 * dst.rows * dst.channels},
        )
        return (request,)


def _check_beta(node: Node) -> str:
    beta = node.params.get("beta", 1.0)
    if abs(beta) <= _MAX_BETA:
        return ""
    return f"beta = {beta:g} is beyond {_MAX_BETA:g}."


_MAX_BETA = 1e38
"""Maximum magnitude of beta, which shader compilers may merge with the factor of exp2(x * log2(e)).
"""
