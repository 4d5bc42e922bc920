"""A context on an OpenGL device: its buffers, and prepared calls for one thread to make."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from ctypes import byref, c_size_t, c_uint32
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from litegpu.backends.buffers import Bindings, Bytes
from litegpu.backends.execution import ExecutionContext
from litegpu.backends.folding import groups_of
from litegpu.backends.opengl import library
from litegpu.backends.opengl.buffers import WORD_BYTES, Buffers
from litegpu.backends.opengl.profile import OpenGLProfiler
from litegpu.backends.opengl.submission import OpenGLSubmission
from litegpu.backends.program import BufferRange
from litegpu.codegen import round_up
from litegpu.errors import ExecutionError
from litegpu.host.finalizers import finalizer
from litegpu.host.native_calls import bound

if TYPE_CHECKING:
    from litegpu.backends.opengl.device import OpenGLDevice
    from litegpu.backends.opengl.executable import OpenGLExecutable
    from litegpu.backends.opengl.library import OpenGL


class OpenGLContext(ExecutionContext):
    """Memory, buffers for the host, and the calls that run the launches. Created by the worker."""

    executable: OpenGLExecutable

    def __init__(self, executable: OpenGLExecutable) -> None:
        """Allocate. Raises DeviceMemoryError, ExecutionError or DeviceLostError."""
        super().__init__(executable)
        program, device = self.program, executable.device
        self.device: OpenGLDevice = device
        self.gl: OpenGL = device.gl
        self.buffers = Buffers(device)
        self.closed = False
        self.gl.error()  # what is reported from here on, failed here
        try:
            executable.enter(self)
            self.memory = self.buffers.make(program.memory_bytes)
            self._poison()
            sent, returned = (
                sum(part.size for part in parts) for parts in (program.inputs, program.outputs)
            )
            self.sent = self.buffers.make(sent, usage=library.STREAM_DRAW)
            self.returned = self.buffers.make(returned, usage=library.STREAM_READ)
            self.launches: list[list[Callable[[], object]]] = [*self._record()]
            """The calls of each launch."""
            device.check("recording a partition")
        except BaseException:
            self.close()
            raise

    def _poison(self) -> None:
        """Fill the memory with NaN: a read of something never written then shows.

        Drivers allocate lazily: touching all of it brings an out-of-memory error here.
        """
        gl = self.gl.call
        kind = (library.R32UI, library.RED_INTEGER, library.UNSIGNED_INT)
        gl.glClearBufferData(library.COPY_READ_BUFFER, *kind, byref(c_uint32(0xFFFFFFFF)))
        gl.glFinish()
        self.buffers.check_memory(self.program.memory_bytes)

    def _record(self) -> Iterator[list[Callable[[], object]]]:
        gl = self.gl.call
        for launch in self.program.launches:
            yield [
                bound(gl.glUseProgram, self.executable.programs[launch.kernel].number),
                *self._binds(launch.ranges),
                bound(gl.glDispatchCompute, *groups_of(launch)),
                bound(gl.glMemoryBarrier, library.SHADER_STORAGE_BARRIER),
            ]

    def _binds(self, parts: Sequence[BufferRange]) -> list[Callable[[], object]]:
        """Return the calls that bind the ranges of a launch: one, where the driver has it."""
        gl, target = self.gl.call, library.SHADER_STORAGE_BUFFER
        constants = self.executable.constants
        buffers = [constants if part.constant else self.memory for part in parts]
        sizes = [round_up(part.size, WORD_BYTES) for part in parts]
        if gl.glBindBuffersRange is None:
            ranges = zip(buffers, parts, sizes, strict=True)
            return [
                bound(gl.glBindBufferRange, target, binding, buffer, part.offset, size)
                for binding, (buffer, part, size) in enumerate(ranges)
            ]
        count = len(parts)
        arrays = (
            (c_uint32 * count)(*buffers),
            (c_size_t * count)(*(part.offset for part in parts)),
            (c_size_t * count)(*sizes),
        )
        return [bound(gl.glBindBuffersRange, target, 0, count, *arrays)]

    def bind(self, bindings: Bindings) -> OpenGLSubmission:
        """Prepare calls that copy in, launch all and copy out, on the context's thread."""
        bindings.check(self.program, self.device)
        return OpenGLSubmission(self, bindings)

    def make(self, calls: Sequence[Callable[[], object]], what: str = "running") -> None:
        """Make calls, on the worker. Raises ExecutionError or DeviceLostError."""
        if self.device.lost:
            raise self.device.loss()
        if self.closed:
            raise ExecutionError("This partition was released. Create a new interpreter.")
        for call in calls:
            call()
        self.device.check(f"{what} a partition")

    def profiler(self) -> OpenGLProfiler:
        return OpenGLProfiler(self)

    def read_memory(self) -> Bytes:
        self.synchronize()
        host = np.empty(self.program.memory_bytes, np.uint8)
        self.device.call(partial(self._read, host))
        return host

    def _read(self, host: Bytes) -> None:
        gl, target = self.gl.call, library.COPY_READ_BUFFER
        calls: list[Callable[[], object]] = [
            bound(gl.glMemoryBarrier, library.BUFFER_UPDATE_BARRIER),
            bound(gl.glBindBuffer, target, self.memory),
            bound(gl.glGetBufferSubData, target, 0, host.nbytes, host.ctypes.data),
        ]
        self.make(calls, "reading the memory of")

    def close(self) -> None:
        """Release the buffers now instead of at the next collection."""
        self.synchronize()
        self._release()

    def _release(self) -> None:
        self.closed = True
        self.buffers.release()
        self.executable.leave(self)

    @finalizer
    def __del__(self) -> None:
        """Release what was never closed: this may be any thread, in any state."""
        self._release()
