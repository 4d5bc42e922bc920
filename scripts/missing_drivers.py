"""Print `API: packages` for each GPU API named here without a device: Debian software devices."""

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


def missing(wanted: Sequence[str]) -> dict[str, str]:
    """Return the packages of each of these backends that finds no device."""
    usable = {each.name for each in backends.status() if each.devices}
    return {api: PACKAGES[api] for api in wanted if api not in usable}


if __name__ == "__main__":
    for api, packages in missing(sys.argv[1:]).items():
        print(f"{api}: {packages}")
