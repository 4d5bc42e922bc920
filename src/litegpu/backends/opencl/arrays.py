"""Wraps arrays and buffers of pyopencl."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from litegpu.backends.buffers import Adopted
from litegpu.backends.opencl.buffers import OpenCLBorrowedBuffer
from litegpu.backends.opencl.library import TITLE
from litegpu.errors import BindingError
from litegpu.host.fork_safety import touch

if TYPE_CHECKING:
    from litegpu.backends.opencl.device import OpenCLDevice


def adopt(source: Any, devices: Iterable[OpenCLDevice]) -> Adopted | None:
    """Wrap a pyopencl.array.Array or pyopencl.Buffer as a buffer; return None for other objects.

    The function waits for the work that is enqueued on an array. `devices` are the open devices.
    Raises BindingError. See Backend.adopt.
    """
    cl = sys.modules.get("pyopencl")
    if cl is None:
        return None
    if isinstance(source, cl.Buffer):
        device = _device_of(source.context, devices)
        buffer = OpenCLBorrowedBuffer(device, source, 0, source.size, source)
        return Adopted(buffer, output=_is_output(buffer))
    arrays = sys.modules.get("pyopencl.array")
    if arrays is None or not isinstance(source, arrays.Array):
        return None
    if not source.flags.c_contiguous:
        raise BindingError(
            f"An array of the shape {[*source.shape]} is not in C order without gaps. Copy it: "
            "array.copy(order='C')."
        )
    if not isinstance(source.base_data, cl.MemoryObjectHolder):
        raise BindingError(
            f"An array is in a {type(source.base_data).__name__}, which is not an OpenCL buffer. "
            "Create the array without an allocator of shared virtual memory."
        )
    device = _device_of(source.base_data.context, devices)
    source.finish()
    span = (source.base_data, source.offset, source.nbytes)
    buffer = OpenCLBorrowedBuffer(device, *span, source)
    return Adopted(buffer, source.dtype, source.shape, output=_is_output(buffer))


def _is_output(buffer: OpenCLBorrowedBuffer) -> bool:
    """Whether kernels may write a buffer (the host can write any buffer)."""
    return not buffer.handle.flags & buffer.device.cl.mem_flags.READ_ONLY


def _device_of(context: Any, devices: Iterable[OpenCLDevice]) -> OpenCLDevice:
    touch(TITLE)
    for device in devices:
        if device.context == context:
            return device
    raise BindingError(
        "The buffer belongs to another OpenCL context than litegpu's. Create it in the context of "
        "one of the model's buffers: `buffer.handle.context` of a buffer with memory='device'."
    )
