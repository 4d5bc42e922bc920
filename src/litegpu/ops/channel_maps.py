"""CHANNEL_MAPS: gathers channels of one value by a separate index map each, and mixes them.

CHANNEL_MAPS is an internal op for images with separate color planes, such as YUV 4:2:0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from litegpu.codegen import FLOAT, literal, register_of
from litegpu.graph import Node
from litegpu.ops.base import InternalOp, KernelRequest, LowerContext, register
from litegpu.ops.common.lookups import Lookup
from litegpu.ops.common.units import Unit

CHANNEL_MAPS = "CHANNEL_MAPS"
MAX_CHANNELS = 4
_COORDINATES = ("n", "y", "x")


@dataclass(frozen=True, slots=True)
class ChannelMap:
    """The source of a gathered channel: an input channel, and the input position of each pixel.

    `image` has the lookups along the input's axes N, H and W, as functions of the result's axes.
    """

    image: tuple[Lookup, Lookup, Lookup]
    channel: int

    def texts(self) -> list[str] | None:
        """Return the texts of n, y, x and c of the input; None if a lookup has no such text."""
        found = [
            each.text(_COORDINATES[each.axis] if each.axis is not None else "0")
            for each in self.image
            if each.axis in (None, 0, 1, 2)
        ]
        known = [text for text in found if text is not None]
        return [*known, str(self.channel)] if len(known) == len(self.image) else None


@dataclass(frozen=True, slots=True)
class ChannelMapsAttributes:
    """One map for each gathered channel, and optionally a matrix that mixes them.

    If `matrix` is not empty, the result has one channel per row of the matrix. A row contains the
    factors of the gathered channels (as floats), then an offset.
    """

    maps: tuple[ChannelMap, ...]
    matrix: tuple[tuple[float, ...], ...] = ()


@register
class ChannelMaps(InternalOp):
    """Gathers up to four channels element by element; only passes create this op."""

    name = CHANNEL_MAPS

    def lower(self, node: Node, ctx: LowerContext) -> Sequence[KernelRequest]:
        attributes: ChannelMapsAttributes = node.attributes
        dst = ctx.storage(node.outputs[0])
        maps, matrix = attributes.maps, attributes.matrix
        stored = register_of(ctx.storage(node.inputs[0]).dtype)
        request = KernelRequest(
            template="channel_maps",
            grid=(dst.channel_blocks, dst.rows, 1),
            output=node.outputs[0],
            reads={"src": node.inputs[0]},
            variables={
                "lanes": [each.texts() for each in maps],
                "matrix": [[literal(factor) for factor in row] for row in matrix],
                "as_float": "{}" if stored is FLOAT else f"CAST4_{stored.kind}_F32({{}})",
            },
            needed={"src": dst.rows * len(maps)},
            work={Unit.FP32: 2 * dst.rows * len(maps) * len(matrix)} if matrix else {},
            accumulator=FLOAT if matrix else stored,
        )
        return (request,)
