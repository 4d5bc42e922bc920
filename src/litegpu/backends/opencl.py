"""OpenCL through pyopencl; the calls of an invoke go to the OpenCL library directly."""

from __future__ import annotations

import contextlib
import logging
import time
import warnings
from collections.abc import Callable, Sequence
from ctypes import c_void_p
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from litegpu.backends.base import Backend, Device, DeviceInfo, Dispatch, Program, Recording, Slot
from litegpu.backends.calls import bound
from litegpu.backends.limits import check_sizes
from litegpu.backends.opencl_commands import CommandBuffer, EnqueueLoop
from litegpu.backends.opencl_library import (
    Call,
    Kernel,
    library,
    load_pocl_apart,
    status_name,
)
from litegpu.backends.opencl_profile import Profiler
from litegpu.backends.opened import OpenDevices
from litegpu.backends.packages import load
from litegpu.backends.process import touch
from litegpu.codegen import KernelText
from litegpu.codegen.opencl import OpenCLDialect
from litegpu.errors import (
    CompilationError,
    DeviceMemoryError,
    ExecutionError,
    LitegpuError,
    UnsupportedDeviceError,
    missing_dependency,
)

_log = logging.getLogger("litegpu")
_GPU, _CPU = 1 << 2, 1 << 1
"""Bits of CL_DEVICE_TYPE."""

_ALIGNMENT = 128
"""Bytes; loads of a work group then begin at a cache line."""
_TOO_LITTLE_MEMORY = (
    "INVALID_BUFFER_SIZE",
    "MEM_OBJECT_ALLOCATION_FAILURE",
    "OUT_OF_HOST_MEMORY",
    "OUT_OF_RESOURCES",
)
_POCL = "to run on the CPU: apt-get install pocl-opencl-icd"


def _pyopencl() -> Any:
    missing = partial(missing_dependency, "pyopencl", "opencl", "The OpenCL backend")
    return load("pyopencl", "pyopencl", missing)


class OpenCLBackend(Backend):
    """Any OpenCL 1.2 device: GPUs first, then accelerators, then CPUs."""

    name = "opencl"
    title = "OpenCL"
    package = "pyopencl"

    def devices(self) -> list[DeviceInfo]:
        """Return all devices of all platforms, real GPUs first."""
        return [_describe(i, device) for i, device in enumerate(_raw_devices())]

    def open(self, index: int) -> Device:
        """Return the device of that index; its context is shared by all delegates."""
        return _opened.get(index)


def _open(index: int) -> OpenCLDevice:
    device = _raw_devices()[index]
    return OpenCLDevice(_describe(index, device), device)


_opened = OpenDevices(OpenCLBackend.title, _open)


def _raw_devices() -> list[Any]:
    cl = _pyopencl()
    touch(OpenCLBackend.title)
    load_pocl_apart()
    try:
        platforms = cl.get_platforms()
    except cl.Error as error:
        raise UnsupportedDeviceError(
            f"OpenCL finds no platform ({error}). Install your GPU's driver with its OpenCL "
            f"part; {_POCL}"
        ) from error
    found = []
    for platform in platforms:
        try:
            found += platform.get_devices()
        except cl.Error:  # a platform without devices reports an error
            continue
    if not found:
        names = ", ".join(platform.name for platform in platforms) or "none"
        cache = " (PoCL must be able to write to POCL_CACHE_DIR)" if "Portable" in names else ""
        raise UnsupportedDeviceError(
            f"OpenCL has no devices (platforms: {names}). Check that the GPU's driver is "
            f"loaded{cache}; {_POCL}"
        )
    return sorted(found, key=_rank)


def _rank(device: Any) -> tuple[bool, bool]:
    return bool(device.type & _CPU), not device.type & _GPU


def _describe(index: int, device: Any) -> DeviceInfo:
    extensions = device.extensions.split()
    return DeviceInfo(
        backend="opencl",
        index=index,
        name=device.name.strip(),
        platform=device.platform.name.strip(),
        driver=f"{device.driver_version} ({device.version.strip()})",
        software=bool(device.type & _CPU),
        compute_units=device.max_compute_units,
        memory_bytes=device.global_mem_size,
        max_allocation_bytes=device.max_mem_alloc_size,
        max_work_group_size=device.max_work_group_size,
        local_memory_bytes=device.local_mem_size,
        half_arithmetic="cl_khr_fp16" in extensions,
        buffer_alignment=_ALIGNMENT,
        max_arguments=device.max_parameter_size // 16,
    )


class OpenCLDevice(Device):
    """One OpenCL device with its context."""

    dialect = OpenCLDialect()

    def __init__(self, info: DeviceInfo, device: Any) -> None:
        """Create the context. Raises UnsupportedDeviceError when the driver refuses."""
        self.info = info
        self._cl = _pyopencl()
        self._device = device
        try:
            self.context = self._cl.Context([device])
        except self._cl.Error as error:
            raise UnsupportedDeviceError(
                f"OpenCL device '{info.name}' cannot be opened: {error}. "
                "`litegpu devices` lists the others."
            ) from error

    def record(self, program: Program, cache_dir: str | None = None) -> Recording:
        """Compile, allocate and record. See Device.record."""
        built = self._compile(program.kernels, cache_dir)
        return OpenCLRecording(self._cl, self, program, built)

    def _compile(self, kernels: Sequence[KernelText], cache_dir: str | None) -> Any:
        """Return the built program, None when there is nothing to build."""
        if not kernels:
            return None
        source = self.dialect.prelude + "\n".join(map(self.dialect.kernel, kernels))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the build log of a successful build
                return self._build(source, cache_dir)
        except self._cl.RuntimeError as error:
            names = ", ".join(kernel.name for kernel in kernels)
            raise CompilationError(
                f"OpenCL device '{self.info.name}' ({self.info.driver}) refuses the kernels "
                f"{names}: {error}. LITEGPU_DEBUG=2 prints their sources; precision='fp32' or "
                "another backend may help."
            ) from error

    def _build(self, source: str, cache_dir: str | None) -> Any:
        """Build a program, with a cache of pyopencl's only where one is asked for.

        Drivers keep caches of their own. That of pyopencl cannot work in a home directory which
        is not writable, and waits up to a minute for a lock that a killed process left behind.
        """
        options = ["-cl-std=CL1.2"]
        if cache_dir is not None:
            try:
                return self._program(source).build(options, cache_dir=cache_dir)
            except self._cl.Error:
                raise
            except Exception as error:
                _log.warning(
                    "Compiled kernels cannot be kept in '%s' (%s: %s); check serialization_dir.",
                    *(cache_dir, type(error).__name__, error),
                )
        return self._program(source).build(options, cache_dir=False)

    def _program(self, source: str) -> Any:
        return self._cl.Program(self.context, source)


class OpenCLRecording(Recording):
    """A partition's buffers, kernels and commands on one in-order queue."""

    def __init__(self, cl: Any, device: OpenCLDevice, program: Program, built: Any) -> None:
        """Allocate and record; raises DeviceMemoryError when the device has too little."""
        self._cl = cl
        self._device = device
        self._program = program
        self._queue = cl.CommandQueue(device.context)
        self._profiler: Profiler | None = None
        self._memory: Any = None
        self._constants: Any = None
        self._closed = False
        self._commands: CommandBuffer | EnqueueLoop | None = None
        self._kernels: list[Kernel] = []
        check_sizes(program, device.info)
        try:
            self._allocate(program)
            for dispatch in program.dispatches:
                self._kernels.append(self._kernel(built, dispatch))
            self._commands = self._record()
        except ExecutionError:
            self.close()
            raise
        except cl.Error as error:
            self.close()
            raise self._typed(error, program) from error

    def _typed(self, error: Exception, program: Program) -> LitegpuError:
        name = self._device.info.name
        text = str(error)
        if any(code in text for code in _TOO_LITTLE_MEMORY):
            nbytes = program.memory_bytes + int(program.constants.size)
            return DeviceMemoryError(
                f"OpenCL device '{name}' cannot provide {nbytes} bytes: {text}. Close other "
                "programs, use precision='fp16' or a smaller batch."
            )
        return ExecutionError(
            f"OpenCL device '{name}' cannot record the partition: {text}. "
            "Another backend may work; `litegpu devices` lists them."
        )

    def _allocate(self, program: Program) -> None:
        flags = self._cl.mem_flags
        context = self._device.context
        self._memory = self._cl.Buffer(context, flags.READ_WRITE, program.memory_bytes)
        # Drivers allocate lazily: touching all of it brings an out-of-memory error here, and
        # NaN everywhere makes a read of something never written visible.
        poison = np.full(1, 0xFF, np.uint8)
        self._cl.enqueue_fill_buffer(self._queue, self._memory, poison, 0, program.memory_bytes)
        self._queue.finish()
        if program.constants.size:
            copy = flags.READ_ONLY | flags.COPY_HOST_PTR
            self._constants = self._cl.Buffer(context, copy, hostbuf=program.constants)

    def _kernel(self, built: Any, dispatch: Dispatch) -> Kernel:
        buffers = [(self._whole(slot).int_ptr, slot.offset) for slot in dispatch.slots]
        sizes = (dispatch.global_size, dispatch.local_size)
        return Kernel(built.int_ptr, dispatch.kernel, buffers, *sizes)

    def _whole(self, slot: Slot) -> Any:
        # Kernels get whole buffers and offsets: NVIDIA's driver crashes when it releases
        # sub-buffers.
        return self._constants if slot.constant else self._memory

    def _record(self) -> CommandBuffer | EnqueueLoop:
        commands = CommandBuffer.create(self._queue, self._kernels)
        return commands or EnqueueLoop(self._queue, self._kernels)

    def run(self, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        self.bind([*map(c_void_p, inputs)], [*map(c_void_p, outputs)])()

    def bind(self, inputs: Sequence[c_void_p], outputs: Sequence[c_void_p]) -> Callable[[], None]:
        """Return a call that copies in, runs the recorded commands and copies out.

        All is enqueued in order; the last call waits.
        """
        if self._closed:
            raise _released()
        commands = self._commands.calls if self._commands else ()
        calls = (*self._writes(inputs), *commands, *self._reads(outputs))
        return partial(self._make, calls)

    def _writes(self, inputs: Sequence[c_void_p]) -> list[Call]:
        write = library().clEnqueueWriteBuffer
        return [
            self._transfer(write, slot, pointer)
            for slot, pointer in zip(self._program.inputs, inputs, strict=True)
        ]

    def _reads(self, outputs: Sequence[c_void_p]) -> list[Call]:
        """Return the calls that copy out; the last one waits."""
        lib = library()
        reads = [*zip(self._program.outputs, outputs, strict=True)]
        if not reads:
            return [bound(lib.clFinish, self._queue.int_ptr)]
        return [
            self._transfer(lib.clEnqueueReadBuffer, slot, pointer, last=number == len(reads))
            for number, (slot, pointer) in enumerate(reads, 1)
        ]

    def _transfer(self, copy: Any, slot: Slot, pointer: c_void_p, last: bool = False) -> Call:
        buffers = (self._queue.int_ptr, self._memory.int_ptr)
        return bound(copy, *buffers, int(last), slot.offset, slot.size, pointer, 0, None, None)

    def _make(self, calls: Sequence[Call]) -> None:
        if self._closed:
            raise _released()
        status = 0
        for call in calls:
            status |= call()
        if status:
            library().clFinish(self._queue.int_ptr)
            raise self._failed(status)

    def _failed(self, status: int) -> ExecutionError:
        return ExecutionError(
            f"OpenCL device '{self._device.info.name}' failed while running a partition: "
            f"{status_name(status)}. Make the interpreter anew; if it happens again, use another "
            "device or no delegate."
        )

    def phases(self, inputs: Sequence[int], outputs: Sequence[int]) -> dict[str, float]:
        """Run with the clock read between the steps, and a wait before outputs are copied."""
        steps: dict[str, Sequence[Call]] = {
            "copy in": self._writes([*map(c_void_p, inputs)]),
            "submit": self._commands.calls if self._commands else (),
            "wait": (bound(library().clFinish, self._queue.int_ptr),),
            "copy out": self._reads([*map(c_void_p, outputs)]),
        }
        found = {}
        for name, calls in steps.items():
            start = time.perf_counter()
            self._make(calls)
            found[name] = time.perf_counter() - start
        return found

    def durations(self) -> list[float]:
        """Run all launches on a profiling queue; seconds by the device's clock."""
        return self._profiling().durations()

    def chain_seconds(self) -> float:
        """Run all launches on a profiling queue, from the begin of the first to the last's end."""
        return self._profiling().chain_seconds()

    def device_seconds(self, inputs: Sequence[int], outputs: Sequence[int]) -> float:
        """Run on a profiling queue, kernel by kernel, with the copies."""
        return self._profiling().device_seconds(self._program, inputs, outputs)

    def _profiling(self) -> Profiler:
        if self._profiler is None:
            properties = self._cl.command_queue_properties.PROFILING_ENABLE
            queue = self._cl.CommandQueue(self._device.context, properties=properties)
            self._profiler = Profiler(queue, self._kernels, self._memory, self._failed)
        return self._profiler

    def read_memory(self) -> npt.NDArray[np.uint8]:
        """Copy the whole memory of the partition to the host."""
        host = np.empty(self._program.memory_bytes, np.uint8)
        self._cl.enqueue_copy(self._queue, host, self._memory)
        return host

    def close(self) -> None:
        """Release commands, kernels and buffers now instead of at the next collection."""
        if self._commands is not None:
            self._commands.close()
        self._closed = True
        self._profiler = None
        for kernel in self._kernels:
            kernel.close()
        self._kernels.clear()
        for buffer in (self._memory, self._constants):
            if buffer is not None:
                buffer.release()
        self._memory = self._constants = None

    def __del__(self) -> None:
        """Release what was never closed: handles that no Python object owns."""
        with contextlib.suppress(Exception):  # parts may be missing, or gone at exit
            self.close()


def _released() -> ExecutionError:
    return ExecutionError("This partition was released. Make the interpreter anew.")
