"""ROW_SCALES: computes scales and zero points that quantize float rows to int8."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from litegpu.graph import Node
from litegpu.ops.base import InternalOp, KernelRequest, LowerContext, register
from litegpu.ops.common.units import Unit
from litegpu.ops.common.work_groups import shared_items

ROW_SCALES = "ROW_SCALES"


@dataclass(frozen=True, slots=True)
class RowScalesAttributes:
    """Whether rows are quantized symmetrically; otherwise their range is mapped to -128 to 127."""

    symmetric: bool


@register
class RowScales(InternalOp):
    """Computes scales from each row's minimum and maximum, for dynamic quantization.

    The inputs are the minima and maxima, or the rows themselves; rows then lie along the channels.
    The results are scales, inverse scales and, for asymmetric rows, zero points, [..., 1] each.
    """

    name = ROW_SCALES

    def lower(self, node: Node, ctx: LowerContext) -> Sequence[KernelRequest]:
        attributes: RowScalesAttributes = node.attributes
        dst = ctx.storage(node.outputs[0])
        whole = len(node.inputs) == 1
        sources = ("src",) if whole else ("least", "most")
        items = 1
        if whole:
            items = shared_items(dst.rows, ctx.storage(node.inputs[0]).channel_blocks, ctx)
        request = KernelRequest(
            template="row_scales",
            grid=(items, dst.rows, 1),
            local=(items, 1, 1) if items > 1 else (1, 64, 1),
            output=node.outputs[0],
            reads=dict(zip(sources, node.inputs, strict=True)),
            writes=dict(zip(("inverses", "zeros"), node.outputs[1:], strict=False)),
            variables={"symmetric": attributes.symmetric, "whole": whole, "ITEMS": items},
            shared=(("float4", "lows", items), ("float4", "highs", items)) if items > 1 else (),
            work={Unit.INT32: 200 * dst.rows},
        )
        return (request,)
