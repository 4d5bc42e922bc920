"""A partition on an OpenCL device: its buffers, its kernels and its commands on one queue."""

from __future__ import annotations

import contextlib
import ctypes
import time
from collections.abc import Callable, Sequence
from ctypes import c_void_p
from functools import partial
from operator import methodcaller
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from litegpu.backends.base import Recording
from litegpu.backends.calls import bound, together, wait_until
from litegpu.backends.limits import check_sizes
from litegpu.backends.opencl_commands import CommandBuffer, EnqueueLoop
from litegpu.backends.opencl_library import (
    LOST,
    TITLE,
    Call,
    Handles,
    Kernel,
    library,
    status_name,
)
from litegpu.backends.opencl_profile import Profiler
from litegpu.backends.process import immortal, is_inherited, keep_in_children
from litegpu.backends.program import BufferRange, Launch, Program
from litegpu.errors import (
    DeviceMemoryError,
    ExecutionError,
    InvokeTimeoutError,
    LitegpuError,
)

if TYPE_CHECKING:
    from litegpu.backends.opencl import OpenCLDevice

_TOO_LITTLE_MEMORY = (
    "INVALID_BUFFER_SIZE",
    "MEM_OBJECT_ALLOCATION_FAILURE",
    "OUT_OF_HOST_MEMORY",
    "OUT_OF_RESOURCES",
)
_Pointers = Sequence[c_void_p]


class OpenCLRecording(Recording):
    """A partition's buffers, kernels and commands on one in-order queue."""

    def __init__(self, cl: Any, device: OpenCLDevice, program: Program, built: Any) -> None:
        """Allocate and record; raises DeviceMemoryError when the device has too little."""
        self._cl = cl
        self._device = device
        self._program = program
        self._queue: Any = None
        self._memory: Any = None
        self._constants: Any = None
        self._owned = Handles()
        self._kernels: list[Kernel] = []
        self._commands: CommandBuffer | EnqueueLoop | None = None
        self._profiler: Profiler | None = None
        self._closed = False
        self._unsettled = False
        """Whether commands may be in flight that were interrupted or have failed."""
        check_sizes(program, device.info)
        keep_in_children(self)
        try:
            self._queue = cl.CommandQueue(device.context)
            self._finish = bound(library().clFinish, self._queue.int_ptr)
            self._allocate(program)
            # No closure: an error's frames would hold what it holds, even when they are cleared.
            for launch in program.launches:
                self._kernels.append(self._kernel(built, launch))
            self._commands = self._record()
        except BaseException as error:
            with contextlib.suppress(ExecutionError, cl.Error):
                self.close()
            if isinstance(error, cl.Error):
                raise self._typed(error, program) from error
            raise

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
        self._memory = self._buffer(flags.READ_WRITE, program.memory_bytes)
        # Drivers allocate lazily: touching all of it brings an out-of-memory error here, and
        # NaN everywhere makes a read of something never written visible.
        poison = np.full(1, 0xFF, np.uint8)
        self._cl.enqueue_fill_buffer(self._queue, self._memory, poison, 0, program.memory_bytes)
        self._queue.finish()
        if program.constants.size:
            copy = flags.READ_ONLY | flags.COPY_HOST_PTR
            self._constants = self._buffer(copy, hostbuf=program.constants)

    def _buffer(self, *arguments: Any, **named: Any) -> Any:
        held = self._owned.hold(methodcaller("release"))
        held.maker(partial(self._cl.Buffer, self._device.context, *arguments, **named))()
        return held.result

    def _kernel(self, built: Any, launch: Launch) -> Kernel:
        buffers = [(self._whole(slot).int_ptr, slot.offset) for slot in launch.ranges]
        sizes = (launch.global_size, launch.local_size)
        return Kernel(self._owned, built.int_ptr, launch.kernel, buffers, *sizes)

    def _whole(self, slot: BufferRange) -> Any:
        # Kernels get whole buffers and offsets: NVIDIA's driver crashes when it releases
        # sub-buffers.
        return self._constants if slot.constant else self._memory

    def _record(self) -> CommandBuffer | EnqueueLoop:
        commands = CommandBuffer.create(self._owned, self._queue, self._kernels)
        return commands or EnqueueLoop(self._queue, self._kernels)

    def run(self, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        self.bind([*map(c_void_p, inputs)], [*map(c_void_p, outputs)])()

    def bind(self, inputs: _Pointers, outputs: _Pointers) -> Callable[[], None]:
        """Return a call that copies in, runs the recorded commands and copies out.

        All is enqueued in order; the last call waits. No Python runs in between, unless there is
        a timeout.
        """
        self._check_alive()
        if self.timeout is not None:
            return self._bind_in_time(inputs, outputs, self.timeout)
        calls = (*self._writes(inputs), *self._launches(), *self._reads(outputs))
        return partial(self._make, calls)

    def _bind_in_time(
        self, inputs: _Pointers, outputs: _Pointers, seconds: float
    ) -> Callable[[], None]:
        """Return such a call with copies of all data: what is late reaches nobody else's memory."""
        sent, returned = map(_places, (self._program.inputs, self._program.outputs))
        calls = (
            *self._writes([c_void_p(place.ctypes.data) for place in sent]),
            *self._launches(),
            *self._reads([c_void_p(place.ctypes.data) for place in returned], wait=False),
        )

        def invoke() -> None:
            for place, pointer in zip(sent, inputs, strict=True):
                ctypes.memmove(place.ctypes.data, pointer, place.nbytes)
            self._make_in_time(calls, seconds, (sent, returned))
            for place, pointer in zip(returned, outputs, strict=True):
                ctypes.memmove(pointer, place.ctypes.data, place.nbytes)

        return invoke

    def _launches(self) -> Sequence[Call]:
        return self._commands.calls if self._commands else ()

    def _writes(self, inputs: _Pointers) -> list[Call]:
        write = library().clEnqueueWriteBuffer
        return [
            self._transfer(write, slot, pointer)
            for slot, pointer in zip(self._program.inputs, inputs, strict=True)
        ]

    def _reads(self, outputs: _Pointers, wait: bool = True) -> list[Call]:
        """Return the calls that copy out; unless told otherwise the last one waits."""
        reads = [*zip(self._program.outputs, outputs, strict=True)]
        if not reads:
            return [self._finish] if wait else []
        read, last = library().clEnqueueReadBuffer, len(reads) if wait else 0
        return [
            self._transfer(read, slot, pointer, wait=number == last)
            for number, (slot, pointer) in enumerate(reads, 1)
        ]

    def _transfer(
        self, copy: Any, slot: BufferRange, pointer: c_void_p, wait: bool = False
    ) -> Call:
        buffers = (self._queue.int_ptr, self._memory.int_ptr)
        return bound(copy, *buffers, int(wait), slot.offset, slot.size, pointer, 0, None, None)

    def _make(self, calls: Sequence[Call]) -> None:
        if self._closed or self._unsettled or self._device.lost:
            self._check_alive()
        self._unsettled = True
        statuses = together(calls)
        if any(statuses):
            self._settle()
            raise self._failed(next(filter(None, statuses)))
        self._unsettled = False

    def _make_in_time(self, calls: Sequence[Call], seconds: float, places: object) -> None:
        self._check_alive()
        self._unsettled = True
        try:
            statuses = together(calls)
            ended = self._ends_within(seconds)
        except BaseException:
            # Whatever it was, nothing stays in flight, or the device is given up.
            with contextlib.suppress(self._cl.Error):
                if not self._ends_within(seconds):
                    self._give_up(places)
            raise
        if not ended:
            self._give_up(places)
            raise InvokeTimeoutError(
                f"OpenCL device '{self._device.info.name}' has not ended an invoke after "
                f"{seconds * 1e3:g} ms (invoke_timeout_ms). Make a new GpuDelegate and "
                "interpreter, with a longer limit if the device is not stuck."
            )
        self._unsettled = False
        if any(statuses):
            raise self._failed(next(filter(None, statuses)))

    def _ends_within(self, seconds: float) -> bool:
        """Return whether all that is on the queue ends in time; the queue is not waited for."""
        marker = self._cl.enqueue_marker(self._queue)
        self._queue.flush()
        return wait_until(lambda: marker.command_execution_status <= 0, seconds)

    def _give_up(self, places: object) -> None:
        """Never release what the device may still use."""
        self._device.lost = self._closed = True
        immortal((places, self._queue, self._memory, self._constants, self._owned, self._program))
        self._owned = Handles()

    def _check_alive(self) -> None:
        """Raise ExecutionError if nothing can run; see that nothing else runs."""
        if self._device.lost:
            raise self._device.loss()
        if self._closed:
            raise ExecutionError("This partition was released. Make the interpreter anew.")
        if self._unsettled:
            self._settle()

    def _settle(self) -> None:
        """Wait for what is in flight."""
        self._finish()
        self._unsettled = False

    def _failed(self, status: int) -> ExecutionError:
        what = f"{status_name(status)} while running a partition"
        if status in LOST:
            self._device.lost = True
            return self._device.loss(what)
        return ExecutionError(
            f"OpenCL device '{self._device.info.name}' failed with {what}. Make the interpreter "
            "anew; if it happens again, use another device or no delegate."
        )

    def phases(self, inputs: Sequence[int], outputs: Sequence[int]) -> dict[str, float]:
        """Run with the clock read between the steps, and a wait before outputs are copied."""
        steps: dict[str, Sequence[Call]] = {
            "copy in": self._writes([*map(c_void_p, inputs)]),
            "submit": self._launches(),
            "wait": (self._finish,),
            "copy out": self._reads([*map(c_void_p, outputs)]),
        }
        found = {}
        try:
            for name, calls in steps.items():
                start = time.perf_counter()
                self._make(calls)
                found[name] = time.perf_counter() - start
        finally:
            self._finish()
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
        self._check_alive()
        host = np.empty(self._program.memory_bytes, np.uint8)
        whole = BufferRange(False, 0, host.nbytes)
        self._make(
            [self._transfer(library().clEnqueueReadBuffer, whole, c_void_p(host.ctypes.data), True)]
        )
        return host

    def close(self) -> None:
        """Release commands, kernels and buffers now instead of at the next collection."""
        if is_inherited(TITLE):
            return
        self._closed = True
        if self._unsettled and not self._device.lost:
            self._settle()
        self._profiler = self._commands = None
        self._kernels.clear()
        self._queue = self._memory = self._constants = None
        self._owned.release()

    def __del__(self) -> None:
        """Release what was never closed: handles that no Python object owns."""
        with contextlib.suppress(Exception):  # parts may be missing, or gone at exit
            self.close()


def _places(slots: Sequence[BufferRange]) -> list[npt.NDArray[np.uint8]]:
    return [np.zeros(slot.size, np.uint8) for slot in slots]
