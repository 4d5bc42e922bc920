"""Memory of a GPU, and page-locked memory of the host, which a GPU reaches by itself."""

from __future__ import annotations

import contextlib
import ctypes
from functools import partial
from typing import TYPE_CHECKING, Any

from litegpu.backends.buffers import Bytes, DeviceBuffer, HostBuffer, MemoryKind
from litegpu.backends.cuda_driver import FATAL, TITLE, Handles, call, driver
from litegpu.backends.process import is_inherited, keep_in_children
from litegpu.errors import CudaError, DeviceMemoryError

if TYPE_CHECKING:
    from litegpu.backends.cuda import CUDADevice

PINNED = " of pinned host memory"


def provide(device: CUDADevice, owned: Handles, nbytes: int, kind: str, *making: Any) -> int:
    """Make an address of memory by `making`, as Handles.make does, in the device's context.

    Raises DeviceMemoryError when there is too little.
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


class CUDABuffer(DeviceBuffer):
    """A piece of the GPU's memory; its `handle` is the address."""

    def __init__(self, device: CUDADevice, nbytes: int) -> None:
        """Allocate. Raises DeviceMemoryError, CudaError or DeviceLostError."""
        cu = driver()
        super().__init__(device, 0, 0, nbytes)
        self._device, self._owned = device, Handles()
        keep_in_children(self)
        device.holders.add(self)
        making = (cu.cuMemAlloc, cu.cuMemFree, max(nbytes, 1))
        self.handle = device.within(partial(provide, device, self._owned, nbytes, "", *making))

    def _write(self, offset: int, data: Bytes) -> None:
        self._device.within(partial(self._upload, offset, data))

    def _upload(self, offset: int, data: Bytes) -> None:
        cu = driver()
        call(cu.cuMemcpyHtoD, self.handle + offset, data.ctypes.data, data.nbytes)
        call(cu.cuStreamSynchronize, 0)  # see CUDAExecutable

    def _read(self, offset: int, host: Bytes) -> None:
        ends = (host.ctypes.data, self.handle + offset, host.nbytes)
        self._device.within(partial(call, driver().cuMemcpyDtoH, *ends))

    def close(self) -> None:
        """Release the memory."""
        if not is_inherited(TITLE):
            self.closed = True
            self._device.release(self, self._owned)

    def __del__(self) -> None:
        """Release what was never closed."""
        with contextlib.suppress(Exception):  # parts may be missing, or gone at exit
            self.close()


class CUDAPinnedBuffer(HostBuffer):
    """Page-locked memory of the host."""

    def __init__(self, device: CUDADevice, nbytes: int) -> None:
        """Allocate. Raises DeviceMemoryError, CudaError or DeviceLostError."""
        cu = driver()
        super().__init__(ctypes.c_void_p(), nbytes, MemoryKind.PINNED)
        self._device, self._owned = device, Handles()
        keep_in_children(self)
        device.holders.add(self)
        making = (cu.cuMemHostAlloc, cu.cuMemFreeHost, max(nbytes, 1), 0)
        provided = partial(provide, device, self._owned, nbytes, PINNED, *making)
        self.pointer.value = device.within(provided)

    def close(self) -> None:
        """Release the memory."""
        if not is_inherited(TITLE):
            self.closed, self.pointer.value = True, None
            self._device.release(self, self._owned)

    def __del__(self) -> None:
        """Release what was never closed."""
        with contextlib.suppress(Exception):  # parts may be missing, or gone at exit
            self.close()
