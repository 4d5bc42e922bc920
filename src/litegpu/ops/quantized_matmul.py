"""QUANTIZED_MATMUL: what BATCH_MATMUL becomes for bytes, with sums in int32."""

from __future__ import annotations

from collections.abc import Sequence

from litegpu.graph import Node
from litegpu.ops.base import InternalOp, SpecContext, register
from litegpu.ops.matmul_spec import MatmulAttributes, MatmulSpec
from litegpu.ops.traits import Trait

QUANTIZED_MATMUL = "QUANTIZED_MATMUL"


@register
class QuantizedMatmul(InternalOp):
    """Products of matrices of quantized values; only exact ones make it."""

    name = QUANTIZED_MATMUL
    traits = Trait.SUMS_PRODUCTS

    def specs(self, node: Node, ctx: SpecContext) -> Sequence[MatmulSpec]:
        attributes: MatmulAttributes = node.attributes
        left, right = (ctx.storage(v) for v in node.inputs)
        return (
            MatmulSpec(
                left,
                right,
                ctx.storage(node.outputs[0]),
                attributes.transposed,
                attributes.batches,
                attributes.batch,
                attributes.zeros,
            ),
        )
