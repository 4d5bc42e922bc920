"""A partition on an NVIDIA GPU: its memory, its pinned buffers and its CUDA graph."""

from __future__ import annotations

import contextlib
import ctypes
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from litegpu.backends.base import Recording
from litegpu.backends.cuda_driver import FATAL, TITLE, Handles, KernelNode, call, driver
from litegpu.backends.cuda_profile import Profiler
from litegpu.backends.cuda_submission import Submission
from litegpu.backends.cuda_transfer import UNIT, transfer_items, transfer_kernel
from litegpu.backends.process import is_inherited, keep_in_children
from litegpu.backends.program import BufferRange, Program
from litegpu.codegen import KernelText, round_up
from litegpu.codegen.cuda import dynamic_shared_bytes
from litegpu.errors import CudaError, DeviceLostError, DeviceMemoryError

if TYPE_CHECKING:
    from litegpu.backends.cuda import CUDADevice

_log = logging.getLogger("litegpu")
_Result = TypeVar("_Result")
_Sizes = tuple[int, int, int]
_DIRECT_BYTES = 4 << 10
"""Outputs up to this size are written straight to the host by the kernel that makes them.

Rows that are no multiple of 16 bytes are stored float by float: 64 KiB of them took 28 µs more than
from the GPU's memory, of which a kernel then copies them in 1 to 2 µs.
"""


def transfers(program: Program) -> tuple[KernelText, ...]:
    """Return the kernels that move a program's inputs and outputs."""
    kernels = [transfer_kernel(slot.size) for slot in (*program.inputs, *program.outputs)]
    return tuple({kernel.name: kernel for kernel in kernels}.values())


class CUDARecording(Recording):
    """A partition's memory, its pinned staging buffers and its captured graph."""

    def __init__(self, device: CUDADevice, program: Program, cubins: Sequence[bytes]) -> None:
        """Allocate and capture. Raises DeviceMemoryError, CudaError or DeviceLostError."""
        self._cu = driver()
        self._device = device
        self._program = program
        self._owned = Handles()
        self._constants: Any = 0
        self._profiler: Profiler | None = None
        keep_in_children(self)
        device.recordings.add(self)
        try:
            device.within(partial(self._build, program, cubins))
        except BaseException:
            with contextlib.suppress(CudaError):
                self.close()
            raise

    def _build(self, program: Program, cubins: Sequence[bytes]) -> None:
        cu = self._cu
        make = self._owned.make
        self._stream: Any = make(cu.cuStreamCreate, cu.cuStreamDestroy, 1)
        self._modules = [make(cu.cuModuleLoadData, cu.cuModuleUnload, cubin) for cubin in cubins]
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
        self._launches = [*self._kernel_nodes(overlap=True)]
        chain = [*self._copies_in, *self._launches, *self._copies_out]
        self._graph: Any = self._owned.capture(self._stream, chain)
        self._submission = Submission(self._device, self._graph, self._stream)

    def _plan_transfers(self, program: Program) -> None:
        """Decide how outputs reach the host, and make the launches that copy."""
        self._direct = {
            writer: self._outputs[number][0]
            for number, writer in program.sole_writers.items()
            if program.outputs[number].size <= _DIRECT_BYTES
        }
        """Where an argument of a launch, by their numbers, writes to the host."""
        self._copies_in = [
            self._transfer(address, self._address(slot), size)
            for (address, size), slot in zip(self._inputs, program.inputs, strict=True)
        ]
        self._copies_out = [
            self._transfer(self._address(slot), address, size)
            for number, (slot, (address, size)) in enumerate(
                zip(program.outputs, self._outputs, strict=True)
            )
            if program.sole_writers.get(number) not in self._direct
        ]

    def _allocate(self, nbytes: int) -> Any:
        return self._provide(nbytes, "", self._cu.cuMemAlloc, self._cu.cuMemFree, nbytes)

    def _stage(self, slot: BufferRange) -> tuple[int, int]:
        """Return the address and size of a pinned buffer for an input or output."""
        cu, nbytes = self._cu, round_up(slot.size, UNIT)
        kind = " of pinned host memory"
        address = self._provide(nbytes, kind, cu.cuMemHostAlloc, cu.cuMemFreeHost, nbytes, 0)
        return int(address), slot.size

    def _provide(self, nbytes: int, kind: str, *making: Any) -> Any:
        """Make a handle of memory. Raises DeviceMemoryError when there is too little."""
        try:
            return self._owned.make(*making)
        except CudaError as error:
            if error.code in FATAL:
                raise
            raise DeviceMemoryError(
                f"{self._device.info.name} cannot provide {nbytes} bytes{kind}: {error} Close "
                "other programs, use precision='fp16' or a smaller batch."
            ) from error

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
            raise CudaError(f"The compiled modules lack the kernels {sorted(missing)}.", 500)
        return functions

    def _address(self, slot: BufferRange) -> int:
        return int(self._constants if slot.constant else self._memory) + slot.offset

    def _kernel_nodes(self, overlap: bool) -> Iterator[KernelNode]:
        for number, launch in enumerate(self._program.launches):
            pointers = tuple(
                self._direct.get((number, argument)) or self._address(part)
                for argument, part in enumerate(launch.ranges)
            )
            sizes = (launch.global_size, launch.local_size)
            yield self._launch(launch.kernel, pointers, *sizes, overlap)

    def _transfer(self, source: int, target: int, nbytes: int) -> KernelNode:
        kernel = transfer_kernel(nbytes)
        items = (transfer_items(nbytes), 1, 1)
        return self._launch(kernel.name, (source, target), items, kernel.local_size)

    def _launch(
        self,
        kernel: str,
        pointers: tuple[int, ...],
        items: _Sizes,
        local: _Sizes,
        overlap: bool = True,
    ) -> KernelNode:
        """Return one launch; with `overlap` it may begin while the kernel before it runs."""
        cu = self._cu
        config = cu.CUlaunchConfig()
        sizes = [g // b for g, b in zip(items, local, strict=True)]
        # The prelude says which axis of the grid is which.
        config.gridDimY, config.gridDimX, config.gridDimZ = sizes
        config.blockDimX, config.blockDimY, config.blockDimZ = local
        config.hStream = self._stream
        config.sharedMemBytes = self._shared[kernel]
        if overlap and self._device.capability >= (9, 0):
            attribute = cu.CUlaunchAttribute()
            attribute.id = (
                cu.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
            )
            attribute.value.programmaticStreamSerializationAllowed = 1
            config.attrs = [attribute]
            config.numAttrs = 1
        return config, self._functions[kernel], (pointers, (ctypes.c_void_p,) * len(pointers))

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
        submission, timeout = self._submission, self.timeout
        execute = submission.run if timeout is None else partial(submission.run_in_time, timeout)
        moves_in = [(p, own, n) for p, (own, n) in zip(inputs, self._inputs, strict=True)]
        moves_out = [(p, own, n) for p, (own, n) in zip(outputs, self._outputs, strict=True)]
        memmove = ctypes.memmove

        def invoke() -> None:
            for pointer, own, size in moves_in:
                if pointer.value != own:
                    memmove(own, pointer, size)
            execute()
            for pointer, own, size in moves_out:
                if pointer.value != own:
                    memmove(pointer, own, size)

        return invoke

    def durations(self) -> list[float]:
        """Time each launch in a batch of its own, warm in cache and without overlap."""
        return self._settled(lambda: self._profiling().durations(self._kernel_nodes(overlap=False)))

    def chain_seconds(self) -> float:
        """Return the device seconds of all launches in one graph, overlapping as in a run.

        What kernels write straight to the host is part of it.
        """
        return self._settled(lambda: self._profiling().chain_seconds(self._launches))

    def device_seconds(self, inputs: Sequence[int], outputs: Sequence[int]) -> float:
        """Return the device seconds of the whole graph, copies from and to the host included."""
        self._copy_in(inputs)
        seconds = self._settled(lambda: self._profiling().seconds(self._graph))
        self._copy_out(outputs)
        return seconds

    def phases(self, inputs: Sequence[int], outputs: Sequence[int]) -> dict[str, float]:
        """Run with the clock read between the steps."""
        steps: dict[str, Callable[[], object]] = {
            "copy in": partial(self._copy_in, inputs),
            "submit": partial(call, self._cu.cuGraphLaunch, self._graph, self._stream),
            "wait": partial(call, self._cu.cuStreamSynchronize, self._stream),
            "copy out": partial(self._copy_out, outputs),
        }
        found = {}

        def measure() -> None:
            for name, step in steps.items():
                start = time.perf_counter()
                step()
                found[name] = time.perf_counter() - start

        self._settled(measure)
        return found

    def _settled(self, work: Callable[[], _Result]) -> _Result:
        """Call `work` in the device's context; leave nothing in flight, whatever it raises."""
        wait = self._submission.wait

        def settle() -> _Result:
            try:
                return work()
            finally:
                wait()

        return self._device.within(settle)

    def _copy_in(self, inputs: Sequence[int]) -> None:
        for address, (own, size) in zip(inputs, self._inputs, strict=True):
            if address != own:
                ctypes.memmove(own, address, size)

    def _copy_out(self, outputs: Sequence[int]) -> None:
        for address, (own, size) in zip(outputs, self._outputs, strict=True):
            if address != own:
                ctypes.memmove(address, own, size)

    def _profiling(self) -> Profiler:
        if self._profiler is None:
            self._profiler = Profiler(self._stream, self._owned)
        return self._profiler

    def read_memory(self) -> npt.NDArray[np.uint8]:
        """Copy the whole memory of the partition to the host."""
        host = np.empty(self._program.memory_bytes, np.uint8)
        memory = (self._memory, host.nbytes)
        self._settled(lambda: call(self._cu.cuMemcpyDtoH, host.ctypes.data, *memory))
        # Outputs that kernels write straight to the host have a place all the same, with their
        # padding lanes.
        for number, writer in self._program.sole_writers.items():
            if writer in self._direct:
                part = self._program.outputs[number]
                target = host[part.offset :].ctypes.data
                ctypes.memmove(target, self._direct[writer], round_up(part.size, UNIT))
        return host

    def close(self) -> None:
        """Release the graph, the modules and all memory; of a lost device nothing."""
        if hasattr(self, "_submission"):
            self._submission.close()
        if is_inherited(TITLE):
            return
        try:
            if self._owned and not self._device.lost:
                self._device.within(self._release)
        except DeviceLostError as error:
            _log.info("Memory of a partition is not released: %s", error)
        if self._device.lost:
            self._owned.abandon()
        self._device.recordings.discard(self)

    def _release(self) -> None:
        if hasattr(self, "_submission"):
            self._submission.wait()
        self._owned.release()

    def __del__(self) -> None:
        """Release what was never closed, or not to the end."""
        with contextlib.suppress(Exception):  # parts may be missing, or gone at exit
            self.close()
