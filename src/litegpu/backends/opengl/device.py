"""The OpenGL device, without a window; one thread per device owns the OpenGL context."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from typing import Any, TypeVar

import numpy as np

from litegpu.backends.base import Backend, Device, DeviceInfo, has_local_memory
from litegpu.backends.buffers import Adopted, Buffer, Bytes, HostBuffer, MemoryKind
from litegpu.backends.execution import Executable
from litegpu.backends.limits import check_sizes
from litegpu.backends.opened import OpenDevices
from litegpu.backends.opengl import buffers as opengl_buffers
from litegpu.backends.opengl import library
from litegpu.backends.opengl.buffers import Buffers, OpenGLBuffer
from litegpu.backends.opengl.executable import OpenGLExecutable
from litegpu.backends.opengl.library import (
    CONTEXT_LOST,
    PACKAGE,
    NoMoreDevicesError,
    OpenGL,
    context_source,
    error_name,
)
from litegpu.backends.opengl.sharing import SharedContext, current, share
from litegpu.backends.program import Program
from litegpu.backends.shaders import Recent, timed_out
from litegpu.codegen.glsl import GLSLDialect
from litegpu.errors import (
    ExecutionError,
    InvokeTimeoutError,
    UnsupportedDeviceError,
)
from litegpu.host.finalizers import finalizer
from litegpu.host.fork_safety import touch
from litegpu.host.private_files import Folder
from litegpu.host.thread_worker import Worker, WorkerEndedError
from litegpu.progress import carried

_Result = TypeVar("_Result")

_MAX_DEVICES = 64
_VENDOR, _RENDERER, _VERSION = 0x1F00, 0x1F01, 0x1F02
_WORK_GROUP_COUNT, _WORK_GROUP_SIZE, _WORK_GROUP_ITEMS = 0x91BE, 0x91BF, 0x90EB
_SHARED_BYTES, _BLOCKS, _BINDINGS = 0x8262, 0x90DB, 0x90DD
_BLOCK_BYTES, _OFFSET_ALIGNMENT = 0x90DE, 0x90DF
_NV_SM_COUNT, _NVX_DEDICATED_KIB = 0x933B, 0x9047
_USUAL_UNITS = 32
"""Assumed compute units of a GPU, because only NVIDIA's driver reports them."""
_SOFTWARE = ("llvmpipe", "softpipe", "swrast", "swiftshader", "software", "gdi generic")
_REMEDY = (
    "Install your GPU's driver with its OpenGL part; on Linux also the loaders (apt-get install "
    "libegl1 libgl1), and to run on the CPU: apt-get install libgl1-mesa-dri"
)


class OpenGLBackend(Backend):
    """The backend for OpenGL 4.3 devices: GPUs first, then software."""

    name = "opengl"
    title = "OpenGL"
    package = PACKAGE

    def devices(self) -> list[DeviceInfo]:
        """Return all devices: GPUs, software, then devices that share an application's buffers."""
        touch(self.title)
        sharing = [device.info for device in _sharing()]
        try:
            return [*(info for info, _ in _found()), *sharing]
        except UnsupportedDeviceError:
            if not sharing:
                raise
            return sharing

    def open(self, index: int) -> Device:
        """Return the device with this index; all delegates share its context."""
        return _opened.get(index)

    def adopt(self, source: Any) -> Adopted | None:
        """Wrap buffers of an application's context. See Backend.adopt."""
        return opengl_buffers.adopt(source, _sharing())


def share_opengl_context() -> DeviceInfo:
    """Return a device that shares the buffers of this thread's current OpenGL context.

    litegpu creates a second context, for a separate thread, that shares buffers with the current
    context. Pass the device's `index` to `GpuDelegate(backend="opengl", device=...)`. Pass the
    application's buffers (a moderngl.Buffer, or `GLBuffer(number)`) to `TensorBuffer.of` or
    `bind_buffer` while the application's context is current. If that context is also current when a
    model runs, the application's earlier commands precede the run. Repeated calls with the same
    current context return the same device.

    Raises UnsupportedDeviceError if no context is current, or if the driver fails.
    """
    touch(OpenGLBackend.title)
    for device in _sharing():
        if device.shares_with_current():
            return device.info
    index = next(_indices)
    _shared[index] = share()
    return _opened.get(index).info


_indices = itertools.count(_MAX_DEVICES)
"""Indices of devices that share buffers, which come after all other devices."""
_shared: dict[int, SharedContext] = {}
"""The shared contexts of devices that are not opened yet."""


def _sharing() -> list[OpenGLDevice]:
    """Return the open devices that share the buffers of an application."""
    opened = [*_opened.devices.values()]
    return [device for device in opened if device.info.index >= _MAX_DEVICES and not device.lost]


def _open(index: int) -> OpenGLDevice:
    if index < _MAX_DEVICES:
        info, number = _found()[index]
        return OpenGLDevice(index, partial(OpenGL.of_device, number), lambda _: info)
    if index not in _shared:
        raise UnsupportedDeviceError(
            f"Device {index} shared its buffers with an application, and is lost. Call "
            "litegpu.share_opengl_context() again."
        )
    context = partial(OpenGL.sharing, _shared.pop(index))
    return OpenGLDevice(index, context, partial(_describe, number=index))


BACKEND = OpenGLBackend()
_opened = OpenDevices(OpenGLBackend.title, _open)


@cache
def _found() -> list[tuple[DeviceInfo, int]]:
    """Return the usable devices, each with its EGL device number."""
    context_source()  # raises if the package is unusable, which affects every device
    # In a separate thread, so that the caller's current context does not change.
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
    """Return the devices that can be opened, with EGL numbers, and the errors of the others."""
    usable: list[DeviceInfo] = []
    reasons: list[str] = []
    for number in range(_MAX_DEVICES):
        try:
            gl = OpenGL.of_device(number)
        except NoMoreDevicesError:
            break
        except UnsupportedDeviceError as error:
            reasons.append(str(error))
            if not usable and len(reasons) > 1 and reasons[-1] == reasons[-2]:
                break  # the loader itself is missing, for every number
            continue
        try:
            usable.append(_describe(gl, number))
        finally:
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
        fast_local_memory=has_local_memory(name),
    )


def _units(gl: OpenGL) -> int:
    """Return the compute units that the driver reports, otherwise a typical number."""
    known = "GL_NV_shader_thread_group" in gl.extensions()
    return gl.integer(_NV_SM_COUNT) if known else _USUAL_UNITS


def _memory(gl: OpenGL) -> int:
    """Return the bytes of the device's memory, 0 if unknown."""
    known = "GL_NVX_gpu_memory_info" in gl.extensions()
    return gl.integer(_NVX_DEDICATED_KIB) << 10 if known else 0


def _host_memory() -> int:
    """Return the bytes of the host's memory, 4 GiB if unknown."""
    if hasattr(os, "sysconf"):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return 4 << 30


class OpenGLDevice(Device):
    """One OpenGL device, and the thread that owns its context."""

    dialect = GLSLDialect()

    def __init__(
        self, index: int, context: Callable[[], OpenGL], describe: Callable[[OpenGL], DeviceInfo]
    ) -> None:
        """Create the context in its thread. Raises UnsupportedDeviceError if the driver fails."""
        self.worker = Worker(f"litegpu-opengl-{index}")
        try:
            self.gl = self.worker.call(partial(_entered, self.worker, context))
            self.info = self.worker.call(partial(describe, self.gl))
            counts = self.worker.call(self._group_counts)
            self._mark = os.urandom(16)
            self._marked = self.worker.call(self._make_mark)
        except BaseException:
            self.worker.stop()
            raise
        self.group_limit = min(counts)
        """Maximum work groups of a launch on each axis."""
        self.programs: Recent[LinkedProgram] = Recent()
        """Programs that partitions with equal kernels share; only the worker uses it."""
        self._followed = 0
        """The application's context that is known to share buffers with the device; 0 for none."""
        self._failed = False

    def _make_mark(self) -> int:
        """Return the number of a buffer that identifies contexts that share with this one."""
        number = Buffers(self).make(len(self._mark), np.frombuffer(self._mark, np.uint8))
        self.gl.call.glFinish()
        return number

    @property
    def shares(self) -> bool:
        """Whether the device shares the application's buffers."""
        return bool(self._followed)

    def shares_with_current(self) -> bool:
        """Return whether this thread's current context shares the buffers."""
        here = current()
        found = bool(here) and self.gl.holds(self._marked, self._mark)
        if found:
            self._followed = here
        return found

    def fence_of_current(self) -> int | None:
        """Return a fence after all commands of the application's context so far.

        Returns None if the application's context is not current on this thread.
        """
        if not self._followed or current() != self._followed:
            return None
        # Makes the writes of its shaders visible to copies.
        self.gl.call.glMemoryBarrier(library.BUFFER_UPDATE_BARRIER)
        return self.gl.fence()

    @finalizer
    def __del__(self) -> None:
        """End the thread, and release the context there."""
        self.worker.stop()

    @property
    def lost(self) -> bool:  # type: ignore[override]
        """Whether the context or its thread has failed permanently."""
        return self._failed or self.worker.ended

    def call(self, function: Callable[[], _Result], timeout: float | None = None) -> _Result:
        """Make a call on the context's thread, and wait at most `timeout` seconds for its end.

        Raises InvokeTimeoutError, DeviceLostError, ForkedProcessError, and the errors of
        `function`.
        """
        try:
            return self.worker.call(function, timeout)
        except TimeoutError as error:
            self.worker.stop()
            raise InvokeTimeoutError(timed_out(self.info.title, timeout)) from error
        except WorkerEndedError as error:
            touch(OpenGLBackend.title)
            raise self.loss(str(error)) from error

    def check(self, what: str) -> None:
        """Raise ExecutionError if a call failed, DeviceLostError if permanently (on the worker)."""
        error = self.gl.error()
        if error:
            raise self.failure(error, what)

    def failure(self, error: int, what: str) -> ExecutionError:
        """Return the exception for an OpenGL error; mark the device as lost if it is."""
        self._failed = self._failed or error == CONTEXT_LOST or self.gl.was_reset()
        if self._failed:
            return self.loss(f"{what}, {error_name(error)}")
        return ExecutionError(
            f"Device {self.info.title} failed while {what}: {error_name(error)}. Create a "
            "new interpreter; if it happens again, use another device or no delegate."
        )

    def link(self, source: str, binary: bytes | None) -> LinkedProgram:
        """Return a program from its cached binary, otherwise from its source."""
        number = self.gl.program_of(binary) if binary else None
        if number is None:
            return LinkedProgram(self, self.gl.compile(source), binary)
        return LinkedProgram(self, number)

    def linked(self, number: int) -> LinkedProgram:
        """Return the object that owns the program with this number."""
        return LinkedProgram(self, number)

    def _group_counts(self) -> list[int]:
        return [self.gl.integer_of_axis(_WORK_GROUP_COUNT, axis) for axis in range(3)]

    def compile(self, program: Program, cache_dir: Folder | None = None) -> Executable:
        """Link a program and upload its constants. See Device.compile."""
        check_sizes(program, self.info)
        return self.call(carried(lambda: OpenGLExecutable(self, program, cache_dir)))

    def load(self, program: Program, binaries: Mapping[str, bytes]) -> Executable:
        """Create a program from linked binaries and upload its constants. See Device.load."""
        check_sizes(program, self.info)
        return self.call(lambda: OpenGLExecutable(self, program, None, binaries))

    def allocate(self, nbytes: int, kind: MemoryKind = MemoryKind.DEVICE) -> Buffer:
        """Allocate memory. See Device.allocate."""
        if kind is not MemoryKind.DEVICE:
            return HostBuffer.allocate(nbytes, kind)
        return self.call(lambda: OpenGLBuffer(self, nbytes))

    def upload(self, data: Bytes) -> Buffer:
        """Return memory that the host cannot write. See Device.upload."""
        return self.call(lambda: OpenGLBuffer(self, data.nbytes, data))


def _entered(worker: Worker, make: Callable[[], OpenGL]) -> OpenGL:
    """Create the context on its thread, which releases the context when it ends."""
    gl = make()
    worker.at_end(gl.close)
    return gl


class LinkedProgram:
    """An OpenGL program that is deleted with its last reference."""

    def __init__(self, device: OpenGLDevice, number: int, refused: bytes | None = None) -> None:
        """Own the program with this number; the driver rejected its cached binary `refused`."""
        self.number = number
        self.refused = refused
        self._delete = partial(device.worker.post, partial(device.gl.call.glDeleteProgram, number))

    @finalizer
    def __del__(self) -> None:
        """Schedule the deletion of the program. Any thread may call this, in any state."""
        self._delete()
