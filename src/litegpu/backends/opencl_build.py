"""Builds OpenCL programs, from the binaries that are kept where there are any."""

from __future__ import annotations

import warnings
from typing import Any

from litegpu.backends.disk_cache import DiskCache


def build(cl: Any, context: Any, source: str, options: str, cache: DiskCache) -> Any:
    """Return the program of a source, built with the compiler's options. Raises pyopencl's errors.

    pyopencl's own cache is never used: it unpickles what lies in its folder, waits up to a minute
    for a lock that a killed process left behind, and keeps nothing for PoCL and NVIDIA.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the build log of a successful build
        if not cache.wanted:
            return _from_source(cl, context, source, options)
        (device,) = context.devices
        key = (*origin_of(device), options, source)
        binary = cache.load(*key)
        if binary is not None:
            try:
                return from_binary(cl, context, binary, options)
            except cl.Error as error:
                cache.discard(str(error), *key)
        built = _from_source(cl, context, source, options)
        if binary := binary_of(cl, built):
            cache.store(binary, *key)
        return built


def from_binary(cl: Any, context: Any, binary: bytes, options: str) -> Any:
    """Return the program of a binary that `binary_of` gave. Raises pyopencl's errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the build log of a successful build
        program = cl.Program(context, context.devices, [binary])
        return program.build(options, cache_dir=False)


def binary_of(cl: Any, built: Any) -> bytes:
    """Return the binary of a built program for its one device; nothing where there is none."""
    (binary,) = built.get_info(cl.program_info.BINARIES)
    return bytes(binary or b"")


def _from_source(cl: Any, context: Any, source: str, options: str) -> Any:
    return cl.Program(context, source).build(options, cache_dir=False)


def origin_of(device: Any) -> tuple[str, ...]:
    """Return what decides, beside source and options, whether a binary fits."""
    platform = device.platform
    return (
        *(platform.name, platform.vendor, platform.version),
        *(device.name, device.vendor, device.version, device.driver_version),
    )
