"""QUANTIZED_PRODUCT: multiplies stored integers along an axis, and rescales after each factor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from litegpu.codegen import INT
from litegpu.graph import Node
from litegpu.ops.base import InternalOp, KernelRequest, LowerContext, register
from litegpu.ops.common.units import Unit

QUANTIZED_PRODUCT = "QUANTIZED_PRODUCT"
AXIS = 1
"""The axis of [N, H, W, C] along which factors are multiplied."""


@dataclass(frozen=True, slots=True)
class ProductAttributes:
    """The zero point of the factors, and the multiplier `number` / 2^`right` of products."""

    zero: int
    number: int
    right: int


@register
class QuantizedProduct(InternalOp):
    """Multiplies elements along H in order, and rescales each product; for exact REDUCE_PROD."""

    name = QUANTIZED_PRODUCT

    def lower(self, node: Node, ctx: LowerContext) -> Sequence[KernelRequest]:
        src, dst = ctx.storage(node.inputs[0]), ctx.storage(node.outputs[0])
        attributes: ProductAttributes = node.attributes
        request = KernelRequest(
            template="quantized_product",
            grid=(dst.channel_blocks, dst.rows, 1),
            output=node.outputs[0],
            reads={"src": node.inputs[0]},
            variables={
                "factors": src.shape[AXIS],
                "zero": attributes.zero,
                "number": attributes.number,
                "right": attributes.right,
            },
            work={Unit.FP32: src.rows * src.channels},
            accumulator=INT,
        )
        return (request,)
