"""JOIN_ATTENTION: combines the parts of an attention whose keys are divided between work groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from litegpu.graph import Node
from litegpu.ops.attention import STATE
from litegpu.ops.base import InternalOp, KernelRequest, LowerContext, register
from litegpu.ops.common.traits import Trait
from litegpu.ops.common.units import Unit
from litegpu.ops.common.work_groups import can_share

JOIN_ATTENTION = "JOIN_ATTENTION"
_COLUMNS = 8
"""Channel blocks per work group: adjacent items read 128 adjacent bytes."""
_MAX_GROUP = 256


@dataclass(frozen=True, slots=True)
class JoinAttentionAttributes:
    """Whether the heads of the result follow its tokens: see AttentionAttributes."""

    across: bool


@register
class JoinAttention(InternalOp):
    """Adds the weighted sums of all parts, each scaled by its maximum, and divides by the weights.

    The input is the result of an ATTENTION node whose keys are divided: see AttentionAttributes.
    """

    name = JOIN_ATTENTION
    traits = Trait.SUMS_PRODUCTS

    def lower(self, node: Node, ctx: LowerContext) -> Sequence[KernelRequest]:
        attributes: JoinAttentionAttributes = node.attributes
        (source,) = node.inputs
        products, parts, rows, channels = ctx.value(source).shape4
        dst = ctx.storage(node.outputs[0])
        items = 1
        while items < parts and 2 * items * _COLUMNS <= _MAX_GROUP:
            # Each item also has a maximum and a sum.
            if not can_share(4 * items * _COLUMNS, ctx.target):
                break
            items *= 2
        group = items * _COLUMNS
        request = KernelRequest(
            template="join_attention",
            grid=(-(-dst.channel_blocks // _COLUMNS) * group, products * rows, 1),
            local=(group, 1, 1),
            output=node.outputs[0],
            reads={"src": source},
            variables={
                "ITEMS": items,
                "COLUMNS": _COLUMNS,
                "across": attributes.across,
                "value_blocks": (channels - STATE) // 4,
            },
            shared=(
                ("float4", "sums", group),
                ("float", "maxima", items),
                ("float", "totals", items),
            ),
            work={Unit.FP32: 2 * products * parts * rows * channels},
        )
        return (request,)
