"""OpenGL compute shaders, without a window; one thread per device owns its context."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from ctypes import byref, c_size_t, c_uint32, c_uint64, c_void_p
from dataclasses import replace
from functools import cache, partial

import numpy as np
import numpy.typing as npt

from litegpu.backends import opengl_library as library
from litegpu.backends.base import Backend, Device, DeviceInfo, Program, Recording, Slot
from litegpu.backends.calls import bound
from litegpu.backends.kept import KeptFiles
from litegpu.backends.limits import check_sizes
from litegpu.backends.opengl_library import NoMoreDevicesError, OpenGL, error_name
from litegpu.backends.shaders import (
    Shader,
    refused,
    shader_of,
    sources_of,
    too_little_memory,
)
from litegpu.backends.worker import Worker
from litegpu.codegen import round_up
from litegpu.codegen.glsl import GLSLDialect
from litegpu.errors import (
    CompilationError,
    DeviceMemoryError,
    ExecutionError,
    LitegpuError,
    UnsupportedDeviceError,
)

_MOST_DEVICES = 64
_VENDOR, _RENDERER, _VERSION = 0x1F00, 0x1F01, 0x1F02
_WORK_GROUP_COUNT, _WORK_GROUP_SIZE, _WORK_GROUP_ITEMS = 0x91BE, 0x91BF, 0x90EB
_SHARED_BYTES, _BLOCKS, _BINDINGS = 0x8262, 0x90DB, 0x90DD
_BLOCK_BYTES, _OFFSET_ALIGNMENT = 0x90DE, 0x90DF
_NV_SM_COUNT, _NVX_DEDICATED_KIB = 0x933B, 0x9047
_USUAL_UNITS = 32
"""Compute units to assume of a GPU: only NVIDIA's driver tells."""
_WORD_BYTES = 4
"""Shaders see whole words: the last bytes of a range must not cut one."""
_SOFTWARE = ("llvmpipe", "softpipe", "swrast", "swiftshader", "software", "gdi generic")
_REMEDY = (
    "Install your GPU's driver with its OpenGL part; on Linux also the loaders (apt-get install "
    "libegl1 libgl1), and to run on the CPU: apt-get install libgl1-mesa-dri"
)


class OpenGLBackend(Backend):
    """Any OpenGL 4.3 device: GPUs first, then software."""

    name = "opengl"
    extra = "opengl"

    def devices(self) -> list[DeviceInfo]:
        """Return all devices, real GPUs first."""
        return [info for info, _ in _found()]

    def open(self, index: int) -> Device:
        """Return the device of that index; its context is shared by all delegates."""
        with _opening:
            return _open_once(index)


_opening = threading.Lock()


@cache
def _open_once(index: int) -> OpenGLDevice:
    return OpenGLDevice(*_found()[index])


@cache
def _found() -> list[tuple[DeviceInfo, int]]:
    """Return the usable devices, each with the number by which EGL knows it."""
    # A thread of its own: what is current on the caller's stays current.
    worker = Worker("litegpu-opengl-devices")
    try:
        usable, reasons = worker.call(_look)
    finally:
        worker.stop()
    if not usable:
        causes = "; ".join(dict.fromkeys(reasons)) or "there is no device."
        raise UnsupportedDeviceError(f"OpenGL is not usable: {causes} {_REMEDY}")
    usable.sort(key=lambda info: info.software)
    return [(replace(info, index=index), info.index) for index, info in enumerate(usable)]


def _look() -> tuple[list[DeviceInfo], list[str]]:
    """Return each device that can be opened, by its number for EGL, and why others cannot."""
    usable: list[DeviceInfo] = []
    reasons: list[str] = []
    for number in range(_MOST_DEVICES):
        try:
            gl = OpenGL(number)
        except NoMoreDevicesError:
            break
        except UnsupportedDeviceError as error:
            reasons.append(str(error))
            if not usable and len(reasons) > 1 and reasons[-1] == reasons[-2]:
                break  # the loader itself is missing, for every number
            continue
        usable.append(_describe(gl, number))
        gl.close()
    return usable, reasons


def _describe(gl: OpenGL, number: int) -> DeviceInfo:
    name = gl.text(_RENDERER)
    software = any(word in name.lower() for word in _SOFTWARE)
    memory = _memory(gl) or _host_memory()
    sizes = [gl.integer_of_axis(_WORK_GROUP_SIZE, axis) for axis in (0, 1)]
    return DeviceInfo(
        backend="opengl",
        index=number,
        name=name,
        platform=f"OpenGL, {gl.text(_VENDOR)}",
        driver=gl.text(_VERSION),
        software=software,
        compute_units=(os.cpu_count() or 1) if software else _units(gl),
        memory_bytes=memory,
        max_allocation_bytes=memory,
        max_work_group_size=min(*sizes, gl.integer(_WORK_GROUP_ITEMS)),
        local_memory_bytes=gl.integer(_SHARED_BYTES),
        half_arithmetic=False,
        buffer_alignment=max(gl.integer(_OFFSET_ALIGNMENT), 16),
        max_arguments=min(gl.integer(_BLOCKS), gl.integer(_BINDINGS)),
        max_binding_bytes=gl.integer(_BLOCK_BYTES),
    )


def _units(gl: OpenGL) -> int:
    """Return the compute units where the driver tells, else what is usual."""
    known = "GL_NV_shader_thread_group" in gl.extensions()
    return gl.integer(_NV_SM_COUNT) if known else _USUAL_UNITS


def _memory(gl: OpenGL) -> int:
    """Return the bytes of the device's own memory, 0 where the driver does not tell."""
    known = "GL_NVX_gpu_memory_info" in gl.extensions()
    return gl.integer(_NVX_DEDICATED_KIB) << 10 if known else 0


def _host_memory() -> int:
    """Return the bytes of the host's memory where the system tells, else 4 GiB."""
    if hasattr(os, "sysconf"):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return 4 << 30


class OpenGLDevice(Device):
    """One OpenGL device, and the thread that its context belongs to."""

    dialect = GLSLDialect()

    def __init__(self, info: DeviceInfo, number: int) -> None:
        """Make the context. Raises UnsupportedDeviceError when the driver refuses."""
        self.info = info
        self.worker = Worker(f"litegpu-opengl-{info.index}")
        try:
            self.gl = self.worker.call(lambda: OpenGL(number))
            counts = self.worker.call(self._group_counts)
        except LitegpuError:
            self.worker.stop()
            raise
        self.group_limit = min(counts)
        """Work groups that a launch may have on each axis."""

    def _group_counts(self) -> list[int]:
        return [self.gl.integer_of_axis(_WORK_GROUP_COUNT, axis) for axis in range(3)]

    def record(self, program: Program, cache_dir: str | None = None) -> Recording:
        """Compile, allocate and record. See Device.record."""
        check_sizes(program, self.info)
        return self.worker.call(lambda: OpenGLRecording(self, program, cache_dir))


class OpenGLRecording(Recording):
    """A partition's buffers and shaders, and the calls that run them. Made by the worker."""

    def __init__(self, device: OpenGLDevice, program: Program, cache_dir: str | None) -> None:
        """Compile and allocate. Raises CompilationError or DeviceMemoryError."""
        self._device = device
        self._gl = device.gl
        self._program = program
        self._programs: dict[Shader, int] = {}
        self._buffers: list[c_uint32] = []
        self._closed = False
        try:
            self._compile(KeptFiles(cache_dir, ".glbin"))
            self._memory = self._allocate(program.memory_bytes, None)
            self._constants = self._allocate(program.constants.nbytes, program.constants)
            self._launches = [*self._record()]
            self._gl.check("Recording a partition with OpenGL")
        except LitegpuError:
            self.close()
            raise

    def _compile(self, kept: KeptFiles) -> None:
        device, gl = self._device, self._gl
        limit = device.group_limit
        for shader, text, source in sources_of(self._program, device.dialect, limit):
            key = (source, device.info.name, device.info.driver)
            binary = kept.load(*key)
            made = gl.program_of(binary) if binary else None
            if made is None:
                try:
                    made = gl.compile(source)
                except CompilationError as error:
                    message = refused(device.info.title, text.name, str(error))
                    raise CompilationError(message) from error
                if kept.wanted:
                    kept.store(gl.binary(made), *key)
            self._programs[shader] = made

    def _allocate(self, nbytes: int, data: npt.NDArray[np.uint8] | None) -> int:
        """Return the number of a buffer that holds `data`, or NaN everywhere."""
        gl = self._gl.call
        number = self._gl.make("Buffers")
        self._buffers.append(number)
        gl.glBindBuffer(library.COPY_READ_BUFFER, number)
        address = data.ctypes.data if data is not None and data.size else None
        gl.glBufferData(library.COPY_READ_BUFFER, nbytes, address, library.DYNAMIC_COPY)
        if data is None:
            # Drivers allocate lazily: touching all of it brings an out-of-memory error here, and
            # NaN everywhere makes a read of something never written visible.
            kind = (library.R32UI, library.RED_INTEGER, library.UNSIGNED_INT)
            gl.glClearBufferData(library.COPY_READ_BUFFER, *kind, byref(c_uint32(0xFFFFFFFF)))
            gl.glFinish()
        error = self._gl.error()
        if error:
            message = too_little_memory(self._device.info.title, [nbytes], error_name(error))
            raise DeviceMemoryError(message)
        return number.value

    def _record(self) -> Iterator[list[Callable[[], object]]]:
        """Yield the calls of each launch."""
        gl = self._gl.call
        for dispatch in self._program.dispatches:
            shader, groups = shader_of(dispatch, self._device.group_limit)
            yield [
                bound(gl.glUseProgram, self._programs[shader]),
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
        gl, program, target = self._gl.call, self._program, library.COPY_READ_BUFFER
        calls = [bound(gl.glBindBuffer, target, self._memory)]
        calls += [
            bound(gl.glBufferSubData, target, slot.offset, slot.size, pointer)
            for slot, pointer in zip(program.inputs, inputs, strict=True)
        ]
        for launch in self._launches:
            calls += launch
        calls.append(bound(gl.glMemoryBarrier, library.BUFFER_UPDATE_BARRIER))
        calls += [
            bound(gl.glGetBufferSubData, target, slot.offset, slot.size, pointer)
            for slot, pointer in zip(program.outputs, outputs, strict=True)
        ]
        if not program.outputs:
            calls.append(bound(gl.glFinish))
        return partial(self._device.worker.call, partial(self._make, tuple(calls)))

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
        programs, buffers = [*self._programs.values()], [*self._buffers]
        self._programs.clear()
        self._buffers.clear()
        return partial(_delete, self._gl, programs, buffers)

    def __del__(self) -> None:
        """Release what was never closed, some time: this may be any thread, in any state."""
        with contextlib.suppress(Exception):  # parts may be missing, or gone at exit
            if self._programs or self._buffers:
                self._device.worker.post(self._release())


def _delete(gl: OpenGL, programs: Sequence[int], buffers: Sequence[c_uint32]) -> None:
    for program in programs:
        gl.call.glDeleteProgram(program)
    for buffer in buffers:
        gl.delete("Buffers", buffer)
