"""Buffers in GPU memory, and in page-locked host memory that a GPU accesses directly."""

from __future__ import annotations

import ctypes
from functools import partial
from typing import TYPE_CHECKING, Any

from litegpu.backends.buffers import (
    BorrowedBuffer,
    Bytes,
    DeviceBuffer,
    HostBuffer,
    MemoryKind,
)
from litegpu.backends.cuda.driver import FATAL, TITLE, Handles, call, driver
from litegpu.codegen import round_up
from litegpu.errors import CudaError, DeviceMemoryError
from litegpu.host.finalizers import finalizer
from litegpu.host.fork_safety import is_inherited, keep_in_children

if TYPE_CHECKING:
    from litegpu.backends.cuda.device import CUDADevice

PINNED = " of pinned host memory"
UNIT = 16
"""Granularity of copies by kernels, in bytes."""
_UPLOAD_BYTES = 4 << 20
"""Size in bytes of the pinned memory of an uploading thread."""
NO_TIMES = 2
"""CU_EVENT_DISABLE_TIMING: an event without timing has less overhead."""


def provide(device: CUDADevice, owned: Handles, nbytes: int, kind: str, *making: Any) -> int:
    """Allocate memory in the device's context by `making`, see Handles.make; return its address.

    Raises DeviceMemoryError if memory is insufficient.
    """
    try:
        return int(owned.make(*making))
    except CudaError as error:
        if error.code in FATAL:
            raise
        raise DeviceMemoryError(
            f"{device.info.name} cannot provide {nbytes} bytes{kind}: {error} Close "
            "other programs, use precision='fp16' or a smaller batch."
        ) from error


def _whole_units(nbytes: int) -> int:
    return max(round_up(nbytes, UNIT), UNIT)


class _CUDAMemory(DeviceBuffer):
    """A range of GPU memory; `handle` is its address."""

    device: CUDADevice

    def _write(self, offset: int, data: Bytes) -> None:
        self.device.within(partial(self._upload, offset, data))

    def _upload(self, offset: int, data: Bytes) -> None:
        cu = driver()
        call(cu.cuMemcpyHtoD, self.handle + offset, data.ctypes.data, data.nbytes)
        call(cu.cuStreamSynchronize, 0)  # see CUDAExecutable

    def _take(self, offset: int, source: DeviceBuffer) -> None:
        self.device.within(partial(self._copy_here, offset, source))

    def _copy_here(self, offset: int, source: DeviceBuffer) -> None:
        cu = driver()
        for each in (self, source):
            if isinstance(each, CUDABorrowedBuffer):
                each.await_arrival()
        start = source.handle + source.offset
        call(cu.cuMemcpyDtoD, self.handle + offset, start, source.nbytes)
        call(cu.cuStreamSynchronize, 0)  # such a copy does not wait by itself

    def _read(self, offset: int, host: Bytes) -> None:
        io = (host.ctypes.data, self.handle + offset, host.nbytes)
        self.device.within(partial(call, driver().cuMemcpyDtoH, *io))


class CUDABuffer(_CUDAMemory):
    """A range of GPU memory, owned by this buffer."""

    def __init__(self, device: CUDADevice, nbytes: int) -> None:
        """Allocate GPU memory. Raises DeviceMemoryError, CudaError or DeviceLostError."""
        cu = driver()
        super().__init__(device, 0, 0, nbytes)
        self._owned = Handles()
        keep_in_children(self)
        device.holders.add(self)
        making = (cu.cuMemAlloc, cu.cuMemFree, _whole_units(nbytes))
        self.handle = device.within(partial(provide, device, self._owned, nbytes, "", *making))

    def close(self) -> None:
        """Release the memory."""
        if not is_inherited(TITLE):
            self.closed = True
            self.device.release(self, self._owned)

    @finalizer
    def __del__(self) -> None:
        """Release the memory if it was not closed."""
        self.close()


class CUDAUploader:
    """Uploads from one thread through pinned memory, while other threads do the same.

    The driver copies other host memory through pinned memory of its own, one copy at a time.
    """

    def __init__(self, device: CUDADevice) -> None:
        """Allocate pinned memory. Raises DeviceMemoryError, CudaError or DeviceLostError."""
        cu = driver()
        self._device, self._owned = device, Handles()
        keep_in_children(self)
        device.holders.add(self)
        making = (cu.cuStreamCreate, cu.cuStreamDestroy, 1)
        self._stream: Any = device.within(partial(self._owned.make, *making))
        self._pinned = CUDAPinnedBuffer(device, _UPLOAD_BYTES)

    def upload(self, data: Bytes) -> CUDABuffer:
        """Return GPU memory with these bytes. See Device.upload."""
        buffer = CUDABuffer(self._device, data.nbytes)
        self._device.within(partial(self._copy, buffer.handle, data))
        return buffer

    def _copy(self, target: int, data: Bytes) -> None:
        cu, own = driver(), self._pinned.address
        for start in range(0, data.nbytes, _UPLOAD_BYTES):
            nbytes = min(_UPLOAD_BYTES, data.nbytes - start)
            ctypes.memmove(own, data.ctypes.data + start, nbytes)
            call(cu.cuMemcpyAsync, target + start, own, nbytes, self._stream)
            call(cu.cuStreamSynchronize, self._stream)

    @finalizer
    def __del__(self) -> None:
        """Release the stream."""
        if not is_inherited(TITLE):
            self._device.release(self, self._owned)


class CUDABorrowedBuffer(BorrowedBuffer, _CUDAMemory):
    """A range of GPU memory of another library.

    An access to the buffer waits for the work that was in the library's stream when the memory was
    wrapped.
    """

    def __init__(
        self, device: CUDADevice, address: int, nbytes: int, owner: object, stream: int | None
    ) -> None:
        """Wrap memory that is ready once the current work of `stream`, if any, is done."""
        super().__init__(device, address, 0, nbytes, owner)
        self._owned = Handles()
        self.arrival: int | None = None
        """The event after which litegpu may access the memory; None if the memory is ready."""
        keep_in_children(self)
        device.holders.add(self)
        if stream is not None:
            device.within(partial(self._note_arrival, stream))

    def _note_arrival(self, stream: int) -> None:
        cu = driver()
        event = self._owned.make(cu.cuEventCreate, cu.cuEventDestroy, NO_TIMES)
        call(cu.cuEventRecord, event, stream)
        self.arrival = int(event)

    def _upload(self, offset: int, data: Bytes) -> None:
        self.await_arrival()
        super()._upload(offset, data)

    def _read(self, offset: int, host: Bytes) -> None:
        self.device.within(self.await_arrival)
        super()._read(offset, host)

    def await_arrival(self) -> None:
        """Wait until litegpu may access the memory."""
        if self.arrival is not None:
            call(driver().cuEventSynchronize, self.arrival)

    def close(self) -> None:
        """Release the memory."""
        if not is_inherited(TITLE):
            super().close()
            self.device.release(self, self._owned)

    @finalizer
    def __del__(self) -> None:
        """Release the memory if it was not closed."""
        self.close()


class CUDAPinnedBuffer(HostBuffer):
    """Page-locked host memory."""

    def __init__(self, device: CUDADevice, nbytes: int) -> None:
        """Allocate page-locked memory. Raises DeviceMemoryError, CudaError or DeviceLostError."""
        cu = driver()
        super().__init__(ctypes.c_void_p(), nbytes, MemoryKind.PINNED)
        self._device, self._owned = device, Handles()
        keep_in_children(self)
        device.holders.add(self)
        making = (cu.cuMemHostAlloc, cu.cuMemFreeHost, _whole_units(nbytes), 0)
        provided = partial(provide, device, self._owned, nbytes, PINNED, *making)
        self.pointer.value = device.within(provided)

    def close(self) -> None:
        """Release the memory."""
        if not is_inherited(TITLE):
            self.closed, self.pointer.value = True, None
            self._device.release(self, self._owned)

    @finalizer
    def __del__(self) -> None:
        """Release the memory if it was not closed."""
        self.close()
