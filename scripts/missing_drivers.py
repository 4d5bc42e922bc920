"""Print the Debian packages that give the GPU APIs named here a device, if they have none."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from litegpu import backends

# What runs each API on the CPU, with the API's loader.
PACKAGES = {
    "opencl": "pocl-opencl-icd",
    "opengl": "libegl1 libgl1 libgl1-mesa-dri",
    "webgpu": "libvulkan1 mesa-vulkan-drivers",
}


def missing(wanted: Sequence[str]) -> list[str]:
    """Return the packages of those backends that find no device."""
    usable = {each.name for each in backends.status() if each.devices}
    return [PACKAGES[api] for api in wanted if api not in usable]


if __name__ == "__main__":
    print(*missing(sys.argv[1:]))
