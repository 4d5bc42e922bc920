"""Convolutions in the portable dialect: shared tiles, divided sums, and independent work items."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from litegpu.codegen import round_up
from litegpu.graph import Node
from litegpu.kernels.base import IN_MEMORY, Implementation, Plan, Rejected
from litegpu.kernels.examples import ConvExample
from litegpu.kernels.portable.conv.tiles import STEP, Tile, direct_clocks, tiles
from litegpu.ops.base import KernelRequest, LowerContext, Target
from litegpu.ops.common import weights
from litegpu.ops.common.conv_spec import ConvSpec
from litegpu.ops.common.portable_tiles import TileProblem, choose_tile
from litegpu.ops.common.units import Unit
from litegpu.ops.common.weights import Weights
from litegpu.ops.common.work_groups import can_share

_SPLIT_K_ITEMS = (64, 32)
"""Possible numbers of work items per sum; the first number that the device permits is used."""
_MAX_RATIO = 0.6
"""Maximum ratio of a tile's estimated clocks to those of items that load operands directly."""
_MIN_PIXELS = 8
"""Half of the number of pixels of the smallest tile."""
_CANDIDATES = 6
"""Number of tiles among which a measurement selects."""


class ConvSplit(Implementation):
    """A kernel whose work items divide each sum: for outputs too few to keep the device busy."""

    name = "conv_2d_split_k"
    general = True
    example = ConvExample((1, 1, 1, 1024), 11)

    def plan(self, spec: ConvSpec, target: Target) -> Plan | Rejected:
        if spec.depthwise is not None:
            return IN_MEMORY
        items = next((items for items in _SPLIT_K_ITEMS if can_share(items, target)), 0)
        if not items:
            return Rejected("the device permits too few work items per group")
        (_, height, width, depth), _ = weights.spread_shape(spec.weights)
        if height * width * -(-depth // 4) < 2 * items:
            return Rejected("the sums are too short to be divided")
        if spec.dst.rows * spec.dst.channel_blocks * 4 > target.parallel_items:
            return Rejected("the output has enough elements to keep the device busy")
        return _SplitKPlan(spec, items)


@dataclass(frozen=True, slots=True)
class _SplitKPlan(Plan):
    """The plan of divided sums: the number of work items per sum."""

    spec: ConvSpec
    items: int

    def lower(self, node: Node, ctx: LowerContext) -> KernelRequest:
        dst = self.spec.dst
        request = _request(node, ctx, self.spec, "conv_2d_split_k", dst.channel_blocks)
        return replace(
            request,
            grid=(dst.channel_blocks * self.items, dst.rows, 1),
            local=(self.items, 1, 1),
            variables={**request.variables, "ITEMS": self.items},
            shared=(("float4", "scratch", self.items),),
        )


class ConvTiles(Implementation):
    """A kernel whose work groups compute tiles from shared memory: for large products on GPUs."""

    name = "conv_2d_tiles"
    general = True
    example = ConvExample((1, 64, 64, 64), 64, 3)

    def plan(self, spec: ConvSpec, target: Target) -> Plan | Rejected:
        if spec.depthwise is not None:
            return IN_MEMORY
        if not target.fast_local_memory:
            return Rejected("local memory of the device is not faster than the cache")
        if spec.dst.rows < _MIN_PIXELS:
            return Rejected("most of a tile would be empty")
        shape, groups = weights.spread_shape(spec.weights)
        problem = TileProblem.of_conv(self.name, spec.dst, spec.src, shape, groups)
        units = target.compute_units
        found = sorted(tiles(problem, target), key=lambda tile: tile.clocks(problem, units))
        if not found:
            return Rejected("the device permits too few work items per group")
        clocks, direct = found[0].clocks(problem, units), direct_clocks(problem, units)
        if clocks > _MAX_RATIO * direct:
            return Rejected(f"the estimate is {clocks:.0f} clocks, but {direct:.0f} without tiles")
        return _TilesPlan(spec, problem, tuple(found[:_CANDIDATES]))


@dataclass(frozen=True, slots=True)
class _TilesPlan(Plan):
    """The plan of shared tiles: the tiles with the shortest estimated times, best first."""

    spec: ConvSpec
    problem: TileProblem
    tiles: tuple[Tile, ...]

    def lower(self, node: Node, ctx: LowerContext) -> KernelRequest:
        tile = ctx.choose(self.problem, self.tiles)
        padded_blocks = round_up(self.spec.dst.channel_blocks, tile.columns)
        request = _request(node, ctx, self.spec, "conv_2d_tiles", padded_blocks)
        pixels, weight = tile.shared_vectors
        return replace(
            request,
            grid=(
                padded_blocks // tile.columns * tile.items,
                -(-self.spec.dst.rows // tile.rows),
                1,
            ),
            local=(tile.items, 1, 1),
            variables={
                **request.variables,
                "PIXELS": tile.pixels,
                "CHANNEL_BLOCKS": tile.channel_blocks,
                "ROW_ITEMS": tile.row_items,
                "COLUMN_ITEMS": tile.column_items,
                "SLICES": tile.slices,
                "STEP": STEP,
                "PIXEL_PITCH": tile.pixel_pitch,
                "WEIGHT_PITCH": tile.weight_pitch,
            },
            shared=(("float4", "pixel_tile", pixels), ("float4", "weight_tile", weight)),
        )


class ConvPortable(Implementation):
    """A kernel whose work items compute tiles of pixels and channels: for other convolutions."""

    name = "conv_2d"
    general = True
    example = ConvExample((1, 5, 5, 7), 6)

    def plan(self, spec: ConvSpec, target: Target) -> Plan | Rejected:
        if spec.depthwise is not None:
            return IN_MEMORY
        shape, groups = weights.spread_shape(spec.weights)
        problem = TileProblem.of_conv("conv_2d", spec.dst, spec.src, shape, groups)
        return _PortablePlan(spec, problem)


@dataclass(frozen=True, slots=True)
class _PortablePlan(Plan):
    """The plan of independent work items: the properties that determine the tiles."""

    spec: ConvSpec
    problem: TileProblem

    def lower(self, node: Node, ctx: LowerContext) -> KernelRequest:
        pixels, channel_blocks = choose_tile(self.problem, ctx)
        padded_blocks = round_up(self.spec.dst.channel_blocks, channel_blocks)
        request = _request(node, ctx, self.spec, "conv_2d", padded_blocks)
        return replace(
            request,
            grid=(padded_blocks // channel_blocks, -(-self.spec.dst.rows // pixels), 1),
            variables={**request.variables, "PIXELS": pixels, "CHANNEL_BLOCKS": channel_blocks},
        )


def _request(
    node: Node, ctx: LowerContext, spec: ConvSpec, template: str, channel_blocks: int
) -> KernelRequest:
    """Return the request that both kernels share, without the work items.

    The kernels write `channel_blocks` blocks of output channels.
    """
    operand = weights.spread_groups(spec.weights)
    bound = weights.bind(operand, channel_blocks, ctx)
    return KernelRequest(
        template=template,
        grid=(1, 1, 1),
        output=node.outputs[0],
        reads={"src": node.inputs[0], **bound.reads},
        constants=bound.constants,
        variables={**_words(spec, operand), **bound.variables},
        work={Unit.FP32: 2 * spec.dst.rows * operand.elements},
        needed={"src": spec.window.elements_read(spec.dst.rows, spec.src.padded_channels)},
    )


def _words(spec: ConvSpec, operand: Weights) -> dict[str, Any]:
    image = spec.src.shape[1:3]
    return {
        **spec.window.words(image),
        "padded": spec.window.leaves(image, spec.dst.shape[1:3]),
        "input_blocks": -(-operand.shape[3] // 4),
        "groups": operand.groups,
        "group_outputs": operand.shape[0] // operand.groups,
        "pointwise": spec.keeps_rows,
    }
