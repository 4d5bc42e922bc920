"""An execution context on an OpenGL device: its buffers, and prepared calls for its thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from ctypes import byref, c_size_t, c_uint32
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from litegpu.backends.buffers import Bindings, Bytes, DeviceBuffer
from litegpu.backends.direct_updates import DirectUpdates, direct_updates
from litegpu.backends.execution import ExecutionContext, without_streams
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
    """Memory, buffers for the host, and prepared launches. The worker creates the context."""

    executable: OpenGLExecutable

    def __init__(self, executable: OpenGLExecutable) -> None:
        """Allocate memory. Raises DeviceMemoryError, ExecutionError or DeviceLostError."""
        super().__init__(executable)
        program, device = self.program, executable.device
        self.device: OpenGLDevice = device
        self.gl: OpenGL = device.gl
        self.buffers = Buffers(device)
        self.closed = False
        self.gl.error()  # discard earlier errors: later ones are due to the calls below
        try:
            executable.enter(self)
            self.memory = self.buffers.make(program.memory_bytes)
            self._poison()
            sent, returned = (
                sum(part.size for part in parts) for parts in (program.inputs, program.outputs)
            )
            self.sent = self.buffers.make(sent, usage=library.STREAM_DRAW)
            self.returned = self.buffers.make(returned, usage=library.STREAM_READ)
            self.launches: list[list[Callable[[], object]]] = [*self._record(DirectUpdates())]
            """The calls of each launch."""
            device.check("recording a partition")
        except BaseException:
            self.close()
            raise

    def _poison(self) -> None:
        """Fill the memory with NaN, which makes reads of uninitialized memory visible.

        A driver allocates lazily, so a write of all memory makes an out-of-memory error occur here.
        """
        gl = self.gl.call
        kind = (library.R32UI, library.RED_INTEGER, library.UNSIGNED_INT)
        gl.glClearBufferData(library.COPY_READ_BUFFER, *kind, byref(c_uint32(0xFFFFFFFF)))
        gl.glFinish()
        self.buffers.check_memory(self.program.memory_bytes)

    def _record(self, direct: DirectUpdates) -> Iterator[list[Callable[[], object]]]:
        gl = self.gl.call
        for number, launch in enumerate(self.program.launches):
            places = [
                direct.argument(number, argument, part)
                for argument, part in enumerate(launch.ranges)
            ]
            yield [
                bound(gl.glUseProgram, self.executable.programs[launch.kernel].number),
                *self._binds(launch.ranges, places),
                bound(gl.glDispatchCompute, *groups_of(launch)),
                bound(gl.glMemoryBarrier, library.SHADER_STORAGE_BARRIER),
            ]

    def _binds(
        self, parts: Sequence[BufferRange], places: Sequence[tuple[DeviceBuffer | None, int]]
    ) -> list[Callable[[], object]]:
        """Return the calls that bind the buffer ranges of a launch; one call if possible."""
        gl, target = self.gl.call, library.SHADER_STORAGE_BUFFER
        constants_of, starts = self.executable.constants_of, [start for _, start in places]
        buffers = [
            (constants_of(part) if part.constant else self.memory)
            if buffer is None
            else buffer.handle
            for part, (buffer, _) in zip(parts, places, strict=True)
        ]
        sizes = [round_up(part.size, WORD_BYTES) for part in parts]
        if gl.glBindBuffersRange is None:
            ranges = zip(buffers, starts, sizes, strict=True)
            return [
                bound(gl.glBindBufferRange, target, binding, *each)
                for binding, each in enumerate(ranges)
            ]
        count = len(parts)
        arrays = (
            (c_uint32 * count)(*buffers),
            (c_size_t * count)(*starts),
            (c_size_t * count)(*sizes),
        )
        return [bound(gl.glBindBuffersRange, target, 0, count, *arrays)]

    def bind(self, bindings: Bindings) -> OpenGLSubmission:
        """Prepare the calls that copy inputs, launch and copy outputs, on the context's thread."""
        bindings.check(self.program, self.device)
        return OpenGLSubmission(self, bindings)

    def bind_cached(self, bindings: Bindings, stream: int | None = None) -> OpenGLSubmission:
        """Prepare a run as `bind` does, but with kernels that update device memory in place."""
        if stream is not None:
            raise without_streams()
        bindings.check(self.program, self.device)
        direct = direct_updates(self.program, bindings, self.device.info.buffer_alignment)
        return OpenGLSubmission(self, bindings, direct)

    def launches_on(self, direct: DirectUpdates) -> list[list[Callable[[], object]]]:
        """Return the calls of each launch, with some arguments bound to other memory."""
        return [*self._record(direct)] if direct.uses else self.launches

    def make(self, calls: Sequence[Callable[[], object]], what: str = "running") -> None:
        """Make calls on the worker. Raises ExecutionError or DeviceLostError."""
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
        """Release the buffers immediately, not at the next garbage collection."""
        self.synchronize()
        self._release()

    def _release(self) -> None:
        self.closed = True
        self.buffers.release()
        self.executable.leave(self)

    @finalizer
    def __del__(self) -> None:
        """Release the buffers that `close` did not release. Any thread may call this."""
        self._release()
