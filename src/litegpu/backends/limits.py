"""Checks a program against the limits of a device, before it is compiled."""

from __future__ import annotations

import math

from litegpu.backends.base import DeviceInfo
from litegpu.backends.program import Program
from litegpu.codegen import KernelText
from litegpu.errors import DeviceMemoryError, KernelError

GROUP_ITEMS, SHARED_BYTES = "work items in a group", "bytes of shared memory"
Need = tuple[str, int, int]
"""A requirement: what a kernel needs, the required amount, and the device's amount."""


def exceeded(*needs: Need) -> str:
    """Return the first requirement that a device does not meet, or "".

    >>> exceeded(("buffers", 3, 4), ("threads", 512, 256))
    'it needs 512 threads, the device has 256'
    """
    unmet = (need for need in needs if need[1] > need[2])
    return next(
        (f"the kernel needs {n} {what}, but the device has {most}" for what, n, most in unmet), ""
    )


def obstacle(kernel: KernelText, info: DeviceInfo) -> str:
    """Return the first device limit that a kernel exceeds, or ""."""
    return exceeded(
        (GROUP_ITEMS, math.prod(kernel.local_size), info.max_work_group_size),
        (SHARED_BYTES, kernel.shared_bytes, info.local_memory_bytes),
        ("buffers", len(kernel.arguments), info.max_arguments),
    )


def check_sizes(program: Program, info: DeviceInfo) -> None:
    """Raise KernelError or DeviceMemoryError if the program is too large for a device.

    The function checks work group sizes, local memory, buffer sizes, and the buffer ranges of each
    kernel.
    """
    found = {kernel.name: obstacle(kernel, info) for kernel in program.kernels}
    if reasons := {name: reason for name, reason in found.items() if reason}:
        raise KernelError(f"Device {info.title}", reasons)
    ranges = [each for launch in program.launches for each in launch.ranges]
    constants = [program.constants.nbytes, *(block.nbytes for block in program.blocks)]
    needs = [
        (program.memory_bytes, "for values in one buffer", info.max_allocation_bytes),
        (max(constants), "for weights in one buffer", info.max_allocation_bytes),
        (max((each.size for each in ranges), default=0), "in one tensor", info.max_binding_bytes),
    ]
    for nbytes, what, limit in needs:
        if limit is not None and nbytes > limit:
            raise DeviceMemoryError(
                f"The partition needs {nbytes} bytes {what}, but device '{info.name}' "
                f"({info.backend}) allows {limit}. Use precision='fp16', a smaller batch or "
                "another device."
            )
