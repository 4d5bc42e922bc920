"""The calls of a run on an OpenCL device: input copies, kernels, output copies."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from litegpu.backends.buffers import Bindings, Buffer, DeviceBuffer, HostBuffer, Staging
from litegpu.backends.direct_updates import DirectUpdates
from litegpu.backends.execution import Submission
from litegpu.backends.opencl.library import TITLE, Call, Handles, library
from litegpu.backends.program import BufferRange
from litegpu.errors import InvokeTimeoutError
from litegpu.host.finalizers import finalizer
from litegpu.host.fork_safety import is_inherited, keep_in_children
from litegpu.host.native_calls import bound, together, wait_until

if TYPE_CHECKING:
    from litegpu.backends.opencl.context import OpenCLContext


class OpenCLSubmission(Submission):
    """A run that enqueues all commands in order, with no Python code in between."""

    def __init__(
        self, context: OpenCLContext, bindings: Bindings, direct: DirectUpdates | None = None
    ) -> None:
        """Prepare the calls for buffers that fit. Raises ExecutionError if the driver lacks one."""
        super().__init__(context)
        self._on = context
        self._bindings = bindings
        self._direct = direct or DirectUpdates()
        self._owned = Handles()
        self._launches = context.launches
        if self._direct.uses:
            keep_in_children(self)
            self._launches = context.launches_on(self._direct, self._owned)
        self._staged: tuple[Staging, Staging] | None = None
        self._calls: tuple[Call, ...] = ()
        self._marker: Any = None

    @property
    def run(self) -> Callable[[], None]:
        if self._on.timeout is not None:
            return self._run_in_time
        calls = (*self.copies_in(), *self._launches, *self.copies_out(wait=True))
        return partial(_run, calls, self._on, self)

    def copies_in(self, buffers: Sequence[Buffer] | None = None) -> list[Call]:
        """Return the calls that copy inputs, from the bound buffers or from others."""
        used = self._bindings.inputs if buffers is None else buffers
        calls = []
        for number, (part, buffer) in enumerate(zip(self._on.program.inputs, used, strict=True)):
            if number not in self._direct.inputs:
                calls.append(self._copy(True, part, buffer))
            elif (target := self._direct.inputs[number]) is not None:
                calls.append(self._copy(True, part, buffer, target))
        return calls

    def copies_out(self, buffers: Sequence[Buffer] | None = None, wait: bool = False) -> list[Call]:
        """Return the calls that copy outputs; with `wait`, the last copy blocks."""
        used = self._bindings.outputs if buffers is None else buffers
        ends = enumerate(zip(self._on.program.outputs, used, strict=True))
        pairs = [pair for number, pair in ends if number not in self._direct.outputs]
        waits = [False] * len(pairs)
        finish = [self._on.finish] if wait else []
        if finish and pairs and isinstance(pairs[-1][1], HostBuffer):
            waits[-1], finish = True, []
        copies = [self._copy(False, *pair, wait=w) for pair, w in zip(pairs, waits, strict=True)]
        return [*copies, *finish]

    def _copy(
        self,
        into: bool,
        part: BufferRange,
        buffer: Buffer,
        target: DeviceBuffer | None = None,
        wait: bool = False,
    ) -> Call:
        """Return the call that copies to or from a range of memory, or to `target`."""
        lib, queue = library(), self._on.queue.int_ptr
        memory, offset = self._on.memory.int_ptr, part.offset
        if target is not None:
            memory, offset = target.handle.int_ptr, target.offset
        events = (0, None, None)
        if isinstance(buffer, DeviceBuffer):
            ends = [(memory, offset), (buffer.handle.int_ptr, buffer.offset)]
            (source, first), (sink, to) = reversed(ends) if into else ends
            copy = lib.clEnqueueCopyBuffer
            return bound(copy, queue, source, sink, first, to, part.size, *events)
        assert isinstance(buffer, HostBuffer)
        copy = lib.clEnqueueWriteBuffer if into else lib.clEnqueueReadBuffer
        span = (offset, part.size, buffer.pointer)
        return bound(copy, queue, memory, int(wait), *span, *events)

    def start(self) -> None:
        """Enqueue all commands; host data is copied through memory that this run owns."""
        context = self._on
        context.check_alive()
        sent, _ = self._staging()
        self._marker = None
        sent.fill()
        context.ready = False
        statuses = together(self._calls)
        self._mark()
        if any(statuses):
            self._wait_for_end()
            raise context.device.failed(next(filter(None, statuses)))

    def _staging(self) -> tuple[Staging, Staging]:
        if self._staged is None:
            program = self._on.program
            sent = Staging(self._bindings.inputs, (part.size for part in program.inputs))
            returned = Staging(self._bindings.outputs, (part.size for part in program.outputs))
            copies = self.copies_in(sent.buffers), self.copies_out(returned.buffers)
            self._calls = (*copies[0], *self._launches, *copies[1])
            self._staged = sent, returned
        return self._staged

    def _mark(self) -> None:
        """Enqueue a marker, whose event completes when the enqueued work has finished."""
        self._marker = self._on.cl.enqueue_marker(self._on.queue)
        self._on.queue.flush()

    def is_done(self) -> bool:
        if self._marker is None:  # an earlier call was interrupted
            self._mark()
        return bool(self._marker.command_execution_status <= 0)

    def finish(self) -> None:
        """Wait, and copy outputs. Raises InvokeTimeoutError."""
        self._wait_for_end()
        status = self._marker.command_execution_status if self._marker is not None else 0
        if status < 0:
            raise self._on.device.failed(status)
        if self._staged is not None:
            self._staged[1].deliver()

    def _wait_for_end(self) -> None:
        """Wait up to the context's timeout; after that, mark the device as lost."""
        context = self._on
        seconds = context.timeout
        if context.device.lost:
            raise context.device.loss()
        if seconds is None:
            context.finish_all()
        elif wait_until(self.is_done, seconds):
            context.ready = True
        else:
            context.give_up(self._staged, self._bindings, self._owned)
            self._owned = Handles()
            raise InvokeTimeoutError(
                f"OpenCL device '{context.device.info.name}' has not ended an invoke after "
                f"{seconds * 1e3:g} ms (invoke_timeout_ms). Create a new GpuDelegate and "
                "interpreter, with a longer limit if the device is not stuck."
            )

    def _run_in_time(self) -> None:
        context = self._on
        context.check_alive()
        try:
            self.start()
            self.finish()
        except BaseException:
            # After any error nothing is in flight, or the device is marked as lost.
            if not context.ready and not context.device.lost:
                self._marker = None
                with contextlib.suppress(context.cl.Error, InvokeTimeoutError):
                    self._wait_for_end()
            raise

    @finalizer
    def __del__(self) -> None:
        """Release the submission's kernels; a run in flight references its submission."""
        if not is_inherited(TITLE):
            self._owned.release()


def _run(calls: Sequence[Call], context: OpenCLContext, _bound: OpenCLSubmission) -> None:
    """Make all calls, of which the last blocks. `_bound` keeps the arguments alive."""
    if not context.ready or context.device.lost:
        context.check_alive()
    context.ready = False
    statuses = together(calls)
    if any(statuses):
        context.finish_all()
        raise context.device.failed(next(filter(None, statuses)))
    context.ready = True
