"""Whether a program keeps within what a device allows, before anything is made of it."""

from __future__ import annotations

from litegpu.backends.base import DeviceInfo
from litegpu.backends.program import Program
from litegpu.errors import DeviceMemoryError


def check_sizes(program: Program, info: DeviceInfo) -> None:
    """Raise DeviceMemoryError when a buffer, or a range that a kernel uses, is too large."""
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
