"""An execution context on an OpenCL device: memory, kernels and the commands of one queue."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from ctypes import c_void_p
from functools import partial
from operator import methodcaller
from typing import TYPE_CHECKING, Any

import numpy as np

from litegpu import progress
from litegpu.backends.buffers import Bindings, Bytes
from litegpu.backends.direct_updates import DirectUpdates, direct_updates
from litegpu.backends.execution import ExecutionContext, without_streams
from litegpu.backends.opencl.commands import CommandBuffer, EnqueueLoop
from litegpu.backends.opencl.library import TITLE, Call, Handles, OpenCLKernel, library
from litegpu.backends.opencl.profile import OpenCLProfiler
from litegpu.backends.opencl.submission import OpenCLSubmission
from litegpu.backends.program import BufferRange
from litegpu.errors import ExecutionError
from litegpu.host.finalizers import finalizer
from litegpu.host.fork_safety import immortal, is_inherited, keep_in_children
from litegpu.host.native_calls import bound, together

if TYPE_CHECKING:
    from litegpu.backends.opencl.executable import OpenCLExecutable


class OpenCLContext(ExecutionContext):
    """Memory, kernels with their arguments, and commands on one in-order queue."""

    executable: OpenCLExecutable

    def __init__(self, executable: OpenCLExecutable) -> None:
        """Allocate memory and record the commands.

        Raises KernelError, and DeviceMemoryError if memory is insufficient.
        """
        super().__init__(executable)
        cl = self.cl = executable.device.cl
        self.device = executable.device
        self.queue: Any = None
        self.memory: Any = None
        self.owned = Handles()
        self.kernels: list[OpenCLKernel] = []
        self._commands: CommandBuffer | EnqueueLoop | None = None
        self._closed = False
        self.ready = True
        """Whether a run may start: no run is in flight, not even an interrupted run."""
        keep_in_children(self)
        try:
            executable.enter(self)
            self.queue = cl.CommandQueue(self.device.context)
            self.finish: Call = bound(library().clFinish, self.queue.int_ptr)
            """Waits for all commands in flight."""
            self._allocate()
            # No closure: the frames of an error would keep its variables alive, even when cleared.
            for number in range(len(self.program.launches)):
                self.kernels.append(self._kernel(number, DirectUpdates(), self.owned))
            self._check_launches()
            self._commands = self._record(self.kernels, self.owned)
        except BaseException as error:
            with contextlib.suppress(ExecutionError, cl.Error):
                self.close()
            if isinstance(error, cl.Error):
                raise self.device.typed(error, self.program.memory_bytes) from error
            raise

    def _allocate(self) -> None:
        cl, nbytes = self.cl, self.program.memory_bytes
        handle = self.owned.hold(methodcaller("release"))
        handle.creation(partial(cl.Buffer, self.device.context, cl.mem_flags.READ_WRITE, nbytes))()
        self.memory = handle.result
        # Drivers allocate lazily: writing all memory makes an out-of-memory error appear here, and
        # NaN everywhere makes reads of uninitialized memory visible.
        cl.enqueue_fill_buffer(self.queue, self.memory, np.full(1, 0xFF, np.uint8), 0, nbytes)
        self.queue.finish()

    def _kernel(self, number: int, direct: DirectUpdates, owned: Handles) -> OpenCLKernel:
        launch = self.program.launches[number]
        buffers = []
        for argument, part in enumerate(launch.ranges):
            buffer, offset = direct.argument(number, argument, part)
            whole = self._whole(part) if buffer is None else buffer.handle
            buffers.append((whole.int_ptr, offset))
        sizes = (launch.global_size, launch.local_size)
        program = self.executable.program_of(launch.kernel)
        return OpenCLKernel(owned, program.int_ptr, launch.kernel, buffers, *sizes)

    def _check_launches(self) -> None:
        """Raise KernelError if the device cannot launch some of the kernels."""
        handle, most = self.device.handle, self.device.info.local_memory_bytes
        # All launches of a kernel have the same work-group size.
        names = (launch.kernel for launch in self.program.launches)
        once = dict(zip(names, self.kernels, strict=True))
        reports = self.device.reports_group_sizes
        found = {
            name: kernel.obstacle(handle, most, reports_group_sizes=reports)
            for name, kernel in once.items()
        }
        if reasons := {name: reason for name, reason in found.items() if reason}:
            raise self.device.rejects(reasons)

    def _whole(self, part: BufferRange) -> Any:
        # Kernels get whole buffers and offsets: NVIDIA's driver crashes when it releases
        # sub-buffers.
        return self.executable.constants_of(part) if part.constant else self.memory

    def _record(
        self, kernels: Sequence[OpenCLKernel], owned: Handles
    ) -> CommandBuffer | EnqueueLoop:
        commands = CommandBuffer.create(owned, self.queue, kernels)
        return commands or EnqueueLoop(self.queue, kernels)

    def first_run(self, bindings: Bindings) -> None:
        """Run launch by launch on software devices: PoCL compiles a kernel at its first launch."""
        if not self.device.info.software:
            return super().first_run(bindings)
        self.check_alive()
        bindings.check(self.program, self.device)
        submission = OpenCLSubmission(self, bindings)
        launches = EnqueueLoop(self.queue, self.kernels).calls
        self._run_now(submission.copies_in())
        for launch in progress.steps("run", launches, len(launches)):
            self._run_now([launch])
        self._run_now(submission.copies_out())

    def _run_now(self, calls: Sequence[Call]) -> None:
        """Make calls, and wait for the device. Raises ExecutionError if the device fails."""
        self.ready = False
        statuses = together([*calls, self.finish])
        if any(statuses):
            raise self.device.failed(next(filter(None, statuses)))
        self.ready = True

    def launches_on(self, direct: DirectUpdates, owned: Handles) -> Sequence[Call]:
        """Return the calls that run all kernels, with some arguments bound to other memory.

        `owned` owns the handles that these calls use.
        """
        changed = {launch for launch, _ in direct.uses}
        kernels = [
            self._kernel(number, direct, owned) if number in changed else kernel
            for number, kernel in enumerate(self.kernels)
        ]
        return self._record(kernels, owned).calls

    @property
    def launches(self) -> Sequence[Call]:
        """The calls that run all kernels."""
        return self._commands.calls if self._commands else ()

    def bind(self, bindings: Bindings) -> OpenCLSubmission:
        """Prepare the calls that copy inputs, run the recorded commands and copy outputs."""
        self.check_alive()
        bindings.check(self.program, self.device)
        return OpenCLSubmission(self, bindings)

    def bind_cached(self, bindings: Bindings, stream: int | None = None) -> OpenCLSubmission:
        """Prepare a run as `bind` does, but with kernels that update device memory in place."""
        if stream is not None:
            raise without_streams()
        self.check_alive()
        bindings.check(self.program, self.device)
        direct = direct_updates(self.program, bindings, self.device.info.buffer_alignment)
        return OpenCLSubmission(self, bindings, direct)

    def check_alive(self) -> None:
        """Raise ExecutionError if the context cannot run; wait if another run is in flight."""
        if self.in_flight is not None:
            self.synchronize()
        if self.device.lost:
            raise self.device.loss()
        if self._closed:
            raise ExecutionError("This partition was released. Create a new interpreter.")
        if not self.ready:
            self.finish_all()

    def finish_all(self) -> None:
        """Wait for all commands in flight."""
        self.finish()
        self.ready = True

    def give_up(self, *immune: object) -> None:
        """Leak the memory that the device may still access, and the objects in `immune`."""
        self.device.lost = self._closed = True
        self.ready = False
        immortal((immune, self.queue, self.memory, self.owned, self.executable))
        self.owned = Handles()

    def profiler(self) -> OpenCLProfiler:
        return OpenCLProfiler(self)

    def read_memory(self) -> Bytes:
        self.check_alive()
        host = np.empty(self.program.memory_bytes, np.uint8)
        handles = (self.queue.int_ptr, self.memory.int_ptr)
        address = c_void_p(host.ctypes.data)
        status = library().clEnqueueReadBuffer(*handles, 1, 0, host.nbytes, address, 0, None, None)
        if status:
            raise self.device.failed(status)
        return host

    def close(self) -> None:
        """Release commands, kernels and memory immediately, not at the next garbage collection."""
        if is_inherited(TITLE):
            return
        self.synchronize()
        if not (self.ready or self._closed or self.device.lost):
            self.finish_all()
        self._closed, self.ready = True, False
        self._commands = None
        self.kernels.clear()
        self.queue = self.memory = None
        self.owned.release()
        self.executable.leave(self)

    @finalizer
    def __del__(self) -> None:
        """Release the handles that `close` did not release."""
        self.close()
