"""OpenCL through pyopencl; the calls of an invoke go to the OpenCL library directly."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from litegpu.backends.base import Backend, Device, DeviceInfo, Program, Recording, Slot
from litegpu.backends.opencl_commands import CommandBuffer, EnqueueLoop, Launch, library
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

_SOFTWARE_TYPES = 1 << 1  # CL_DEVICE_TYPE_CPU
_OUT_OF_MEMORY = ("MEM_OBJECT_ALLOCATION_FAILURE", "OUT_OF_RESOURCES", "OUT_OF_HOST_MEMORY")


def _pyopencl() -> Any:
    try:
        import pyopencl
    except ImportError as error:
        raise missing_dependency("pyopencl", "opencl", "The OpenCL backend") from error
    return pyopencl


class OpenCLBackend(Backend):
    """Any OpenCL 1.2 device: GPUs first, then accelerators, then CPUs."""

    name = "opencl"
    extra = "opencl"

    def devices(self) -> list[DeviceInfo]:
        """Return all devices of all platforms, real GPUs first."""
        return [_describe(i, device) for i, device in enumerate(_raw_devices())]

    def open(self, index: int) -> Device:
        """Return the device of that index; its context is shared by all delegates."""
        return _open(index)


@cache
def _open(index: int) -> OpenCLDevice:
    device = _raw_devices()[index]
    return OpenCLDevice(_describe(index, device), device)


def _raw_devices() -> list[Any]:
    cl = _pyopencl()
    try:
        platforms = cl.get_platforms()
    except cl.Error as error:
        raise UnsupportedDeviceError(
            f"OpenCL finds no platform ({error}). Install your GPU's driver with its OpenCL "
            "part; to run on the CPU: apt-get install pocl-opencl-icd"
        ) from error
    found = []
    for platform in platforms:
        try:
            found += platform.get_devices()
        except cl.Error:  # a platform without devices reports an error
            continue
    if not found:
        names = ", ".join(platform.name for platform in platforms)
        raise UnsupportedDeviceError(
            f"The OpenCL platforms ({names}) have no devices. Check that the GPU's driver is "
            "loaded; to run on the CPU: apt-get install pocl-opencl-icd"
        )
    return sorted(found, key=lambda device: bool(device.type & _SOFTWARE_TYPES))


def _describe(index: int, device: Any) -> DeviceInfo:
    extensions = device.extensions.split()
    return DeviceInfo(
        backend="opencl",
        index=index,
        name=device.name.strip(),
        platform=device.platform.name.strip(),
        driver=f"{device.driver_version} ({device.version.strip()})",
        software=bool(device.type & _SOFTWARE_TYPES),
        compute_units=device.max_compute_units,
        memory_bytes=device.global_mem_size,
        max_allocation_bytes=device.max_mem_alloc_size,
        max_work_group_size=device.max_work_group_size,
        local_memory_bytes=device.local_mem_size,
        half_arithmetic="cl_khr_fp16" in extensions,
        buffer_alignment=max(device.mem_base_addr_align // 8, 16),
        max_arguments=device.max_parameter_size // 8,
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
                return self._cl.Program(self.context, source).build(
                    options=["-cl-std=CL1.2"], cache_dir=cache_dir
                )
        except self._cl.RuntimeError as error:
            names = ", ".join(kernel.name for kernel in kernels)
            raise CompilationError(
                f"OpenCL device '{self.info.name}' ({self.info.driver}) refuses the kernels "
                f"{names}: {error}. LITEGPU_DEBUG=2 prints their sources; precision='fp32' or "
                "another backend may help."
            ) from error


class OpenCLRecording(Recording):
    """A partition's buffers, kernels and commands on one in-order queue."""

    def __init__(self, cl: Any, device: OpenCLDevice, program: Program, built: Any) -> None:
        """Allocate and record; raises DeviceMemoryError when the device has too little."""
        self._cl = cl
        self._device = device
        self._program = program
        self._queue = cl.CommandQueue(device.context)
        self._profiled: Any = None
        self._check_size(program.memory_bytes)
        try:
            self._allocate(program)
            self._launches = self._prepare(program, built)
            self._commands = self._record()
        except (cl.MemoryError, cl.LogicError, cl.RuntimeError) as error:
            raise self._typed(error, program.memory_bytes) from error
        self._lib = library()
        self._plan_transfers(program)

    def _check_size(self, nbytes: int) -> None:
        limit = self._device.info.max_allocation_bytes
        if nbytes > limit:
            raise DeviceMemoryError(
                f"The partition needs {nbytes} bytes in one buffer, but OpenCL device "
                f"'{self._device.info.name}' allows {limit}. Use precision='fp16', a smaller "
                "batch or another device."
            )

    def _typed(self, error: Exception, nbytes: int) -> LitegpuError:
        name = self._device.info.name
        text = str(error)
        if isinstance(error, self._cl.MemoryError) or any(c in text for c in _OUT_OF_MEMORY):
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
        self._constants: Any = None
        if program.constants.size:
            copy = flags.READ_ONLY | flags.COPY_HOST_PTR
            self._constants = self._cl.Buffer(context, copy, hostbuf=program.constants)

    def _prepare(self, program: Program, built: Any) -> list[Launch]:
        ranges: dict[Slot, Any] = {}

        def view(slot: Slot) -> Any:
            if slot not in ranges:
                whole = self._constants if slot.constant else self._memory
                ranges[slot] = whole.get_sub_region(slot.offset, slot.size)
            return ranges[slot]

        launches = []
        for dispatch in program.dispatches:
            kernel = self._cl.Kernel(built, dispatch.kernel)
            kernel.set_args(*map(view, dispatch.slots))
            launches.append(Launch(kernel, dispatch.global_size, dispatch.local_size))
        self._ranges = ranges
        return launches

    def _record(self) -> CommandBuffer | EnqueueLoop:
        commands = CommandBuffer.create(self._queue, self._launches)
        return commands or EnqueueLoop(self._queue, self._launches)

    def _plan_transfers(self, program: Program) -> None:
        self._queue_handle = self._queue.int_ptr
        self._memory_handle = self._memory.int_ptr
        self._inputs = [(slot.offset, slot.size) for slot in program.inputs]
        self._outputs = [(slot.offset, slot.size) for slot in program.outputs]

    def run(self, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        """Enqueue copies in, the recorded commands and copies out; wait once at the end."""
        queue, memory, lib = self._queue_handle, self._memory_handle, self._lib
        write, read = lib.clEnqueueWriteBuffer, lib.clEnqueueReadBuffer
        status = 0
        for address, (offset, size) in zip(inputs, self._inputs, strict=True):
            status |= write(queue, memory, 0, offset, size, address, 0, None, None)
        status |= self._commands.submit()
        for address, (offset, size) in zip(outputs, self._outputs, strict=True):
            status |= read(queue, memory, 0, offset, size, address, 0, None, None)
        status |= lib.clFinish(queue)
        if status:
            raise ExecutionError(
                f"OpenCL device '{self._device.info.name}' failed while running a partition "
                f"(status {status}). The model runs without the delegate."
            )

    def durations(self) -> list[float]:
        """Run all launches on a profiling queue; seconds by the device's clock."""
        if self._profiled is None:
            properties = self._cl.command_queue_properties.PROFILING_ENABLE
            self._profiled = self._cl.CommandQueue(self._device.context, properties=properties)
        events = [
            self._cl.enqueue_nd_range_kernel(
                self._profiled, launch.kernel, launch.global_size, launch.local_size
            )
            for launch in self._launches
        ]
        self._profiled.finish()
        return [(event.profile.end - event.profile.start) * 1e-9 for event in events]

    def read_memory(self) -> npt.NDArray[np.uint8]:
        """Copy the whole memory of the partition to the host."""
        host = np.empty(self._program.memory_bytes, np.uint8)
        self._cl.enqueue_copy(self._queue, host, self._memory)
        return host

    def close(self) -> None:
        """Release commands, kernels and buffers now instead of at the next collection."""
        self._commands.close()
        self._launches.clear()
        for buffer in (*self._ranges.values(), self._memory, self._constants):
            if buffer is not None:
                buffer.release()
        self._ranges.clear()
