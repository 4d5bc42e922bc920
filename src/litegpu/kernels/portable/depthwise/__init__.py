"""Depthwise convolutions in the portable dialect: depthwise_conv_2d."""

from __future__ import annotations

from litegpu.kernels.base import Implementation, Plan, Rejected
from litegpu.kernels.depthwise import DepthwisePlan, tiles_of
from litegpu.kernels.examples import DepthwiseExample
from litegpu.ops.base import Target
from litegpu.ops.common.depthwise_spec import DepthwiseSpec


class DepthwisePortable(Implementation):
    """A kernel that shares loads between adjacent pixels, for any weights and any multiplier.

    The kernel loads pixels at clamped positions.
    """

    name = "depthwise_conv_2d"
    general = True
    example = DepthwiseExample((1, 5, 5, 7))

    def plan(self, spec: DepthwiseSpec, target: Target) -> Plan | Rejected:
        return DepthwisePlan(self.name, spec, tiles_of(spec, target))
