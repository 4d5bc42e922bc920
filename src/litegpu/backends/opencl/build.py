"""Builds OpenCL programs from sources and from binaries."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from litegpu import config
from litegpu.codegen import KernelText

_POCL_FLAGS = "POCL_EXTRA_BUILD_FLAGS"
"""The environment variable with further compiler options of PoCL."""


@dataclass(frozen=True, slots=True)
class Built:
    """Programs that together contain all kernels, and the compiler options of the build."""

    options: str
    programs: tuple[Any, ...]
    by_kernel: Mapping[str, Any]
    """Maps kernel names to programs; empty if one program contains all kernels."""

    def program_of(self, kernel: str) -> Any:
        """Return the program that contains a kernel; None if there is none."""
        return self.by_kernel.get(kernel, self.programs[0])


def build(cl: Any, context: Any, sources: Sequence[str], options: str) -> Built:
    """Return programs built from sources, in parallel. Raises pyopencl's errors.

    The function bypasses pyopencl's cache. That cache unpickles files, waits up to a minute for the
    lock of a killed process, and does not work with PoCL and NVIDIA.
    """
    return _built(
        cl, options, [partial(_from_source, cl, context, each, options) for each in sources]
    )


def from_binaries(cl: Any, context: Any, binaries: Iterable[bytes], options: str) -> Built:
    """Return programs built from the results of `binary_of`. Raises pyopencl's errors."""
    return _built(
        cl, options, [partial(_from_binary, cl, context, each, options) for each in binaries]
    )


def _built(cl: Any, options: str, builds: Sequence[Callable[[], Any]]) -> Built:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the build log of a successful build
        if len(builds) == 1:
            return Built(options, (builds[0](),), {})
        with ThreadPoolExecutor(len(builds), "litegpu-opencl") as pool:
            programs = tuple(pool.map(lambda build: build(), builds))
    names = [each.get_info(cl.program_info.KERNEL_NAMES).split(";") for each in programs]
    found = zip(programs, names, strict=True)
    return Built(options, programs, {name: each for each, own in found for name in own})


def parts_of(kernels: Sequence[KernelText], most: int) -> list[list[KernelText]]:
    """Divide kernels into at most `most` parts with about the same length of source text.

    >>> first, second, third = (KernelText(n, (), (1, 1, 1), (), n * 9) for n in ("a", "bb", "c"))
    >>> [[each.name for each in part] for part in parts_of([first, second, third], 2)]
    [['bb'], ['a', 'c']]
    """
    parts: list[list[KernelText]] = [[] for _ in range(max(min(most, len(kernels)), 1))]
    sizes = [0] * len(parts)
    for kernel in sorted(kernels, key=lambda kernel: -len(kernel.body)):
        smallest = sizes.index(min(sizes))
        parts[smallest].append(kernel)
        sizes[smallest] += len(kernel.body)
    return parts


def binary_of(cl: Any, built: Any) -> bytes:
    """Return the binary of a built program for its only device; empty without a binary.

    PoCL compiles a kernel at its first run, and stores the binary at the first request for it. A
    binary that was requested before the first run lacks the optimized code, also in later requests.
    """
    (binary,) = built.get_info(cl.program_info.BINARIES)
    return bytes(binary or b"")


def _from_source(cl: Any, context: Any, source: str, options: str) -> Any:
    return cl.Program(context, source).build(options, cache_dir=False)


def _from_binary(cl: Any, context: Any, binary: bytes, options: str) -> Any:
    program = cl.Program(context, context.devices, [binary])
    return program.build(options, cache_dir=False)


def origin_of(device: Any) -> tuple[str, ...]:
    """Return the properties other than the program on which a binary's validity depends."""
    platform = device.platform
    return (
        *(platform.name, platform.vendor, platform.version),
        *(device.name, device.vendor, device.version, device.driver_version),
        config.environment().get(_POCL_FLAGS, ""),
    )
