"""Finds NVIDIA's driver without NVIDIA's packages, and the packages that fit the driver."""

from __future__ import annotations

import ctypes
import re
import sys
from pathlib import Path

from litegpu.errors import MissingDependencyError, missing_dependency

_LIBRARIES = ("nvcuda.dll",) if sys.platform == "win32" else ("libcuda.so.1", "libcuda.so")
_KERNEL_MODULE = Path("/proc/driver/nvidia/version")
_FIRST_RELEASE_OF_13 = 580


def missing_bindings(package: str, purpose: str) -> MissingDependencyError:
    """Return the error for a missing NVIDIA package, with the pip extra that fits the driver."""
    version = supported_version()
    if version is None:
        return missing_dependency(
            package,
            "cuda",
            purpose,
            why="is not installed. No NVIDIA driver is found here, either; with one, install it",
        )
    return missing_dependency(
        package,
        "cuda12" if version < 13000 else "cuda13",
        purpose,
        why="is not installed. NVIDIA's driver is here "
        f"(CUDA {version // 1000}.{version % 1000 // 10}): install it",
    )


def supported_version() -> int | None:
    """Return the newest CUDA version that the driver supports (12040 is 12.4), or None."""
    for name in _LIBRARIES:
        try:
            library = ctypes.CDLL(name)
            version = ctypes.c_int()
            if library.cuDriverGetVersion(ctypes.byref(version)) == 0:
                return version.value
        except (OSError, AttributeError):
            continue
    return _version_of_module()


def _version_of_module() -> int | None:
    """Return the version of the kernel module, for containers that lack the driver library."""
    try:
        text = _KERNEL_MODULE.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    release = re.search(r"Kernel Module.*?\s(\d+)\.", text)
    return 13000 if release and int(release[1]) >= _FIRST_RELEASE_OF_13 else 12000
