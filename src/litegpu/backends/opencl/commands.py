"""Submits a partition's kernels: as a command buffer if the driver supports it, else in a loop."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from ctypes import c_int32, c_uint32, c_void_p
from dataclasses import dataclass
from typing import Any

from litegpu.backends.opencl.library import Call, Handles, OpenCLKernel, Sizes, library
from litegpu.host.native_calls import bound

_EXTENSION = "cl_khr_command_buffer"


class EnqueueLoop:
    """Calls clEnqueueNDRangeKernel once per launch, with arguments that were bound before."""

    def __init__(self, queue: Any, kernels: Sequence[OpenCLKernel]) -> None:
        """Prepare the calls."""
        enqueue = library().clEnqueueNDRangeKernel
        self.calls: Sequence[Call] = [
            bound(
                enqueue,
                *(queue.int_ptr, kernel.handle, 3, None),
                *(kernel.global_size, kernel.local_size, 0, None, None),
            )
            for kernel in kernels
        ]


class CommandBuffer:
    """A command buffer of all launches (cl_khr_command_buffer), submitted with one call."""

    def __init__(self, handle: int, functions: _Functions) -> None:
        """Prepare the call that submits a finalized command buffer."""
        enqueue = bound(functions.enqueue, 0, None, handle, 0, None, None)
        self.calls: Sequence[Call] = (enqueue,)

    @classmethod
    def create(
        cls, owned: Handles, queue: Any, kernels: Sequence[OpenCLKernel]
    ) -> CommandBuffer | None:
        """Record the launches; return None if the device has no (working) command buffers.

        `owned` owns the handle of the command buffer.
        """
        device = queue.device
        if not kernels or _EXTENSION not in device.extensions.split():
            return None
        functions = _Functions.load(device.platform.int_ptr)
        if functions is None:
            return None
        queues = (c_void_p * 1)(queue.int_ptr)
        status = c_int32()
        creation = (1, queues, None, ctypes.byref(status))
        handle = owned.make(functions.create, functions.release, *creation)
        if status.value or not handle:
            return None
        wait: Any = None
        for kernel in kernels:
            point = c_uint32()
            status.value = functions.launch(
                *(handle, None, None, kernel.handle, 3, None),
                *(kernel.global_size, kernel.local_size),
                *(0 if wait is None else 1, wait, ctypes.byref(point), None),
            )
            if status.value:
                return None
            wait = (c_uint32 * 1)(point.value)
        if functions.finalize(handle):
            return None
        return cls(handle, functions)


@dataclass(frozen=True, slots=True)
class _Functions:
    """The functions of cl_khr_command_buffer."""

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
                *(Sizes, Sizes, c_uint32, c_void_p, c_void_p, c_void_p),
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
