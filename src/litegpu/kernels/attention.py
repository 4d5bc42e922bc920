"""Limits shared by all attention kernels."""

from __future__ import annotations

from litegpu.kernels.base import Rejected
from litegpu.ops.attention import AttentionSpec
from litegpu.ops.base import Target

_MAX_DEPTH = 128
"""Maximum channels per head: a work item holds the channels of a query and of its result in
registers.
"""


def beyond_limits(spec: AttentionSpec, target: Target) -> Rejected | None:
    """Return why kernels for many queries cannot compute an attention; None if they can."""
    depth = max(spec.depths)
    if spec.turned:
        return Rejected("the values are [depth, tokens]")
    if spec.parts > 1:
        return Rejected("work groups divide the keys")
    if depth > _MAX_DEPTH:
        return Rejected(f"heads have {depth} channels; at most {_MAX_DEPTH} are supported")
    return too_many_buffers(spec, target)


def too_many_buffers(spec: AttentionSpec, target: Target) -> Rejected | None:
    """Return why a device cannot bind the buffers of an attention; None if it can."""
    buffers = 4 + spec.buffers
    if buffers > target.max_arguments:
        return Rejected(
            f"the kernel needs {buffers} buffers, but the device permits {target.max_arguments}"
        )
    return None
