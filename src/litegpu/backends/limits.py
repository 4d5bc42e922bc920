"""Whether a program keeps within what a device allows, before anything is made of it."""

from __future__ import annotations

import math

from litegpu.backends.base import DeviceInfo
from litegpu.backends.program import Program
from litegpu.codegen import KernelText
from litegpu.errors import DeviceMemoryError, KernelError


def check_sizes(program: Program, info: DeviceInfo) -> None:
    """Raise KernelError or DeviceMemoryError for what is too large for a device.

    That are kernels' work groups and their memory, buffers, and ranges that a kernel uses.
    """
    found = {kernel.name: _obstacle(kernel, info) for kernel in program.kernels}
    if reasons := {name: reason for name, reason in found.items() if reason}:
        shown = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
        raise KernelError(
            f"Device '{info.name}' ({info.backend}) cannot launch kernels ({shown}). Another "
            "device or backend may help.",
            reasons,
        )
    ranges = [each for launch in program.launches for each in launch.ranges]
    needs = [
        (program.memory_bytes, "for values in one buffer", info.max_allocation_bytes),
        (program.constants.size, "for weights in one buffer", info.max_allocation_bytes),
        (max((each.size for each in ranges), default=0), "in one tensor", info.max_binding_bytes),
    ]
    for nbytes, what, limit in needs:
        if limit is not None and nbytes > limit:
            raise DeviceMemoryError(
                f"The partition needs {nbytes} bytes {what}, but device '{info.name}' "
                f"({info.backend}) allows {limit}. Use precision='fp16', a smaller batch or "
                "another device."
            )


def _obstacle(kernel: KernelText, info: DeviceInfo) -> str:
    items, nbytes = math.prod(kernel.local_size), kernel.shared_bytes
    if items > info.max_work_group_size:
        return f"its work groups are of {items} items, the device takes {info.max_work_group_size}"
    if nbytes > info.local_memory_bytes:
        return f"it needs {nbytes} bytes of local memory, the device has {info.local_memory_bytes}"
    return ""
