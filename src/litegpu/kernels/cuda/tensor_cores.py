"""Which convolutions the kernels on tensor cores compute."""

from __future__ import annotations

from litegpu.kernels.base import IN_MEMORY, Rejected
from litegpu.ops.base import Target
from litegpu.ops.conv_spec import ConvSpec

_NEEDS_HALVES = Rejected("it multiplies halves, where float32 is asked for")


def obstacle(spec: ConvSpec, target: Target) -> Rejected | None:
    """Return what keeps a convolution from all of these kernels."""
    reason = spec.obstacle(target)
    return Rejected(reason) if reason else None


def obstacle_to_halves(spec: ConvSpec, target: Target) -> Rejected | None:
    """Return what keeps a convolution from kernels that split values into halves on the chip."""
    if spec.depthwise is not None:
        return IN_MEMORY
    needs_halves = _NEEDS_HALVES if target.half_from is None else None
    return obstacle(spec, target) or needs_halves
