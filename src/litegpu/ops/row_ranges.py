"""ROW_RANGES: finds the ranges of parts of float rows, which QUANTIZE_ROWS combines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from litegpu.graph import Node
from litegpu.ops.base import InternalOp, KernelRequest, LowerContext, Shape, register
from litegpu.ops.common.units import Unit
from litegpu.ops.common.work_groups import shared_items

ROW_RANGES = "ROW_RANGES"

_WHOLE_BLOCKS = 1 << 12
"""Number of channel blocks up to which one work group finds the range of a whole row."""
_MAX_PARTS = 64
_MAX_PART_BLOCKS = 1 << 15
"""Maximum channel blocks per part: Mesa's software devices abort loops after 65535 steps."""
RANGE_CHANNELS = 8
"""Four negated minima and four maxima per part."""


@dataclass(frozen=True, slots=True)
class RowRangesAttributes:
    """The number of pixels of a row, and of the parts whose ranges are found separately."""

    pixels: int
    parts: int


def parts_of(shape: Shape, pixels: int) -> int:
    """Return the number of parts of a row of `pixels` pixels; 1 needs no kernel for ranges."""
    blocks = pixels * -(-shape[-1] // 4)
    if blocks <= _WHOLE_BLOCKS:
        return 1
    return max(min(blocks // (_WHOLE_BLOCKS // 4), _MAX_PARTS), -(-blocks // _MAX_PART_BLOCKS))


@register
class RowRanges(InternalOp):
    """Finds the minimum and the maximum of each part of a row, [rows, 1, parts, 8]."""

    name = ROW_RANGES

    def lower(self, node: Node, ctx: LowerContext) -> Sequence[KernelRequest]:
        attributes: RowRangesAttributes = node.attributes
        source = ctx.storage(node.inputs[0])
        rows, parts = source.rows // attributes.pixels, attributes.parts
        pixel_blocks = -(-source.channels // 4)
        blocks = attributes.pixels * pixel_blocks
        length = -(-blocks // parts)
        items = shared_items(rows * parts, length, ctx)
        shared = (("float4", "lows", items), ("float4", "highs", items))
        request = KernelRequest(
            template="row_ranges",
            grid=(items * parts, rows, 1),
            local=(items, 1, 1) if items > 1 else None,
            output=node.outputs[0],
            reads={"src": node.inputs[0]},
            variables={
                "pixels": attributes.pixels,
                "rows": rows,
                "parts": parts,
                "pixel_blocks": pixel_blocks,
                "blocks": blocks,
                "length": length,
                "ITEMS": items,
            },
            shared=shared if items > 1 else (),
            work={Unit.FP32: 2 * source.rows * source.channels},
        )
        return (request,)
