"""Builds OpenCL programs of sources and of binaries."""

from __future__ import annotations

import warnings
from typing import Any


def build(cl: Any, context: Any, source: str, options: str) -> Any:
    """Return the program of a source, built with the compiler's options. Raises pyopencl's errors.

    pyopencl's own cache is never used: it unpickles what lies in its folder, waits up to a minute
    for a lock that a killed process left behind, and keeps nothing for PoCL and NVIDIA.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the build log of a successful build
        return _from_source(cl, context, source, options)


def from_binary(cl: Any, context: Any, binary: bytes, options: str) -> Any:
    """Return the program of a binary that `binary_of` gave. Raises pyopencl's errors."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the build log of a successful build
        program = cl.Program(context, context.devices, [binary])
        return program.build(options, cache_dir=False)


def binary_of(cl: Any, built: Any) -> bytes:
    """Return the binary of a built program for its one device; nothing where there is none.

    PoCL compiles a kernel when it first runs, and keeps the binary that it is first asked for:
    whoever asks before that gets, now and later, one without the best of the code.
    """
    (binary,) = built.get_info(cl.program_info.BINARIES)
    return bytes(binary or b"")


def _from_source(cl: Any, context: Any, source: str, options: str) -> Any:
    return cl.Program(context, source).build(options, cache_dir=False)


def origin_of(device: Any) -> tuple[str, ...]:
    """Return what decides, beside the program, whether a binary fits."""
    platform = device.platform
    return (
        *(platform.name, platform.vendor, platform.version),
        *(device.name, device.vendor, device.version, device.driver_version),
    )
