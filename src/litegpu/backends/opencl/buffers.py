"""Buffers of an OpenCL context, and host memory that its driver allocates."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np

from litegpu.backends.buffers import (
    BorrowedBuffer,
    Bytes,
    DeviceBuffer,
    HostBuffer,
    MemoryKind,
)
from litegpu.backends.opencl.library import TITLE
from litegpu.host.finalizers import finalizer
from litegpu.host.fork_safety import is_inherited, keep_in_children, touch

if TYPE_CHECKING:
    from litegpu.backends.opencl.device import OpenCLDevice


class _OpenCLMemory(DeviceBuffer):
    """An OpenCL buffer; `handle` is pyopencl's object for the cl_mem."""

    device: OpenCLDevice

    def _write(self, offset: int, data: Bytes) -> None:
        self._copy(self.handle, data, dst_offset=offset)

    def _read(self, offset: int, host: Bytes) -> None:
        self._copy(host, self.handle, src_offset=offset)

    def _take(self, offset: int, source: DeviceBuffer) -> None:
        ends = {"src_offset": source.offset, "dst_offset": offset}
        self._copy(self.handle, source.handle, byte_count=source.nbytes, **ends)

    def _copy(self, target: Any, source: Any, **how: int) -> None:
        device = self.device
        touch(TITLE)
        try:
            queue = device.cl.CommandQueue(device.context)
            if "byte_count" in how:
                device.cl.enqueue_copy(queue, target, source, **how).wait()
            else:
                device.cl.enqueue_copy(queue, target, source, is_blocking=True, **how)
        except device.cl.Error as error:
            raise device.typed(error, self.nbytes, "copy a buffer") from error


class OpenCLBuffer(_OpenCLMemory):
    """A buffer with a separate allocation."""

    def __init__(self, device: OpenCLDevice, nbytes: int) -> None:
        """Allocate memory. Raises DeviceMemoryError."""
        handle = _allocated(device, device.cl.mem_flags.READ_WRITE, nbytes)
        super().__init__(device, handle, 0, nbytes)
        keep_in_children(self)

    def close(self) -> None:
        """Release the memory."""
        if not (is_inherited(TITLE) or self.closed):
            self.closed = True
            self.handle.release()


class OpenCLBorrowedBuffer(BorrowedBuffer, _OpenCLMemory):
    """A buffer of pyopencl in the device's context.

    The class retains the cl_mem, because applications can release pyopencl's objects explicitly.
    """

    def __init__(
        self, device: OpenCLDevice, memory: Any, offset: int, nbytes: int, owner: object
    ) -> None:
        """Wrap pyopencl's object for memory that is ready for use; `owner` contains the object."""
        handle = device.cl.Buffer.from_int_ptr(memory.int_ptr, retain=True)
        super().__init__(device, handle, offset, nbytes, owner)
        keep_in_children(self)

    def close(self) -> None:
        """Release the memory."""
        if not is_inherited(TITLE):
            super().close()


class OpenCLPinnedBuffer(HostBuffer):
    """Host memory that the driver has allocated and permanently mapped."""

    def __init__(self, device: OpenCLDevice, nbytes: int) -> None:
        """Allocate and map. Raises DeviceMemoryError."""
        cl = device.cl
        flags = cl.mem_flags.READ_WRITE | cl.mem_flags.ALLOC_HOST_PTR
        self._memory = _allocated(device, flags, nbytes)
        keep_in_children(self)
        try:
            self._queue = cl.CommandQueue(device.context)
            access = cl.map_flags.READ | cl.map_flags.WRITE
            self._mapped, _ = cl.enqueue_map_buffer(
                *(self._queue, self._memory, access, 0, (nbytes,), np.uint8), is_blocking=True
            )
        except cl.Error as error:
            raise device.typed(error, nbytes) from error
        pointer = ctypes.c_void_p(self._mapped.ctypes.data)
        super().__init__(pointer, nbytes, MemoryKind.PINNED)

    def close(self) -> None:
        """Unmap and release the memory."""
        if not (is_inherited(TITLE) or self.closed):
            self.closed, self.pointer.value = True, None
            self._mapped.base.release(self._queue)
            self._queue.finish()
            self._memory.release()

    @finalizer
    def __del__(self) -> None:
        """Release the memory if it was not closed."""
        self.close()


def _allocated(device: OpenCLDevice, flags: int, nbytes: int) -> Any:
    try:
        return device.cl.Buffer(device.context, flags, nbytes)
    except device.cl.Error as error:
        raise device.typed(error, nbytes) from error
