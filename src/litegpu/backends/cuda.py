"""CUDA through NVIDIA's own Python packages: one CUDA graph per partition, kernels by NVRTC."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from litegpu.backends.base import Backend, Device, DeviceInfo, Dispatch, Program, Recording, Slot
from litegpu.backends.cuda_driver import call, compile_kernels, driver
from litegpu.codegen.cuda import CUDADialect, dynamic_shared_bytes
from litegpu.errors import (
    CompilationError,
    CudaError,
    DeviceMemoryError,
    UnsupportedDeviceError,
)

_OLDEST = (6, 0)


class CUDABackend(Backend):
    """NVIDIA GPUs of compute capability 6.0 and up."""

    name = "cuda"
    extra = "cuda13"

    def devices(self) -> list[DeviceInfo]:
        """Return the usable GPUs in the driver's order."""
        found = [_describe(index) for index in range(_device_count())]
        usable = [info for info in found if _capability(info.index) >= _OLDEST]
        if found and not usable:
            raise UnsupportedDeviceError(
                f"{found[0].name} has compute capability {_capability(0)}; CUDA kernels need "
                f"{_OLDEST} or newer. Use backend='opencl'."
            )
        return usable

    def open(self, index: int) -> Device:
        """Return the GPU of that index, in its primary context."""
        return _open(index)


@cache
def _open(index: int) -> CUDADevice:
    return CUDADevice(_describe(index))


def _device_count() -> int:
    cu = driver()
    try:
        call(cu.cuInit, 0)
        (count,) = call(cu.cuDeviceGetCount)
    except CudaError as error:
        raise UnsupportedDeviceError(
            f"The NVIDIA driver has no usable GPU: {error} Check that `nvidia-smi` lists one."
        ) from error
    if count == 0:
        raise UnsupportedDeviceError(
            "The NVIDIA driver lists no GPU. Check `nvidia-smi` and CUDA_VISIBLE_DEVICES."
        )
    return int(count)


def _attribute(index: int, name: str) -> int:
    cu = driver()
    attribute = getattr(cu.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
    (value,) = call(cu.cuDeviceGetAttribute, attribute, index)
    return int(value)


def _capability(index: int) -> tuple[int, int]:
    return (
        _attribute(index, "COMPUTE_CAPABILITY_MAJOR"),
        _attribute(index, "COMPUTE_CAPABILITY_MINOR"),
    )


def _describe(index: int) -> DeviceInfo:
    cu = driver()
    (name,) = call(cu.cuDeviceGetName, 256, index)
    (memory,) = call(cu.cuDeviceTotalMem, index)
    (version,) = call(cu.cuDriverGetVersion)
    major, minor = _capability(index)
    return DeviceInfo(
        backend="cuda",
        index=index,
        name=name.split(b"\0")[0].decode(),
        platform=f"NVIDIA CUDA, compute capability {major}.{minor}",
        driver=f"CUDA {version // 1000}.{version % 1000 // 10}",
        software=False,
        compute_units=_attribute(index, "MULTIPROCESSOR_COUNT"),
        memory_bytes=int(memory),
        max_allocation_bytes=int(memory),
        max_work_group_size=_attribute(index, "MAX_THREADS_PER_BLOCK"),
        local_memory_bytes=_attribute(index, "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
        half_arithmetic=True,
        buffer_alignment=256,
        max_arguments=256,
        tensor_cores=(major, minor) >= (8, 0),
        clusters=(major, minor) >= (9, 0),
    )


class CUDADevice(Device):
    """One GPU; its primary context is shared with whatever else the process runs on it."""

    dialect = CUDADialect()

    def __init__(self, info: DeviceInfo) -> None:
        """Retain the primary context. Raises CudaError when the driver refuses."""
        self.info = info
        self.capability = _capability(info.index)
        cu = driver()
        (self.context,) = call(cu.cuDevicePrimaryCtxRetain, info.index)

    def record(self, program: Program, cache_dir: str | None = None) -> Recording:
        """Compile, allocate and capture. See Device.record."""
        kernels = program.kernels
        try:
            modules = compile_kernels(self.dialect, kernels, self.capability, cache_dir)
        except CompilationError as error:
            names = ", ".join(kernel.name for kernel in kernels)
            raise CompilationError(
                f"CUDA device '{self.info.name}' refuses the kernels {names}: {error}"
            ) from error
        return CUDARecording(self, program, modules)


class _Current:
    """Makes a context current on this thread for a while, and restores what was."""

    def __init__(self, context: Any) -> None:
        self._context = context

    def __enter__(self) -> None:
        call(driver().cuCtxPushCurrent, self._context)

    def __exit__(self, *_: object) -> None:
        call(driver().cuCtxPopCurrent)


class CUDARecording(Recording):
    """A partition's memory, its pinned staging buffers and its captured graph."""

    def __init__(self, device: CUDADevice, program: Program, cubins: Sequence[bytes]) -> None:
        """Allocate and capture. Raises DeviceMemoryError or CudaError."""
        self._cu = driver()
        self._device = device
        self._program = program
        self._current = _Current(device.context)
        self._memory: Any = 0
        self._constants: Any = 0
        self._staging: list[Any] = []
        with self._current:
            try:
                self._build(program, cubins)
            except CudaError:
                self._release()
                raise

    def _build(self, program: Program, cubins: Sequence[bytes]) -> None:
        cu = self._cu
        self._stream: Any = call(cu.cuStreamCreate, 1)[0]
        self._modules = [call(cu.cuModuleLoadData, cubin)[0] for cubin in cubins]
        self._memory = self._allocate(program.memory_bytes)
        call(cu.cuMemsetD8, self._memory, 0xFF, program.memory_bytes)
        if program.constants.size:
            self._constants = self._allocate(program.constants.nbytes)
            address = program.constants.ctypes.data
            call(cu.cuMemcpyHtoD, self._constants, address, program.constants.nbytes)
        self._inputs = [self._stage(slot) for slot in program.inputs]
        self._outputs = [self._stage(slot) for slot in program.outputs]
        self._functions = self._find_functions(program)
        self._shared = {k.name: dynamic_shared_bytes(k) for k in program.kernels}
        for name, nbytes in self._shared.items():
            if nbytes:
                limit = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                call(cu.cuFuncSetAttribute, self._functions[name], limit, nbytes)
        self._launches = [self._launch(dispatch) for dispatch in program.dispatches]
        self._graph = self._capture()
        # cuGraphLaunch returns before the work is done; the last call waits for it.
        self._submit = (cu.cuGraphLaunch, self._graph, self._stream, cu.cuStreamSynchronize)

    def _allocate(self, nbytes: int) -> Any:
        try:
            (pointer,) = call(self._cu.cuMemAlloc, nbytes)
        except CudaError as error:
            raise DeviceMemoryError(
                f"{self._device.info.name} cannot provide {nbytes} bytes: {error} Close other "
                "programs, use precision='fp16' or a smaller batch."
            ) from error
        return pointer

    def _stage(self, slot: Slot) -> tuple[int, int]:
        """Return the address and size of a pinned buffer for an input or output."""
        (address,) = call(self._cu.cuMemHostAlloc, slot.size, 0)
        self._staging.append(address)
        return int(address), slot.size

    def _find_functions(self, program: Program) -> dict[str, Any]:
        cu = self._cu
        functions: dict[str, Any] = {}
        wanted = {kernel.name for kernel in program.kernels}
        for module in self._modules:
            (count,) = call(cu.cuModuleGetFunctionCount, module)
            for function in call(cu.cuModuleEnumerateFunctions, count, module)[0]:
                (name,) = call(cu.cuFuncGetName, function)
                functions[name.decode()] = function
        missing = wanted - functions.keys()
        if missing:
            raise CudaError(f"The compiled modules lack the kernels {sorted(missing)}.")
        return functions

    def _address(self, slot: Slot) -> int:
        return int(self._constants if slot.constant else self._memory) + slot.offset

    def _launch(self, dispatch: Dispatch) -> Any:
        """Return the launch configuration and the argument block of one kernel."""
        cu = self._cu
        config = cu.CUlaunchConfig()
        sizes = [g // b for g, b in zip(dispatch.global_size, dispatch.local_size, strict=True)]
        config.gridDimY, config.gridDimX, config.gridDimZ = sizes
        config.blockDimX, config.blockDimY, config.blockDimZ = dispatch.local_size
        config.hStream = self._stream
        config.sharedMemBytes = self._shared[dispatch.kernel]
        if self._device.capability >= (9, 0):
            overlap = cu.CUlaunchAttribute()
            overlap.id = (
                cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            )
            overlap.value.programmaticStreamSerializationAllowed = 1
            config.attrs = [overlap]
            config.numAttrs = 1
        pointers = tuple(map(self._address, dispatch.slots))
        arguments = (pointers, (ctypes.c_void_p,) * len(pointers))
        return config, self._functions[dispatch.kernel], arguments

    def _enqueue(self) -> None:
        cu = self._cu
        for (address, size), slot in zip(self._inputs, self._program.inputs, strict=True):
            call(cu.cuMemcpyHtoDAsync, self._address(slot), address, size, self._stream)
        for config, function, arguments in self._launches:
            call(cu.cuLaunchKernelEx, config, function, arguments, 0)
        for (address, size), slot in zip(self._outputs, self._program.outputs, strict=True):
            call(cu.cuMemcpyDtoHAsync, address, self._address(slot), size, self._stream)

    def _capture(self) -> Any:
        cu = self._cu
        mode = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        call(cu.cuStreamBeginCapture, self._stream, mode)
        self._enqueue()
        (graph,) = call(cu.cuStreamEndCapture, self._stream)
        (executable,) = call(cu.cuGraphInstantiate, graph, 0)
        call(cu.cuGraphDestroy, graph)
        call(cu.cuGraphUpload, executable, self._stream)
        call(cu.cuStreamSynchronize, self._stream)
        return executable

    def run(self, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        """Stage the inputs, launch the graph, wait, and copy the outputs out."""
        launch, graph, stream, synchronize = self._submit
        for address, (staging, size) in zip(inputs, self._inputs, strict=True):
            ctypes.memmove(staging, address, size)
        with self._current:
            call(launch, graph, stream)
            call(synchronize, stream)
        for address, (staging, size) in zip(outputs, self._outputs, strict=True):
            ctypes.memmove(address, staging, size)

    def durations(self) -> list[float]:
        """Run kernel by kernel between events; seconds by the device's clock."""
        cu = self._cu
        with self._current:
            events = [call(cu.cuEventCreate, 0)[0] for _ in range(len(self._launches) + 1)]
            call(cu.cuEventRecord, events[0], self._stream)
            for (config, function, arguments), event in zip(
                self._launches, events[1:], strict=True
            ):
                call(cu.cuLaunchKernelEx, config, function, arguments, 0)
                call(cu.cuEventRecord, event, self._stream)
            call(cu.cuStreamSynchronize, self._stream)
            times = [
                call(cu.cuEventElapsedTime, start, end)[0] * 1e-3
                for start, end in itertools.pairwise(events)
            ]
            for event in events:
                call(cu.cuEventDestroy, event)
        return times

    def device_seconds(self, repeats: int) -> float:
        """Return the median device time of the whole graph, copies included, in seconds."""
        cu = self._cu
        with self._current:
            start, end = call(cu.cuEventCreate, 0)[0], call(cu.cuEventCreate, 0)[0]
            times = []
            for _ in range(repeats):
                call(cu.cuEventRecord, start, self._stream)
                call(cu.cuGraphLaunch, self._graph, self._stream)
                call(cu.cuEventRecord, end, self._stream)
                call(cu.cuStreamSynchronize, self._stream)
                times.append(call(cu.cuEventElapsedTime, start, end)[0] * 1e-3)
            call(cu.cuEventDestroy, start)
            call(cu.cuEventDestroy, end)
        return float(np.median(times))

    def read_memory(self) -> npt.NDArray[np.uint8]:
        """Copy the whole memory of the partition to the host."""
        host = np.empty(self._program.memory_bytes, np.uint8)
        with self._current:
            call(self._cu.cuMemcpyDtoH, host.ctypes.data, self._memory, host.nbytes)
        return host

    def close(self) -> None:
        """Release the graph, the modules and all memory."""
        with self._current:
            self._release()

    def _release(self) -> None:
        cu = self._cu
        if getattr(self, "_graph", None) is not None:
            call(cu.cuGraphExecDestroy, self._graph)
            self._graph = None
        for module in getattr(self, "_modules", ()):
            call(cu.cuModuleUnload, module)
        self._modules = []
        for address in self._staging:
            call(cu.cuMemFreeHost, address)
        self._staging.clear()
        for pointer in (self._memory, self._constants):
            if int(pointer):
                call(cu.cuMemFree, pointer)
        self._memory = self._constants = 0
        if getattr(self, "_stream", None) is not None:
            call(cu.cuStreamDestroy, self._stream)
            self._stream = None
