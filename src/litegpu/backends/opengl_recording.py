"""A partition on an OpenGL device: shaders and buffers made once, calls prepared, one thread."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from ctypes import byref, c_size_t, c_uint32, c_uint64, c_void_p
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from litegpu.backends import opengl_library as library
from litegpu.backends.base import Program, Recording, Slot
from litegpu.backends.calls import bound
from litegpu.backends.kept import KeptFiles
from litegpu.backends.opengl_library import OpenGL, error_name
from litegpu.backends.shaders import Shader, refused, shader_of, sources_of, too_little_memory
from litegpu.codegen import round_up
from litegpu.errors import CompilationError, DeviceMemoryError, ExecutionError, LitegpuError

if TYPE_CHECKING:
    from litegpu.backends.opengl import LinkedProgram, OpenGLDevice

_WORD_BYTES = 4
"""Shaders see whole words: the last bytes of a range must not cut one."""


class OpenGLRecording(Recording):
    """A partition's buffers and shaders, and the calls that run them. Made by the worker."""

    def __init__(self, device: OpenGLDevice, program: Program, cache_dir: str | None) -> None:
        """Compile and allocate. Raises CompilationError or DeviceMemoryError."""
        self._device = device
        self._gl = device.gl
        self._program = program
        self._programs: dict[Shader, LinkedProgram] = {}
        self._buffers: list[c_uint32] = []
        self._closed = False
        try:
            self._compile(KeptFiles(cache_dir, ".glbin"))
            self._memory = self._allocate(program.memory_bytes)
            self._poison(program.memory_bytes)
            self._constants = self._allocate(program.constants.nbytes, program.constants)
            sent, returned = (
                sum(slot.size for slot in s) for s in (program.inputs, program.outputs)
            )
            self._sent = self._allocate(sent, usage=library.STREAM_DRAW)
            self._returned = self._allocate(returned, usage=library.STREAM_READ)
            self._launches = [*self._record()]
            self._gl.check("Recording a partition with OpenGL")
        except LitegpuError:
            self.close()
            raise

    def _compile(self, kept: KeptFiles) -> None:
        device = self._device
        for shader, text, source in sources_of(self._program, device.dialect, device.group_limit):
            key = (source, device.info.name, device.info.driver)
            binary = kept.load(*key)
            try:
                made = device.programs.get(source, partial(device.link, source, binary))
            except CompilationError as error:
                message = refused(device.info.title, text.name, str(error))
                raise CompilationError(message) from error
            if kept.wanted and binary is None:
                kept.store(self._gl.binary(made.number), *key)
            self._programs[shader] = made

    def _allocate(
        self, nbytes: int, data: npt.NDArray[np.uint8] | None = None, usage: int | None = None
    ) -> int:
        """Return the number of a buffer for the device alone or, with a usage, for the host too.

        Drivers move a buffer that the host reads to the host's memory, so the host has its own.
        """
        gl, target = self._gl.call, library.COPY_READ_BUFFER
        number = self._gl.make("Buffers")
        self._buffers.append(number)
        gl.glBindBuffer(target, number)
        address = data.ctypes.data if data is not None and data.size else None
        if usage is None and gl.glBufferStorage is not None:
            gl.glBufferStorage(target, max(nbytes, _WORD_BYTES), address, 0)
        else:
            gl.glBufferData(target, nbytes, address, usage or library.STATIC_COPY)
        self._check_memory(nbytes)
        return number.value

    def _for_host(self, slots: Sequence[Slot], usage: int) -> int:
        return self._allocate(sum(slot.size for slot in slots), usage=usage)

    def _poison(self, nbytes: int) -> None:
        """Fill the memory with NaN: a read of something never written then shows.

        Drivers allocate lazily: touching all of it brings an out-of-memory error here.
        """
        gl = self._gl.call
        kind = (library.R32UI, library.RED_INTEGER, library.UNSIGNED_INT)
        gl.glClearBufferData(library.COPY_READ_BUFFER, *kind, byref(c_uint32(0xFFFFFFFF)))
        gl.glFinish()
        self._check_memory(nbytes)

    def _check_memory(self, nbytes: int) -> None:
        error = self._gl.error()
        if error:
            message = too_little_memory(self._device.info.title, [nbytes], error_name(error))
            raise DeviceMemoryError(message)

    def _record(self) -> Iterator[list[Callable[[], object]]]:
        """Yield the calls of each launch."""
        gl = self._gl.call
        for dispatch in self._program.dispatches:
            shader, groups = shader_of(dispatch, self._device.group_limit)
            yield [
                bound(gl.glUseProgram, self._programs[shader].number),
                *self._binds(dispatch.slots),
                bound(gl.glDispatchCompute, *groups),
                bound(gl.glMemoryBarrier, library.SHADER_STORAGE_BARRIER),
            ]

    def _binds(self, slots: Sequence[Slot]) -> list[Callable[[], object]]:
        """Return the calls that bind the ranges of a launch: one, where the driver has it."""
        gl, target = self._gl.call, library.SHADER_STORAGE_BUFFER
        buffers = [self._constants if slot.constant else self._memory for slot in slots]
        sizes = [round_up(slot.size, _WORD_BYTES) for slot in slots]
        if gl.glBindBuffersRange is None:
            ranges = zip(buffers, slots, sizes, strict=True)
            return [
                bound(gl.glBindBufferRange, target, place, buffer, slot.offset, size)
                for place, (buffer, slot, size) in enumerate(ranges)
            ]
        count = len(slots)
        arrays = (
            (c_uint32 * count)(*buffers),
            (c_size_t * count)(*(slot.offset for slot in slots)),
            (c_size_t * count)(*sizes),
        )
        return [bound(gl.glBindBuffersRange, target, 0, count, *arrays)]

    def run(self, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        self.bind([*map(c_void_p, inputs)], [*map(c_void_p, outputs)])()

    def bind(self, inputs: Sequence[c_void_p], outputs: Sequence[c_void_p]) -> Callable[[], None]:
        """Return a call that copies in, launches all and copies out, on the context's thread."""
        calls = [*self._copies_in(inputs)]
        for launch in self._launches:
            calls += launch
        calls += self._copies_out(outputs)
        return partial(self._device.worker.call, partial(self._make, tuple(calls)))

    def _copies_in(self, inputs: Sequence[c_void_p]) -> Iterator[Callable[[], object]]:
        gl, source, target = self._gl.call, library.COPY_READ_BUFFER, library.COPY_WRITE_BUFFER
        yield bound(gl.glBindBuffer, source, self._sent)
        yield bound(gl.glBindBuffer, target, self._memory)
        start = 0
        for slot, pointer in zip(self._program.inputs, inputs, strict=True):
            yield bound(gl.glBufferSubData, source, start, slot.size, pointer)
            yield bound(gl.glCopyBufferSubData, source, target, start, slot.offset, slot.size)
            start += slot.size

    def _copies_out(self, outputs: Sequence[c_void_p]) -> Iterator[Callable[[], object]]:
        gl, source, target = self._gl.call, library.COPY_READ_BUFFER, library.COPY_WRITE_BUFFER
        starts = [0, *accumulate(slot.size for slot in self._program.outputs)]
        places = [*zip(self._program.outputs, starts, outputs, strict=False)]
        yield bound(gl.glMemoryBarrier, library.BUFFER_UPDATE_BARRIER)
        yield bound(gl.glBindBuffer, source, self._memory)
        yield bound(gl.glBindBuffer, target, self._returned)
        for slot, start, _ in places:
            yield bound(gl.glCopyBufferSubData, source, target, slot.offset, start, slot.size)
        for slot, start, pointer in places:
            yield bound(gl.glGetBufferSubData, target, start, slot.size, pointer)
        if not places:
            yield bound(gl.glFinish)

    def _make(self, calls: Sequence[Callable[[], object]]) -> None:
        if self._closed:
            raise ExecutionError("This partition was released. Make the interpreter anew.")
        for call in calls:
            call()
        error = self._gl.error()
        if error:
            raise ExecutionError(
                f"Device {self._device.info.title} failed while running a partition: "
                f"{error_name(error)}. Make the interpreter anew; if it happens again, use another "
                "device or no delegate."
            )

    def durations(self) -> list[float]:
        """Run launch by launch between time stamps; seconds by the device's clock."""
        return [end - start for start, end in self._device.worker.call(self._spans)]

    def chain_seconds(self) -> float:
        """Return the seconds from before the first launch to after the last."""
        spans = self._device.worker.call(self._spans)
        return spans[-1][1] - spans[0][0] if spans else 0.0

    def _spans(self) -> list[tuple[float, float]]:
        """Return when each launch began and ended, in seconds."""
        gl = self._gl
        stamps = [gl.make("Queries") for _ in range(2 * len(self._launches))]
        for number, launch in enumerate(self._launches):
            gl.call.glQueryCounter(stamps[2 * number], library.TIMESTAMP)
            for call in launch:
                call()
            gl.call.glQueryCounter(stamps[2 * number + 1], library.TIMESTAMP)
        times = []
        for stamp in stamps:
            value = c_uint64()
            gl.call.glGetQueryObjectui64v(stamp, library.QUERY_RESULT, byref(value))
            times.append(value.value * 1e-9)
            gl.delete("Queries", stamp)
        return list(zip(times[::2], times[1::2], strict=True))

    def read_memory(self) -> npt.NDArray[np.uint8]:
        host = np.empty(self._program.memory_bytes, np.uint8)
        self._device.worker.call(partial(self._read, host))
        return host

    def _read(self, host: npt.NDArray[np.uint8]) -> None:
        gl, target = self._gl.call, library.COPY_READ_BUFFER
        gl.glMemoryBarrier(library.BUFFER_UPDATE_BARRIER)
        gl.glBindBuffer(target, self._memory)
        gl.glGetBufferSubData(target, 0, host.nbytes, host.ctypes.data)

    def close(self) -> None:
        """Release shaders and buffers now instead of at the next collection."""
        self._closed = True
        self._device.worker.call(self._release())

    def _release(self) -> Callable[[], None]:
        """Return the call that releases what is held, once, without holding this object."""
        buffers = [*self._buffers]
        self._programs.clear()
        self._buffers.clear()
        return partial(_delete, self._gl, buffers)

    def __del__(self) -> None:
        """Release what was never closed, some time: this may be any thread, in any state."""
        with contextlib.suppress(Exception):  # parts may be missing, or gone at exit
            if self._buffers:
                self._device.worker.post(self._release())


def _delete(gl: OpenGL, buffers: Sequence[c_uint32]) -> None:
    for buffer in buffers:
        gl.delete("Buffers", buffer)
