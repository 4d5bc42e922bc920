"""NORMALIZE: subtracts the mean and divides by the standard deviation over axes of [N, H, W, C].

Models express a normalization as a dozen ops, which `passes/find_normalization.py` fuses.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from litegpu.codegen import literal
from litegpu.codegen.storage import Shape4
from litegpu.graph import Node
from litegpu.ops.base import InternalOp, KernelRequest, LowerContext, Shape, Target, register
from litegpu.ops.common.units import Unit
from litegpu.ops.common.work_groups import can_share, lanes_of, shared_items
from litegpu.ops.index_map import mixed_radix_texts

NORMALIZE = "NORMALIZE"
STATISTICS = "STATISTICS"

_AT_ONCE = 2048
"""Number of blocks up to which one work group is as fast as several groups plus a second kernel."""
_MANY_GROUPS = 128
"""Number of work groups that is sufficient to keep a large GPU busy."""
_MAX_PARTS = 64
"""Maximum number of parts, since each work group of the second kernel reads the sums of all parts.
"""
_MAX_STEPS = 1 << 13
"""Maximum number of channel blocks per work item, on devices whose work items cannot share memory.
"""
_FEW_ITEMS = 64
_EACH = 4
"""Number of channel blocks that a work item normalizes."""


@dataclass(frozen=True, slots=True)
class NormalizeAttributes:
    """(x - mean) / sqrt(mean of squared differences + epsilon) over axes of [N, H, W, C].

    Without `centred`, the mean counts as 0. If `parts` is above 1, the second input has the partial
    sums of that many parts, which STATISTICS computed.
    """

    axes: tuple[int, ...]
    epsilon: float
    centred: bool
    parts: int = 1


def parts_of(shape: Shape4, axes: tuple[int, ...]) -> int:
    """Return the number of parts in which a value's pixels are summed; 1 needs no second kernel."""
    space = _Space(shape, axes)
    groups = space.reductions * -(-space.columns // 2)
    work = space.taps * (space.channel_blocks if space.over_channels else min(space.columns, 2))
    if work <= _AT_ONCE or (groups >= _MANY_GROUPS and work <= _MAX_STEPS):
        return 1
    wide = space.reductions * -(-space.columns // _Space.MAX_WIDTH)
    wanted = min(max(_MANY_GROUPS // wide, 1), _MAX_PARTS)
    wanted = max(wanted, -(-space.taps // _MAX_STEPS))
    return -(-space.taps // -(-space.taps // wanted))


def sums_shape(shape: Shape4, axes: tuple[int, ...], parts: int) -> Shape:
    """Return the shape of STATISTICS: mean and sum of squared differences per part."""
    space = _Space(shape, axes)
    return (space.reductions, parts, 2, 1 if space.over_channels else shape[3])


@dataclass(frozen=True)
class _Space:
    """The number of reductions over a value, and the elements (taps) of each reduction."""

    shape: Shape4
    axes: tuple[int, ...]

    MAX_WIDTH = 8
    """Number of adjacent channel blocks that form whole cache lines."""

    @property
    def over_channels(self) -> bool:
        return 3 in self.axes

    @property
    def channel_blocks(self) -> int:
        return -(-self.shape[3] // 4)

    @property
    def columns(self) -> int:
        """Number of channel blocks that belong to separate reductions."""
        return 1 if self.over_channels else self.channel_blocks

    @property
    def taps(self) -> int:
        return math.prod(self.shape[axis] for axis in self.axes if axis < 3)

    @property
    def reductions(self) -> int:
        return math.prod(self.shape[axis] for axis in range(3) if axis not in self.axes)

    @property
    def per_pixel(self) -> int:
        """Number of elements of a pixel that belong to one reduction."""
        return self.shape[3] if self.over_channels else 1

    @property
    def coordinates(self) -> tuple[str, str, str]:
        """Return the texts of n, y and x for pixel `j` of reduction `k`."""
        texts = ["", "", ""]
        for name, reduced in (("j", True), ("k", False)):
            rows = [axis for axis in range(3) if (axis in self.axes) is reduced]
            sizes = [self.shape[axis] for axis in rows]
            for axis, text in zip(rows, mixed_radix_texts(name, sizes), strict=True):
                texts[axis] = text
        return texts[0], texts[1], texts[2]


@register
class Statistics(InternalOp):
    """Computes the mean of each part, and the sum of squared differences from this mean."""

    name = STATISTICS

    def lower(self, node: Node, ctx: LowerContext) -> Sequence[KernelRequest]:
        attributes: NormalizeAttributes = node.attributes
        source = ctx.storage(node.inputs[0])
        channel_blocks = _Space(source.shape, attributes.axes).channel_blocks
        return (
            _request(node, ctx, channel_blocks, attributes.parts, makes_sums=True, has_sums=False),
        )


@register
class Normalize(InternalOp):
    """Subtracts the mean and divides by the standard deviation; only a pass creates this op."""

    name = NORMALIZE

    def lower(self, node: Node, ctx: LowerContext) -> Sequence[KernelRequest]:
        attributes: NormalizeAttributes = node.attributes
        channel_blocks = ctx.storage(node.outputs[0]).channel_blocks
        if attributes.parts == 1:
            return (_request(node, ctx, channel_blocks, 1, makes_sums=False, has_sums=False),)
        space = _Space(ctx.storage(node.inputs[0]).shape, attributes.axes)
        across = (
            space.channel_blocks if space.over_channels else min(space.columns, space.MAX_WIDTH)
        )
        chunks = max(-(-space.taps * across // (_EACH * 256)), attributes.parts)
        return (_request(node, ctx, channel_blocks, chunks, makes_sums=False, has_sums=True),)


def _items_and_rows(blocks: int, target: Target) -> tuple[int, int]:
    """Return the work items per reduction, and the reductions per work group.

    Adjacent work items read adjacent elements if a work group has several reductions. Software
    devices compute one reduction per group, since a CPU core is fastest with consecutive memory.
    """
    # Select the numbers with the fewest idle items in the last round, and the largest of these.
    items = min((32, 16, 8), key=lambda each: -(-blocks // each) * each)
    rows = min(256, target.max_work_group_size) // items
    if target.parallel_items <= _FEW_ITEMS or not can_share(items * rows, target):
        return 1, 1
    return items, rows


def _request(
    node: Node,
    ctx: LowerContext,
    channel_blocks: int,
    chunks: int,
    *,
    makes_sums: bool,
    has_sums: bool,
) -> KernelRequest:
    """Return a kernel whose work groups process the pixels in `chunks` parts.

    A work group processes `channel_blocks` channel blocks.
    """
    attributes: NormalizeAttributes = node.attributes
    src = ctx.storage(node.inputs[0])
    space = _Space(src.shape, attributes.axes)
    length = -(-space.taps // chunks)
    chunks = -(-space.taps // length)
    columns = 1 if space.over_channels else channel_blocks
    width = min(1 << (columns - 1).bit_length(), 2 if attributes.parts == 1 else space.MAX_WIDTH)
    groups = chunks * -(-columns // width)
    across = space.channel_blocks if space.over_channels else width
    items = shared_items(groups * space.reductions, length * across, ctx)
    rows = 1
    if items == 1:
        width, groups = 1, chunks * columns
        if space.over_channels and groups == 1 and not makes_sums and not has_sums:
            items, rows = _items_and_rows(space.taps * space.channel_blocks, ctx.target)
    variables: dict[str, Any] = {
        "ITEMS": items,
        "ROWS": rows,
        "WIDTH": width,
        "LANES": lanes_of(items, ctx.target, rows) if width == 1 else 1,
        "makes_sums": makes_sums,
        "has_sums": has_sums,
        "over_channels": space.over_channels,
        "centred": attributes.centred,
        "epsilon": literal(attributes.epsilon),
        "coordinates": space.coordinates,
        "reductions": space.reductions,
        "taps": space.taps,
        "per_pixel": literal(space.per_pixel),
        "count": literal(space.taps * space.per_pixel),
        "groups": groups,
        "chunks": chunks,
        "length": length,
        "parts": attributes.parts,
        "part_length": -(-space.taps // attributes.parts),
        "channel_blocks": channel_blocks,
        "real_blocks": space.channel_blocks,
    }
    elements = math.prod(src.shape)
    return KernelRequest(
        template="normalize",
        grid=(groups * items * rows, -(-space.reductions // rows), 1),
        local=(items * rows, 1, 1) if items > 1 else None,
        output=node.outputs[0],
        reads=dict(zip(("src", "sums"), node.inputs, strict=False)),
        variables=variables,
        shared=(("float4", "scratch", items * rows),) if items > 1 else (),
        work={Unit.FP32: elements * (3 if makes_sums else 3 if has_sums else 6)},
    )
