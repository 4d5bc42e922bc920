"""A partition on an NVIDIA GPU: its memory, its pinned buffers and its CUDA graph."""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from litegpu.backends.base import Dispatch, Program, Recording, Slot
from litegpu.backends.cuda_driver import call, driver
from litegpu.backends.cuda_transfer import UNIT, transfer_items, transfer_kernel
from litegpu.codegen import KernelText, round_up
from litegpu.codegen.cuda import dynamic_shared_bytes
from litegpu.errors import CudaError, DeviceMemoryError

if TYPE_CHECKING:
    from litegpu.backends.cuda import CUDADevice

_Sizes = tuple[int, int, int]
_DIRECT_BYTES = 64 << 10
"""Outputs up to this size are written straight to the host by the kernel that makes them."""


def transfers(program: Program) -> tuple[KernelText, ...]:
    """Return the kernels that move a program's inputs and outputs."""
    kernels = [transfer_kernel(slot.size) for slot in (*program.inputs, *program.outputs)]
    return tuple({kernel.name: kernel for kernel in kernels}.values())


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
        kernels = (*program.kernels, *transfers(program))
        self._functions = self._find_functions(kernels)
        self._shared = {k.name: dynamic_shared_bytes(k) for k in kernels}
        for name, nbytes in self._shared.items():
            if nbytes:
                limit = cu.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                call(cu.cuFuncSetAttribute, self._functions[name], limit, nbytes)
        self._plan_transfers(program)
        self._launches = [self._launch_of(dispatch) for dispatch in program.dispatches]
        self._graph = self._capture([*self._copies_in, *self._launches, *self._copies_out])

    def _plan_transfers(self, program: Program) -> None:
        """Decide how outputs reach the host, and make the launches that copy."""
        # A slot that just one launch touches is the same object in both places.
        inputs = set(program.inputs)
        touching = [id(slot) for dispatch in program.dispatches for slot in dispatch.slots]
        self._direct: dict[int, int] = {}
        for (address, size), slot in zip(self._outputs, program.outputs, strict=True):
            if touching.count(id(slot)) == 1 and size <= _DIRECT_BYTES and slot not in inputs:
                self._direct[id(slot)] = address
        self._copies_in = [
            self._transfer(address, self._address(slot), size)
            for (address, size), slot in zip(self._inputs, program.inputs, strict=True)
        ]
        self._copies_out = [
            self._transfer(self._address(slot), address, size)
            for (address, size), slot in zip(self._outputs, program.outputs, strict=True)
            if id(slot) not in self._direct
        ]

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
        (address,) = call(self._cu.cuMemHostAlloc, round_up(slot.size, UNIT), 0)
        self._staging.append(address)
        return int(address), slot.size

    def _find_functions(self, kernels: Sequence[KernelText]) -> dict[str, Any]:
        cu = self._cu
        functions: dict[str, Any] = {}
        wanted = {kernel.name for kernel in kernels}
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
        direct = self._direct.get(id(slot))
        if direct is not None:
            return direct
        return int(self._constants if slot.constant else self._memory) + slot.offset

    def _launch_of(self, dispatch: Dispatch) -> Any:
        pointers = tuple(map(self._address, dispatch.slots))
        return self._launch(dispatch.kernel, pointers, dispatch.global_size, dispatch.local_size)

    def _transfer(self, source: int, target: int, nbytes: int) -> Any:
        kernel = transfer_kernel(nbytes)
        items = (transfer_items(nbytes), 1, 1)
        return self._launch(kernel.name, (source, target), items, kernel.local_size)

    def _launch(
        self, kernel: str, pointers: tuple[int, ...], items: _Sizes, local: _Sizes
    ) -> tuple[Any, Any, Any]:
        """Return the launch configuration, the function and the argument block of one kernel."""
        cu = self._cu
        config = cu.CUlaunchConfig()
        sizes = [g // b for g, b in zip(items, local, strict=True)]
        config.gridDimY, config.gridDimX, config.gridDimZ = sizes
        config.blockDimX, config.blockDimY, config.blockDimZ = local
        config.hStream = self._stream
        config.sharedMemBytes = self._shared[kernel]
        if self._device.capability >= (9, 0):
            overlap = cu.CUlaunchAttribute()
            overlap.id = (
                cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            )
            overlap.value.programmaticStreamSerializationAllowed = 1
            config.attrs = [overlap]
            config.numAttrs = 1
        return config, self._functions[kernel], (pointers, (ctypes.c_void_p,) * len(pointers))

    def _capture(self, launches: Sequence[tuple[Any, Any, Any]]) -> Any:
        cu = self._cu
        mode = cu.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        call(cu.cuStreamBeginCapture, self._stream, mode)
        for config, function, arguments in launches:
            call(cu.cuLaunchKernelEx, config, function, arguments, 0)
        (graph,) = call(cu.cuStreamEndCapture, self._stream)
        (executable,) = call(cu.cuGraphInstantiate, graph, 0)
        call(cu.cuGraphDestroy, graph)
        call(cu.cuGraphUpload, executable, self._stream)
        call(cu.cuStreamSynchronize, self._stream)
        return executable

    def host_memory(self) -> tuple[list[int], list[int]]:
        """Return the pinned buffers' addresses. See Recording.host_memory."""
        return [address for address, _ in self._inputs], [address for address, _ in self._outputs]

    def run(self, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        """Stage the inputs, launch the graph, wait, and copy the outputs out."""
        self.bind(list(map(ctypes.c_void_p, inputs)), list(map(ctypes.c_void_p, outputs)))()

    def bind(
        self, inputs: Sequence[ctypes.c_void_p], outputs: Sequence[ctypes.c_void_p]
    ) -> Callable[[], None]:
        """Return a call that stages, launches, waits and copies. See Recording.bind."""
        cu, graph, stream, memmove = self._cu, self._graph, self._stream, ctypes.memmove
        moves_in = [(p, own, n) for p, (own, n) in zip(inputs, self._inputs, strict=True)]
        moves_out = [(p, own, n) for p, (own, n) in zip(outputs, self._outputs, strict=True)]

        def invoke() -> None:
            for pointer, own, size in moves_in:
                if pointer.value != own:
                    memmove(own, pointer, size)
            with self._current:
                call(cu.cuGraphLaunch, graph, stream)
                call(cu.cuStreamSynchronize, stream)
            for pointer, own, size in moves_out:
                if pointer.value != own:
                    memmove(pointer, own, size)

        return invoke

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

    def device_seconds(self, repeats: int, copies: bool = True) -> float:
        """Return the median device time of the graph in seconds, with its copies or without.

        What kernels write straight to the host is there in both.
        """
        cu = self._cu
        with self._current:
            graph = self._graph if copies else self._capture(self._launches)
            start, end = call(cu.cuEventCreate, 0)[0], call(cu.cuEventCreate, 0)[0]
            times = []
            for _ in range(repeats):
                call(cu.cuEventRecord, start, self._stream)
                call(cu.cuGraphLaunch, graph, self._stream)
                call(cu.cuEventRecord, end, self._stream)
                call(cu.cuStreamSynchronize, self._stream)
                times.append(call(cu.cuEventElapsedTime, start, end)[0] * 1e-3)
            call(cu.cuEventDestroy, start)
            call(cu.cuEventDestroy, end)
            if not copies:
                call(cu.cuGraphExecDestroy, graph)
        return float(np.median(times))

    def read_memory(self) -> npt.NDArray[np.uint8]:
        """Copy the whole memory of the partition to the host."""
        host = np.empty(self._program.memory_bytes, np.uint8)
        with self._current:
            call(self._cu.cuMemcpyDtoH, host.ctypes.data, self._memory, host.nbytes)
        # Outputs that kernels write straight to the host have a place all the same.
        for slot in self._program.outputs:
            if id(slot) in self._direct:
                ctypes.memmove(host[slot.offset :].ctypes.data, self._direct[id(slot)], slot.size)
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
