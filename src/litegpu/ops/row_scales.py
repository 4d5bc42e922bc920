"""ROW_SCALES: scales and zero points for the quantization of float rows to int8."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from litegpu.graph import Node
from litegpu.ops.base import InternalOp, KernelRequest, LowerContext, register
from litegpu.ops.common.units import Unit

ROW_SCALES = "ROW_SCALES"


@dataclass(frozen=True, slots=True)
class RowScalesAttributes:
    """Whether rows are symmetric (largest magnitude: 127), or their range becomes -128 to 127."""

    symmetric: bool


@register
class RowScales(InternalOp):
    """Scales from the minimum and maximum of each row; created only by dynamic quantization.

    Returns scales, their inverses and, if not symmetric, zero points: [..., 1] each.
    """

    name = ROW_SCALES

    def lower(self, node: Node, ctx: LowerContext) -> Sequence[KernelRequest]:
        attributes: RowScalesAttributes = node.attributes
        dst = ctx.storage(node.outputs[0])
        names = ("inverses", "zeros")
        request = KernelRequest(
            template="row_scales",
            grid=(1, dst.rows, 1),
            local=(1, 64, 1),
            output=node.outputs[0],
            reads=dict(zip(("least", "most"), node.inputs, strict=True)),
            writes=dict(zip(names, node.outputs[1:], strict=False)),
            variables={"symmetric": attributes.symmetric},
            work={Unit.INT32: 200 * dst.rows},
        )
        return (request,)
