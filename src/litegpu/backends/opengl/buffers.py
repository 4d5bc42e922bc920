"""Buffers of an OpenGL context; the context's thread creates and deletes the buffers."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from ctypes import c_uint32
from functools import partial
from typing import TYPE_CHECKING, Any

from litegpu.backends.buffers import Adopted, BorrowedBuffer, Bytes, DeviceBuffer
from litegpu.backends.opengl import library
from litegpu.backends.opengl.library import OpenGL, error_name
from litegpu.backends.opengl.sharing import GLBuffer
from litegpu.backends.shaders import too_little_memory
from litegpu.errors import BindingError, DeviceMemoryError
from litegpu.host.finalizers import finalizer

if TYPE_CHECKING:
    from litegpu.backends.opengl.device import OpenGLDevice

WORD_BYTES = 4
"""Word size in bytes: shaders access whole words, so a range's last word must fit its buffer."""


class Buffers:
    """Buffers that are deleted together."""

    def __init__(self, device: OpenGLDevice) -> None:
        """Create an empty set of buffers."""
        self._device, self._gl = device, device.gl
        self.numbers: list[c_uint32] = []

    def make(
        self, nbytes: int, data: Bytes | None = None, usage: int | None = None, flags: int = 0
    ) -> int:
        """Return the number of a new buffer for the device or, with `usage`, also for the host.

        Drivers move a buffer that the host reads to host memory, so host-readable buffers are
        separate. `flags` are the flags of glBufferStorage. Only the worker may call this method.
        Raises DeviceMemoryError or DeviceLostError.
        """
        gl, target = self._gl.call, library.COPY_READ_BUFFER
        number = self._gl.make("Buffers")
        self.numbers.append(number)
        gl.glBindBuffer(target, number)
        address = data.ctypes.data if data is not None and data.size else None
        if usage is None and gl.glBufferStorage is not None:
            gl.glBufferStorage(target, max(nbytes, WORD_BYTES), address, flags)
        else:
            gl.glBufferData(target, nbytes, address, usage or library.STATIC_COPY)
        self.check_memory(nbytes)
        return number.value

    def check_memory(self, nbytes: int) -> None:
        """Raise DeviceMemoryError or DeviceLostError if a call failed (on the worker)."""
        error = self._gl.error()
        if error == library.CONTEXT_LOST:
            raise self._device.failure(error, "allocating memory")
        if error:
            message = too_little_memory(self._device.info.title, [nbytes], error_name(error))
            raise DeviceMemoryError(message)

    def release(self) -> None:
        """Schedule the deletion of all buffers. Any thread may call this, in any state."""
        if self.numbers:  # if the worker has ended, the context and its buffers are gone
            self._device.worker.post(partial(_delete, self._gl, self.numbers))


def _delete(gl: OpenGL, numbers: list[c_uint32]) -> None:
    while numbers:
        gl.delete("Buffers", numbers.pop())


class _OpenGLMemory(DeviceBuffer):
    """A buffer of the device; `handle` is OpenGL's number of the buffer."""

    device: OpenGLDevice

    def _write(self, offset: int, data: Bytes) -> None:
        ends = (offset, data.nbytes, data.ctypes.data)
        self.device.call(partial(self._copy, "glBufferSubData", *ends))

    def _read(self, offset: int, host: Bytes) -> None:
        ends = (offset, host.nbytes, host.ctypes.data)
        self.device.call(partial(self._copy, "glGetBufferSubData", *ends))

    def _take(self, offset: int, source: DeviceBuffer) -> None:
        self.device.call(partial(self._copy_here, source, offset))

    def _copy_here(self, source: DeviceBuffer, offset: int) -> None:
        gl = self.device.gl.call
        ends = (library.COPY_READ_BUFFER, library.COPY_WRITE_BUFFER)
        gl.glMemoryBarrier(library.BUFFER_UPDATE_BARRIER)
        for target, each in zip(ends, (source, self), strict=True):
            gl.glBindBuffer(target, each.handle)
        gl.glCopyBufferSubData(*ends, source.offset, offset, source.nbytes)
        gl.glFinish()
        self.device.check("copying a buffer")

    def _copy(self, function: str, offset: int, nbytes: int, address: int) -> None:
        gl, target = self.device.gl.call, library.COPY_READ_BUFFER
        gl.glMemoryBarrier(library.BUFFER_UPDATE_BARRIER)
        gl.glBindBuffer(target, self.handle)
        getattr(gl, function)(target, offset, nbytes, address)
        self.device.check("copying a buffer")


class OpenGLBuffer(_OpenGLMemory):
    """A buffer with a separate allocation."""

    def __init__(self, device: OpenGLDevice, nbytes: int, data: Bytes | None = None) -> None:
        """Allocate memory, on the worker; with `data`, the host cannot write to it later.

        Raises DeviceMemoryError or DeviceLostError.
        """
        self._buffers = Buffers(device)
        device.gl.error()  # discard earlier errors: later ones are due to this allocation
        flags = library.DYNAMIC_STORAGE if data is None else 0
        super().__init__(device, self._buffers.make(nbytes, data, flags=flags), 0, nbytes)

    def close(self) -> None:
        """Release the memory."""
        self.closed = True
        self._buffers.release()

    @finalizer
    def __del__(self) -> None:
        """Release the memory if it was not closed."""
        self.close()


class OpenGLBorrowedBuffer(BorrowedBuffer, _OpenGLMemory):
    """A buffer of the application's context, whose earlier commands run before each copy."""

    def check_there(self) -> None:
        """Raise BindingError if the application has deleted the buffer (on the worker).

        OpenGL may reuse a deleted buffer's number; moderngl's object reports the deletion.
        """
        released = type(getattr(self.owner, "mglo", None)).__name__ == "InvalidObject"
        found = None if released else self.device.gl.bytes_of(self.handle)
        if found is None or found < self.nbytes:
            now = "is deleted" if found is None else f"now has {found} bytes"
            raise BindingError(
                f"The bound OpenGL buffer {self.handle} of {self.nbytes} bytes {now}. Do not "
                "delete or shrink a buffer that a model uses, or bind another buffer."
            )

    def _copy(self, function: str, offset: int, nbytes: int, address: int) -> None:
        self.check_there()
        super()._copy(function, offset, nbytes, address)
        self.device.gl.call.glFinish()  # for the application's context

    def _write(self, offset: int, data: Bytes) -> None:
        self._follow()
        super()._write(offset, data)

    def _read(self, offset: int, host: Bytes) -> None:
        self._follow()
        super()._read(offset, host)

    def _follow(self) -> None:
        fence = self.device.fence_of_current()
        if fence is not None:
            self.device.call(partial(self.device.gl.follow, fence))


def adopt(source: Any, devices: Iterable[OpenGLDevice]) -> Adopted | None:
    """Wrap a moderngl.Buffer or a GLBuffer as a buffer; return None for other objects.

    `devices` are the devices that share an application's context. Raises BindingError. See
    Backend.adopt.
    """
    moderngl = sys.modules.get("moderngl")
    if moderngl is not None and isinstance(source, moderngl.Buffer):
        number = source.glo
    elif isinstance(source, GLBuffer):
        number = source.number
    else:
        return None
    for device in devices:
        if device.shares_with_current():
            nbytes = device.call(partial(device.gl.bytes_of, number))
            if nbytes is None:
                raise BindingError(
                    f"{number} is not the name of a buffer in the current OpenGL context. Give "
                    "the name of a buffer that has been bound and has memory."
                )
            return Adopted(OpenGLBorrowedBuffer(device, number, 0, nbytes, source))
    raise BindingError(
        "litegpu shares no buffers with the OpenGL context that is current on this thread. Make "
        "the application's context current, call litegpu.share_opengl_context(), and run the "
        "model on the returned device."
    )
