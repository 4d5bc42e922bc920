"""QUANTIZED_MATMUL: matrix products of 8-bit tensors with int32 sums."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from litegpu.codegen import INT
from litegpu.graph import Node
from litegpu.ops.base import InternalOp, SpecContext, register
from litegpu.ops.common.matmul_spec import MatmulAttributes, MatmulSpec
from litegpu.ops.common.traits import Trait

QUANTIZED_MATMUL = "QUANTIZED_MATMUL"


@dataclass(frozen=True, slots=True)
class QuantizedMatmulAttributes(MatmulAttributes):
    """The attributes of a matrix product, and the zero points of both operands."""

    zeros: tuple[int, int]


@dataclass(frozen=True, slots=True)
class QuantizedMatmulSpec(MatmulSpec):
    """Products of int8 matrices minus their zero points; sums are int32 and wrap around."""

    zeros: tuple[int, int]

    def words(self, blocks: int) -> dict[str, Any]:
        """Return the template variables, with the zero points and the sums' initial value."""
        start = np.array(self.depth * self.zeros[0] * self.zeros[1]).astype(np.int32)
        words = MatmulSpec.words(self, blocks)
        return {**words, "zeros": self.zeros, "start": INT.literal(int(start))}


@register
class QuantizedMatmul(InternalOp):
    """Multiplies matrices of quantized values; only exact ops create this op."""

    name = QUANTIZED_MATMUL
    traits = Trait.SUMS_PRODUCTS

    def specs(self, node: Node, ctx: SpecContext) -> Sequence[QuantizedMatmulSpec]:
        attributes: QuantizedMatmulAttributes = node.attributes
        left, right = (ctx.storage(v) for v in node.inputs)
        return (
            QuantizedMatmulSpec(
                left,
                right,
                ctx.storage(node.outputs[0]),
                attributes.transposed,
                attributes.batches,
                attributes.batch,
                attributes.zeros,
            ),
        )
