"""Exit with 0 when OpenCL offers at least one device, with 1 when it offers none."""

from __future__ import annotations

import sys


def count_devices() -> int:
    """Return how many OpenCL devices all installed drivers offer together."""
    import pyopencl as cl

    try:
        platforms = cl.get_platforms()
    except cl.LogicError:  # raised by the loader when no driver is installed
        return 0
    return sum(len(platform.get_devices()) for platform in platforms)


if __name__ == "__main__":
    sys.exit(0 if count_devices() else 1)
