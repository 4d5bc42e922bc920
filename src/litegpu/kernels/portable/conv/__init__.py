"""Convolutions in the dialect that every device understands: conv_2d and conv_2d_split."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from litegpu.codegen import round_up
from litegpu.graph import Node
from litegpu.kernels.base import IN_MEMORY, Implementation, Plan, Rejected
from litegpu.ops import weights
from litegpu.ops.base import KernelRequest, LowerContext, Target, can_share
from litegpu.ops.conv_spec import ConvSpec
from litegpu.ops.portable_tiles import TileProblem, choose_tile
from litegpu.ops.units import Unit
from litegpu.ops.weights import Weights

_SPLIT_ITEMS = (64, 32)
"""Work items that may share out one sum; the first that the device allows."""


class ConvSplit(Implementation):
    """Work items share out each sum: for so few outputs that they would not keep a device busy."""

    name = "conv_2d_split"
    general = True

    def plan(self, spec: ConvSpec, target: Target) -> Plan | Rejected:
        if spec.depthwise is not None:
            return IN_MEMORY
        items = next((items for items in _SPLIT_ITEMS if can_share(items, target)), 0)
        if not items:
            return Rejected("the device lets too few work items share memory")
        (_, height, width, depth), _ = weights.spread_shape(spec.weights)
        if height * width * -(-depth // 4) < 2 * items:
            return Rejected("its sums are too short to be shared out")
        if spec.dst.rows * spec.dst.slices * 4 > target.parallel_items:
            return Rejected("it has outputs enough to keep the device busy")
        return _SplitPlan(spec, items)


@dataclass(frozen=True, slots=True)
class _SplitPlan(Plan):
    """How many work items share out a sum."""

    spec: ConvSpec
    items: int

    def lower(self, node: Node, ctx: LowerContext) -> KernelRequest:
        dst = self.spec.dst
        request = _request(node, ctx, self.spec, "conv_2d_split", dst.slices)
        return replace(
            request,
            grid=(dst.slices * self.items, dst.rows, 1),
            local=(self.items, 1, 1),
            variables={**request.variables, "ITEMS": self.items},
            shared=(("float4", "scratch", self.items),),
        )


class ConvPortable(Implementation):
    """Each work item makes a tile of pixels and slices of channels: for all that is left."""

    name = "conv_2d"
    general = True

    def plan(self, spec: ConvSpec, target: Target) -> Plan | Rejected:
        if spec.depthwise is not None:
            return IN_MEMORY
        (outputs, height, width, depth), groups = weights.spread_shape(spec.weights)
        whole_groups = groups == 1 or outputs // groups % 8 == 0
        terms = (height, width, -(-depth // 4))
        dst, stored = spec.dst, spec.src.dtype.value
        problem = TileProblem("conv_2d", dst.rows, dst.slices, terms, stored, whole_groups)
        return _PortablePlan(spec, problem)


@dataclass(frozen=True, slots=True)
class _PortablePlan(Plan):
    """What decides about tiles."""

    spec: ConvSpec
    problem: TileProblem

    def lower(self, node: Node, ctx: LowerContext) -> KernelRequest:
        pixels, slices = choose_tile(self.problem, ctx)
        padded_slices = round_up(self.spec.dst.slices, slices)
        request = _request(node, ctx, self.spec, "conv_2d", padded_slices)
        return replace(
            request,
            grid=(padded_slices // slices, -(-self.spec.dst.rows // pixels), 1),
            variables={**request.variables, "PIXELS": pixels, "SLICES": slices},
        )


def _request(
    node: Node, ctx: LowerContext, spec: ConvSpec, template: str, slices: int
) -> KernelRequest:
    """Return what both kernels ask for, but for the work items; they write `slices` of outputs."""
    held = weights.spread_groups(spec.weights)
    bound = weights.bind(held, slices, ctx)
    return KernelRequest(
        template=template,
        grid=(1, 1, 1),
        local=(8, 8, 1),
        output=node.outputs[0],
        reads={"src": node.inputs[0], **bound.reads},
        constants=bound.constants,
        variables={**_words(spec, held), **bound.variables},
        work={Unit.FP32: 2 * spec.dst.rows * held.elements},
        needed={"src": spec.window.taken(spec.dst.rows, spec.src.lanes)},
    )


def _words(spec: ConvSpec, held: Weights) -> dict[str, Any]:
    image = spec.src.shape[1:3]
    return {
        **spec.window.words(image),
        "padded": spec.window.leaves(image, spec.dst.shape[1:3]),
        "input_slices": -(-held.shape[3] // 4),
        "groups": held.groups,
        "group_outputs": held.shape[0] // held.groups,
        "pointwise": spec.keeps_rows,
    }
