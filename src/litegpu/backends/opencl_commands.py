"""Submits a partition's kernels: one command buffer where OpenCL has it, a lean loop elsewhere.

pyopencl costs several microseconds a call, and has no cl_khr_command_buffer; these functions
call the OpenCL library that pyopencl has loaded.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import POINTER, c_int32, c_size_t, c_uint32, c_void_p
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

from litegpu.errors import ExecutionError

_EXTENSION = "cl_khr_command_buffer"
_Sizes = POINTER(c_size_t)


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel (a pyopencl object with its arguments set) and its geometry in work items."""

    kernel: Any
    global_size: tuple[int, int, int]
    local_size: tuple[int, int, int]


@cache
def library() -> Any:
    """Return the OpenCL library with the prototypes of the calls that an invoke makes."""
    import pyopencl

    lib = _load(pyopencl._cl.__file__)
    signatures: dict[str, tuple[Any, ...]] = {
        "clEnqueueWriteBuffer": _TRANSFER,
        "clEnqueueReadBuffer": _TRANSFER,
        "clEnqueueNDRangeKernel": (
            *(c_void_p, c_void_p, c_uint32, c_void_p, _Sizes, _Sizes),
            *(c_uint32, c_void_p, c_void_p),
        ),
        "clFinish": (c_void_p,),
    }
    for name, arguments in signatures.items():
        function = getattr(lib, name)
        function.argtypes, function.restype = arguments, c_int32
    lookup = lib.clGetExtensionFunctionAddressForPlatform
    lookup.argtypes, lookup.restype = (c_void_p, ctypes.c_char_p), c_void_p
    return lib


_TRANSFER = (
    *(c_void_p, c_void_p, c_uint32, c_size_t, c_size_t, c_void_p),
    *(c_uint32, c_void_p, c_void_p),
)


_LIBRARY_NAMES = (
    "OpenCL",
    "libOpenCL.so.1",
    "/System/Library/Frameworks/OpenCL.framework/OpenCL",
)


def _load(module: str) -> Any:
    """Find the loaded library: through pyopencl's module where symbols are global to it."""
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


class EnqueueLoop:
    """One clEnqueueNDRangeKernel per launch, each with its arguments bound once."""

    def __init__(self, queue: Any, launches: Sequence[Launch]) -> None:
        """Bind the calls."""
        enqueue = library().clEnqueueNDRangeKernel
        self._calls = [
            partial(
                enqueue,
                *(queue.int_ptr, launch.kernel.int_ptr, 3, None),
                *((c_size_t * 3)(*launch.global_size), (c_size_t * 3)(*launch.local_size)),
                *(0, None, None),
            )
            for launch in launches
        ]

    def submit(self) -> int:
        """Enqueue all launches; returns 0 or an OpenCL error code."""
        status: int = 0
        for call in self._calls:
            status |= call()
        return status

    def close(self) -> None:
        """Forget the calls."""
        self._calls.clear()


class CommandBuffer:
    """All launches recorded once through cl_khr_command_buffer and submitted with one call."""

    def __init__(self, handle: int, functions: _Functions, kernels: Sequence[Any]) -> None:
        """Take over a finalized command buffer."""
        self._handle: int | None = handle
        self._release = functions.release
        self._kernels = kernels  # the driver keeps them, but not all drivers did
        self._submit = partial(functions.enqueue, 0, None, handle, 0, None, None)

    @classmethod
    def create(cls, queue: Any, launches: Sequence[Launch]) -> CommandBuffer | None:
        """Record, or return None when the device has no (working) command buffers."""
        device = queue.device
        if not launches or _EXTENSION not in device.extensions.split():
            return None
        functions = _Functions.load(device.platform.int_ptr)
        if functions is None:
            return None
        queues = (c_void_p * 1)(queue.int_ptr)
        status = c_int32()
        handle = functions.create(1, queues, None, ctypes.byref(status))
        if status.value or not handle:
            return None
        wait: Any = None
        for launch in launches:
            point = c_uint32()
            status.value = functions.launch(
                *(handle, None, None, launch.kernel.int_ptr, 3, None),
                *((c_size_t * 3)(*launch.global_size), (c_size_t * 3)(*launch.local_size)),
                *(0 if wait is None else 1, wait, ctypes.byref(point), None),
            )
            if status.value:
                functions.release(handle)
                return None
            wait = (c_uint32 * 1)(point.value)
        if functions.finalize(handle):
            functions.release(handle)
            return None
        return cls(handle, functions, [launch.kernel for launch in launches])

    def submit(self) -> int:
        """Enqueue the recorded launches; returns 0 or an OpenCL error code."""
        status: int = self._submit()
        return status

    def close(self) -> None:
        """Release the command buffer."""
        if self._handle:
            self._release(self._handle)
            self._handle = None


@dataclass(frozen=True, slots=True)
class _Functions:
    """The entry points of cl_khr_command_buffer."""

    create: Any
    launch: Any
    finalize: Any
    enqueue: Any
    release: Any

    @classmethod
    def load(cls, platform: int) -> _Functions | None:
        prototypes: dict[str, tuple[Any, ...]] = {
            "clCreateCommandBufferKHR": (c_void_p, c_uint32, c_void_p, c_void_p, c_void_p),
            "clCommandNDRangeKernelKHR": (
                *(c_int32, c_void_p, c_void_p, c_void_p, c_void_p, c_uint32, c_void_p),
                *(_Sizes, _Sizes, c_uint32, c_void_p, c_void_p, c_void_p),
            ),
            "clFinalizeCommandBufferKHR": (c_int32, c_void_p),
            "clEnqueueCommandBufferKHR": (
                *(c_int32, c_uint32, c_void_p, c_void_p, c_uint32, c_void_p, c_void_p),
            ),
            "clReleaseCommandBufferKHR": (c_int32, c_void_p),
        }
        make = getattr(ctypes, "WINFUNCTYPE", ctypes.CFUNCTYPE)
        lookup = library().clGetExtensionFunctionAddressForPlatform
        functions = []
        for name, (result, *arguments) in prototypes.items():
            address = lookup(platform, name.encode())
            if not address:
                return None
            functions.append(make(result, *arguments)(address))
        return cls(*functions)
