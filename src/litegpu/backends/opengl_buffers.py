"""Buffers of an OpenGL context. They are made by its thread, and deleted there."""

from __future__ import annotations

import contextlib
from ctypes import c_uint32
from functools import partial
from typing import TYPE_CHECKING

from litegpu.backends import opengl_library as library
from litegpu.backends.buffers import Bytes, DeviceBuffer
from litegpu.backends.opengl_library import OpenGL, error_name
from litegpu.backends.shaders import too_little_memory
from litegpu.errors import DeviceMemoryError

if TYPE_CHECKING:
    from litegpu.backends.opengl import OpenGLDevice

WORD_BYTES = 4
"""Shaders see whole words: the last bytes of a range must not cut one."""


class Buffers:
    """Buffers that are deleted together."""

    def __init__(self, device: OpenGLDevice) -> None:
        """Hold none yet."""
        self._device, self._gl = device, device.gl
        self.numbers: list[c_uint32] = []

    def make(
        self, nbytes: int, data: Bytes | None = None, usage: int | None = None, flags: int = 0
    ) -> int:
        """Return the number of a buffer for the device alone or, with a usage, for the host too.

        Drivers move a buffer that the host reads to the host's memory, so the host has its own.
        `flags` are those of glBufferStorage. On the worker. Raises DeviceMemoryError or
        DeviceLostError.
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
        """Raise DeviceMemoryError or DeviceLostError if a call has failed. On the worker."""
        error = self._gl.error()
        if error == library.CONTEXT_LOST:
            raise self._device.failure(error, "allocating memory")
        if error:
            message = too_little_memory(self._device.info.title, [nbytes], error_name(error))
            raise DeviceMemoryError(message)

    def release(self) -> None:
        """Have all deleted some time: this may be any thread, in any state."""
        if self.numbers:  # and if the worker has ended, they went with the context
            self._device.worker.post(partial(_delete, self._gl, self.numbers))


def _delete(gl: OpenGL, numbers: list[c_uint32]) -> None:
    while numbers:
        gl.delete("Buffers", numbers.pop())


class OpenGLBuffer(DeviceBuffer):
    """A buffer of the device; its `handle` is OpenGL's number."""

    def __init__(self, device: OpenGLDevice, nbytes: int) -> None:
        """Allocate, on the worker. Raises DeviceMemoryError or DeviceLostError."""
        self._device = device
        self._buffers = Buffers(device)
        device.gl.error()  # what is reported from here on, failed here
        super().__init__(
            device, self._buffers.make(nbytes, flags=library.DYNAMIC_STORAGE), 0, nbytes
        )

    def _write(self, offset: int, data: Bytes) -> None:
        ends = (offset, data.nbytes, data.ctypes.data)
        self._device.call(partial(self._copy, "glBufferSubData", *ends))

    def _read(self, offset: int, host: Bytes) -> None:
        ends = (offset, host.nbytes, host.ctypes.data)
        self._device.call(partial(self._copy, "glGetBufferSubData", *ends))

    def _copy(self, function: str, offset: int, nbytes: int, address: int) -> None:
        gl, target = self._device.gl.call, library.COPY_READ_BUFFER
        gl.glMemoryBarrier(library.BUFFER_UPDATE_BARRIER)
        gl.glBindBuffer(target, self.handle)
        getattr(gl, function)(target, offset, nbytes, address)
        self._device.check("copying a buffer")

    def close(self) -> None:
        """Release the memory."""
        self.closed = True
        self._buffers.release()

    def __del__(self) -> None:
        """Release what was never closed."""
        with contextlib.suppress(Exception):  # parts may be missing, or gone at exit
            self.close()
