"""Direct calls of the OpenCL library that pyopencl has loaded.

Direct calls are necessary because pyopencl takes several microseconds per call and lacks
cl_khr_command_buffer. For each kernel that it wraps, pyopencl also writes generated code into the
user's cache directory.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import os
from collections.abc import Callable, Sequence
from ctypes import POINTER, c_int32, c_size_t, c_uint32, c_uint64, c_void_p
from functools import cache, partial
from pathlib import Path
from typing import Any

from litegpu.backends.limits import GROUP_ITEMS, SHARED_BYTES, exceeded
from litegpu.codegen.opencl import OFFSET_UNIT
from litegpu.errors import ExecutionError
from litegpu.host.native_handles import Owner

TITLE = "OpenCL"
Call = partial[int]
"""A prepared call of an OpenCL function, which returns 0 or an error code."""
LOST = frozenset((-2, -5, -14, -34, -36, -9999))
"""Error codes of a run after which a context or its device is unusable.

Drivers report failed kernels in this way, most often with OUT_OF_RESOURCES and NVIDIA's -9999.
"""
Sizes = POINTER(c_size_t)

_TRANSFER = (
    *(c_void_p, c_void_p, c_uint32, c_size_t, c_size_t, c_void_p),
    *(c_uint32, c_void_p, c_void_p),
)
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "clCreateKernel": (c_void_p, c_void_p, ctypes.c_char_p, POINTER(c_int32)),
    "clEnqueueCopyBuffer": (
        *(c_int32, c_void_p, c_void_p, c_void_p, c_size_t, c_size_t, c_size_t),
        *(c_uint32, c_void_p, c_void_p),
    ),
    "clEnqueueNDRangeKernel": (
        *(c_int32, c_void_p, c_void_p, c_uint32, c_void_p, Sizes, Sizes),
        *(c_uint32, c_void_p, POINTER(c_void_p)),
    ),
    "clEnqueueReadBuffer": (c_int32, *_TRANSFER),
    "clEnqueueWriteBuffer": (c_int32, *_TRANSFER),
    "clFinish": (c_int32, c_void_p),
    "clGetExtensionFunctionAddressForPlatform": (c_void_p, c_void_p, ctypes.c_char_p),
    "clGetKernelWorkGroupInfo": (
        *(c_int32, c_void_p, c_void_p, c_uint32, c_size_t, c_void_p, POINTER(c_size_t)),
    ),
    "clReleaseKernel": (c_int32, c_void_p),
    "clSetKernelArg": (c_int32, c_void_p, c_uint32, c_size_t, c_void_p),
}
"""The result type and the argument types of each function."""

_WORK_GROUP_SIZE, _LOCAL_MEM_SIZE = 0x11B0, 0x11B2
"""Queries for a kernel on a device: maximum work-group size, local memory."""
_LIBRARY_NAMES = (
    "OpenCL",
    "libOpenCL.so.1",
    "/System/Library/Frameworks/OpenCL.framework/OpenCL",
)

_VENDORS = Path("/etc/OpenCL/vendors")
"""The folder in which OpenCL's loader finds drivers."""


@cache
def load_pocl_isolated() -> None:
    """Load PoCL, if installed, isolated from other libraries, so that it uses its bundled LLVM.

    TensorFlow contains an LLVM, too. Without isolation, PoCL would call the LLVM that the process
    loaded first, and crash.
    """
    own_symbols_first = getattr(os, "RTLD_DEEPBIND", None)
    if own_symbols_first is None:  # only glibc supports this
        return
    for entry in sorted(_VENDORS.glob("*.icd")):
        # If loading fails, OpenCL's loader tries it, or reports the error.
        with contextlib.suppress(OSError, UnicodeDecodeError):
            driver = entry.read_text(encoding="utf-8").strip()
            if "pocl" in Path(driver).name:
                ctypes.CDLL(driver, mode=os.RTLD_NOW | own_symbols_first)


@cache
def library() -> Any:
    """Return the OpenCL library with its prototypes. Raises ExecutionError when not found."""
    import pyopencl

    lib = _load(pyopencl._cl.__file__)
    for name, (result, *arguments) in _SIGNATURES.items():
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    return lib


def _load(module: str) -> Any:
    """Find the loaded library, through pyopencl's module if that exports its symbols."""
    for name in (module, *_LIBRARY_NAMES):
        try:
            lib = ctypes.WinDLL(name) if hasattr(ctypes, "WinDLL") else ctypes.CDLL(name)
            if hasattr(lib, "clEnqueueWriteBuffer"):
                return lib
        except OSError:
            continue
    raise ExecutionError(
        "The OpenCL library that pyopencl uses cannot be found by name. Install your driver's "
        "OpenCL loader (Debian: apt-get install ocl-icd-libopencl1)."
    )


class Handles(Owner):
    """OpenCL handles that are released together."""

    def __init__(self) -> None:
        """Start without handles."""
        super().__init__(_check_release)

    def make(self, create: Callable[..., Any], release: Callable[..., Any], *arguments: Any) -> int:
        """Return the handle that `create` returns for `arguments`; 0 if it fails."""
        handle = self.hold(release, c_void_p)
        handle.creation(create, *arguments)()
        return handle.result or 0


def _check_release(release: Callable[..., Any], status: int) -> None:
    _check(status, getattr(release, "__name__", "A release"))


class OpenCLKernel:
    """A kernel of a built program with bound buffers, and its global and local size."""

    def __init__(
        self,
        owned: Handles,
        program: int,
        name: str,
        buffers: Sequence[tuple[int, int]],
        global_size: tuple[int, int, int],
        local_size: tuple[int, int, int],
    ) -> None:
        """Create the kernel of program handle `program`; `owned` owns the kernel's handle.

        `buffers` are the handle and the first byte of each argument. Raises ExecutionError with
        the status of the call that failed.
        """
        status, lib = c_int32(), library()
        kernel_call = (program, name.encode(), ctypes.byref(status))
        self.handle = c_void_p(owned.make(lib.clCreateKernel, lib.clReleaseKernel, *kernel_call))
        _check(status.value, f"clCreateKernel({name})")
        self.global_size = (c_size_t * 3)(*global_size)
        self.local_size = (c_size_t * 3)(*local_size)
        for number, (buffer, offset) in enumerate(buffers):
            self._bind(2 * number, c_void_p(buffer), name)
            self._bind(2 * number + 1, c_uint32(offset // OFFSET_UNIT), name)

    def _bind(self, position: int, value: c_void_p | c_uint32, name: str) -> None:
        size = ctypes.sizeof(value)
        status = library().clSetKernelArg(self.handle, position, size, ctypes.byref(value))
        _check(status, f"clSetKernelArg({name}, {position})")

    def obstacle(self, device: int, local_bytes: int, *, reports_group_sizes: bool) -> str:
        """Return why a device with this much local memory cannot launch the kernel, or "".

        `reports_group_sizes`: whether the driver reports the maximum group of a compiled kernel.
        """
        items, needed = c_size_t(), c_uint64()
        for fact, value in ((_WORK_GROUP_SIZE, items), (_LOCAL_MEM_SIZE, needed)):
            query = (self.handle, device, fact, ctypes.sizeof(value), ctypes.byref(value), None)
            _check(library().clGetKernelWorkGroupInfo(*query), "clGetKernelWorkGroupInfo")
        group = math.prod(self.local_size) if reports_group_sizes else 0
        return exceeded(
            (SHARED_BYTES, needed.value, local_bytes), (GROUP_ITEMS, group, items.value)
        )

    def enqueue(self, queue: int, event: Any = None) -> int:
        """Launch on a queue handle; returns 0 or an OpenCL error code."""
        status: int = library().clEnqueueNDRangeKernel(
            queue, self.handle, 3, None, self.global_size, self.local_size, 0, None, event
        )
        return status


def status_name(status: int) -> str:
    """Return an OpenCL error code with its name."""
    import pyopencl

    codes = vars(pyopencl.status_code).items()
    names = {code: name for name, code in codes if isinstance(code, int)}
    return f"{names.get(status, 'an error')} (status {status})"


def _check(status: int, call: str) -> None:
    if status:
        raise ExecutionError(
            f"{call} fails with {status_name(status)}. Another device or backend may work; "
            "`litegpu devices` lists them."
        )
