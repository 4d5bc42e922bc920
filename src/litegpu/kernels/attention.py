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
    """Return why no kernel of a device can compute an attention; None if a kernel can."""
    depth, buffers = max(spec.depths), 4 + spec.buffers
    if depth > _MAX_DEPTH:
        return Rejected(f"heads have {depth} channels; at most {_MAX_DEPTH} are supported")
    if buffers > target.max_arguments:
        return Rejected(
            f"the kernel needs {buffers} buffers, but the device permits {target.max_arguments}"
        )
    return None
