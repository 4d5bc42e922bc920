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
from litegpu.backends.base import Recording
from litegpu.backends.calls import bound
from litegpu.backends.folding import fold_launches, groups_of
from litegpu.backends.kept import KeptFiles
from litegpu.backends.opengl_library import OpenGL, error_name
from litegpu.backends.program import BufferRange, Program
from litegpu.backends.shaders import refused, sources_of, too_little_memory
from litegpu.backends.worker import WorkerEndedError
from litegpu.codegen import round_up
from litegpu.errors import CompilationError, DeviceMemoryError, ExecutionError

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
        program = self._program = fold_launches(program, (device.group_limit,) * 3)
        self._programs: dict[str, LinkedProgram] = {}
        self._buffers: list[c_uint32] = []
        self._closed = False
        self._gl.error()  # what is reported from here on, failed here
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
            device.check("recording a partition")
        except BaseException:
            self.close()
            raise

    def _compile(self, kept: KeptFiles) -> None:
        device = self._device
        for text, source in sources_of(self._program, device.dialect):
            device.worker.check()
            key = (source, device.info.name, device.info.driver)
            binary = kept.load(*key)
            try:
                made = device.programs.get(source, partial(device.link, source, binary))
            except CompilationError as error:
                message = refused(device.info.title, text.name, str(error))
                raise CompilationError(message) from error
            if binary is not None and binary == made.refused:
                kept.discard("the driver refuses it", *key)
                binary = None
            if kept.wanted and binary is None:
                kept.store(self._gl.binary(made.number), *key)
            self._programs[text.name] = made

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
        if error == library.CONTEXT_LOST:
            raise self._device.failure(error, "allocating memory")
        if error:
            message = too_little_memory(self._device.info.title, [nbytes], error_name(error))
            raise DeviceMemoryError(message)

    def _record(self) -> Iterator[list[Callable[[], object]]]:
        """Yield the calls of each launch."""
        gl = self._gl.call
        for launch in self._program.launches:
            yield [
                bound(gl.glUseProgram, self._programs[launch.kernel].number),
                *self._binds(launch.ranges),
                bound(gl.glDispatchCompute, *groups_of(launch)),
                bound(gl.glMemoryBarrier, library.SHADER_STORAGE_BARRIER),
            ]

    def _binds(self, slots: Sequence[BufferRange]) -> list[Callable[[], object]]:
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
        first = [*self._copies_in(inputs)]
        for launch in self._launches:
            first += launch
        collect, fetch = self._copies_out(outputs)
        first += collect
        if self.timeout is None:
            return partial(self._device.call, partial(self._make, (*first, *fetch)))
        limited = partial(self._make_within, self.timeout, first, fetch)
        return partial(self._device.call, limited, self.timeout)

    def _copies_in(self, inputs: Sequence[c_void_p]) -> Iterator[Callable[[], object]]:
        gl, source, target = self._gl.call, library.COPY_READ_BUFFER, library.COPY_WRITE_BUFFER
        yield bound(gl.glBindBuffer, source, self._sent)
        yield bound(gl.glBindBuffer, target, self._memory)
        start = 0
        for slot, pointer in zip(self._program.inputs, inputs, strict=True):
            yield bound(gl.glBufferSubData, source, start, slot.size, pointer)
            yield bound(gl.glCopyBufferSubData, source, target, start, slot.offset, slot.size)
            start += slot.size

    def _copies_out(
        self, outputs: Sequence[c_void_p]
    ) -> tuple[list[Callable[[], object]], list[Callable[[], object]]]:
        """Return the calls that collect the results, and those that hand them to the host."""
        gl, source, target = self._gl.call, library.COPY_READ_BUFFER, library.COPY_WRITE_BUFFER
        starts = [0, *accumulate(slot.size for slot in self._program.outputs)]
        places = [*zip(self._program.outputs, starts, outputs, strict=False)]
        collect: list[Callable[[], object]] = [
            bound(gl.glMemoryBarrier, library.BUFFER_UPDATE_BARRIER),
            bound(gl.glBindBuffer, source, self._memory),
            bound(gl.glBindBuffer, target, self._returned),
        ]
        for slot, start, _ in places:
            collect.append(
                bound(gl.glCopyBufferSubData, source, target, slot.offset, start, slot.size)
            )
        fetch: list[Callable[[], object]] = [
            bound(gl.glGetBufferSubData, target, start, slot.size, pointer)
            for slot, start, pointer in places
        ]
        return collect, fetch or [bound(gl.glFinish)]

    def _make(self, calls: Sequence[Callable[[], object]]) -> None:
        if self._closed:
            raise ExecutionError("This partition was released. Make the interpreter anew.")
        for call in calls:
            call()
        self._device.check("running a partition")

    def _make_within(
        self,
        seconds: float,
        first: Sequence[Callable[[], object]],
        fetch: Sequence[Callable[[], object]],
    ) -> None:
        """Make all calls, the last ones only if the caller has not given up by then.

        Raises TimeoutError or, if nobody waits any more, UnwantedError.
        """
        worker = self._device.worker
        self._make([call for each in first for call in (worker.check, each)])
        if not self._gl.finish_within(seconds):
            raise TimeoutError
        worker.commit()
        self._make(fetch)

    def durations(self) -> list[float]:
        """Run launch by launch between time stamps; seconds by the device's clock."""
        return [end - start for start, end in self._device.call(self._spans)]

    def chain_seconds(self) -> float:
        """Return the seconds from before the first launch to after the last."""
        spans = self._device.call(self._spans)
        return spans[-1][1] - spans[0][0] if spans else 0.0

    def _spans(self) -> list[tuple[float, float]]:
        """Return when each launch began and ended, in seconds."""
        gl = self._gl
        stamps: list[c_uint32] = []
        try:
            for launch in self._launches:
                stamps += (gl.make("Queries"), gl.make("Queries"))
                gl.call.glQueryCounter(stamps[-2], library.TIMESTAMP)
                for call in launch:
                    call()
                gl.call.glQueryCounter(stamps[-1], library.TIMESTAMP)
            times = [self._time(stamp) for stamp in stamps]
            self._device.check("measuring a partition")
        finally:
            for stamp in stamps:
                gl.delete("Queries", stamp)
        return list(zip(times[::2], times[1::2], strict=True))

    def _time(self, stamp: c_uint32) -> float:
        """Return the seconds of a time stamp, on the device's clock."""
        value = c_uint64()
        self._gl.call.glGetQueryObjectui64v(stamp, library.QUERY_RESULT, byref(value))
        return value.value * 1e-9

    def read_memory(self) -> npt.NDArray[np.uint8]:
        host = np.empty(self._program.memory_bytes, np.uint8)
        self._device.call(partial(self._read, host))
        return host

    def _read(self, host: npt.NDArray[np.uint8]) -> None:
        gl, target = self._gl.call, library.COPY_READ_BUFFER
        gl.glMemoryBarrier(library.BUFFER_UPDATE_BARRIER)
        gl.glBindBuffer(target, self._memory)
        gl.glGetBufferSubData(target, 0, host.nbytes, host.ctypes.data)
        self._device.check("reading a partition's memory")

    def close(self) -> None:
        """Release shaders and buffers now instead of at the next collection."""
        self._closed = True
        self._programs.clear()
        if not self._device.worker.ended:  # else they went with the context
            with contextlib.suppress(WorkerEndedError):
                self._device.worker.call(partial(_delete, self._gl, self._buffers))

    def __del__(self) -> None:
        """Release what was never closed, some time: this may be any thread, in any state."""
        with contextlib.suppress(Exception):  # parts may be missing, or gone at exit
            if self._buffers:
                self._device.worker.post(partial(_delete, self._gl, self._buffers))


def _delete(gl: OpenGL, buffers: list[c_uint32]) -> None:
    while buffers:
        gl.delete("Buffers", buffers.pop())
