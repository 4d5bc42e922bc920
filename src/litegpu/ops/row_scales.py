"""ROW_SCALES: computes scales and zero points for int8 from the ranges of float rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from litegpu.graph import Node
from litegpu.ops.base import InternalOp, KernelRequest, LowerContext, register
from litegpu.ops.common.units import Unit

ROW_SCALES = "ROW_SCALES"


@dataclass(frozen=True, slots=True)
class RowScalesAttributes:
    """Whether rows are quantized symmetrically; otherwise their range is mapped to -128 to 127."""

    symmetric: bool


@register
class RowScales(InternalOp):
    """Computes scales from each row's minimum and maximum, for dynamic quantization.

    The results are scales, inverse scales and, for asymmetric rows, zero points, [..., 1] each.
    """

    name = ROW_SCALES

    def lower(self, node: Node, ctx: LowerContext) -> Sequence[KernelRequest]:
        attributes: RowScalesAttributes = node.attributes
        dst = ctx.storage(node.outputs[0])
        request = KernelRequest(
            template="row_scales",
            grid=(1, dst.rows, 1),
            local=(1, 64, 1),
            output=node.outputs[0],
            reads=dict(zip(("least", "most"), node.inputs, strict=True)),
            writes=dict(zip(("inverses", "zeros"), node.outputs[1:], strict=False)),
            variables={"symmetric": attributes.symmetric},
            work={Unit.INT32: 200 * dst.rows},
        )
        return (request,)
