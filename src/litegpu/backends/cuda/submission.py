"""A run on an NVIDIA GPU: staging, copies, a captured graph, and the synchronization."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from litegpu.backends.buffers import Bindings, Buffer, DeviceBuffer, HostBuffer
from litegpu.backends.cuda.buffers import CUDABorrowedBuffer
from litegpu.backends.cuda.driver import NOT_READY, TITLE, Handles, driver, failure, ready
from litegpu.backends.cuda.io_bindings import (
    Place,
    Span,
    copied_bindings,
    direct_bindings,
    is_external,
)
from litegpu.backends.execution import Submission
from litegpu.backends.program import BufferRange
from litegpu.errors import ExecutionError, InvokeTimeoutError
from litegpu.host.finalizers import finalizer
from litegpu.host.fork_safety import is_inherited, keep_in_children
from litegpu.host.native_calls import together, wait_until

if TYPE_CHECKING:
    from litegpu.backends.cuda.context import CUDAContext

_Move = tuple[ctypes.c_void_p, int, int]
"""A copy by the host: a pointer to host data, the address of a pinned buffer, and the bytes."""
_Call = partial[int]


class CUDASubmission(Submission):
    """A run of a graph on a context's stream, with all calls prepared.

    Host data is copied through the context's pinned buffers. GPU memory and external pinned memory
    are copied directly to or from the context's memory. For repeated runs, the submission captures
    a separate graph, which accesses that memory without a copy.
    """

    def __init__(
        self,
        context: CUDAContext,
        bindings: Bindings,
        stream: int | None = None,
        repeated: bool = False,
    ) -> None:
        """Prepare the calls for checked buffers; each run waits for the work in `stream`.

        Raises CudaError if the driver lacks a function.
        """
        super().__init__(context)
        self._on, self._owned = context, Handles()
        inputs = list(zip(bindings.inputs, context.inputs, strict=True))
        outputs = list(zip(bindings.outputs, context.outputs, strict=True))
        program = context.program
        io = copied = copied_bindings(bindings, context.inputs, context.outputs)
        if repeated:
            io = direct_bindings(bindings, program, copied)
        self._used = () if io == copied else (*bindings.inputs, *bindings.outputs)
        if self._used:
            keep_in_children(self)
            context.device.holders.add(self)
            self.graph = context.graph_on(io, self._owned)
        else:
            self.graph = context.graph_of(io)
        self._moves_in, self._moves_out = list(_moves(inputs)), list(_moves(outputs))
        before = [
            *self._waits(bindings, stream),
            *self._copies(bindings.inputs, program.inputs, io[0], into=True),
        ]
        after = [*self._copies(bindings.outputs, program.outputs, io[1], into=False)]
        self._bindings = bindings  # keeps the memory alive
        self._popped = ctypes.c_void_p()
        self._push = ready("cuCtxPushCurrent", int(context.device.context), brief=True)
        self._pop = ready("cuCtxPopCurrent", ctypes.byref(self._popped), brief=True)
        launch = ready("cuGraphLaunch", self.graph.handle, int(context.stream))
        self._query = ready("cuStreamQuery", int(context.stream))
        names, calls = zip(*before, ("cuGraphLaunch", launch), *after, strict=True)
        self._names: tuple[str, ...] = names
        self._work: tuple[_Call, ...] = calls

    def _waits(self, bindings: Bindings, stream: int | None) -> Iterable[tuple[str, _Call]]:
        """Yield the calls that wait for work of other libraries."""
        buffers = (*bindings.inputs, *bindings.outputs)
        events = {b.arrival for b in buffers if isinstance(b, CUDABorrowedBuffer)} - {None}
        if stream is not None:
            event = self._on.make_event()
            yield "cuEventRecord", ready("cuEventRecord", event, stream)
            events.add(event)
        for each in events:
            yield "cuStreamWaitEvent", ready("cuStreamWaitEvent", int(self._on.stream), each, 0)

    def _copies(
        self,
        buffers: Sequence[Buffer],
        parts: Sequence[BufferRange],
        places: Sequence[Place | None],
        into: bool,
    ) -> Iterable[tuple[str, _Call]]:
        """Yield the copies that are not part of the graph."""
        for buffer, part, place in zip(buffers, parts, places, strict=True):
            if place is None:
                if isinstance(buffer, DeviceBuffer):
                    outside: int | ctypes.c_void_p = buffer.handle + buffer.offset
                else:
                    assert isinstance(buffer, HostBuffer)
                    outside = buffer.pointer
                inside = self._on.address(part)
                target, source = (inside, outside) if into else (outside, inside)
                copy = (target, source, part.size, int(self._on.stream))
                yield "cuMemcpyAsync", ready("cuMemcpyAsync", *copy)

    @property
    def run(self) -> Callable[[], None]:
        if self._on.timeout is not None:
            return self._run_in_time
        calls = (self._push, *self._work, self._on.wait, self._pop)
        return partial(_run, self, self._on, calls, self._used, self._moves_in, self._moves_out)

    def stage(self) -> None:
        """Copy host inputs to the pinned buffers."""
        for pointer, own, size in self._moves_in:
            if pointer.value != own:
                ctypes.memmove(own, pointer, size)

    def deliver(self) -> None:
        """Copy the pinned buffers to host outputs."""
        for pointer, own, size in self._moves_out:
            if pointer.value != own:
                ctypes.memmove(pointer, own, size)

    def launch(self) -> None:
        """Enqueue the copies and the graph. Raises CudaError or DeviceLostError."""
        statuses = together((self._push, *self._work, self._pop))
        if any(statuses):
            self.fail(("cuCtxPushCurrent", *self._names), statuses)

    def start(self) -> None:
        """Stage inputs, and enqueue all device work."""
        self._on.check_alive()
        for buffer in self._used:
            buffer.check_open()
        self.stage()
        self._on.ready = False
        self.launch()

    def is_done(self) -> bool:
        statuses = together((self._push, self._query, self._pop))
        if statuses[1] == NOT_READY:
            return False
        if any(statuses):
            self.fail(("cuCtxPushCurrent", "cuStreamQuery"), statuses)
        return True

    def finish(self) -> None:
        """Wait, and copy outputs. Raises InvokeTimeoutError, which marks the device as lost."""
        context = self._on
        if context.device.lost:
            raise context.device.loss()
        if context.timeout is None:
            statuses = together((self._push, context.wait, self._pop))
            if any(statuses):
                self.fail(("cuCtxPushCurrent", "cuStreamSynchronize"), statuses)
        else:
            self._wait_for(context.timeout)
        self.deliver()

    def _wait_for(self, seconds: float) -> None:
        if not wait_until(self.is_done, seconds):
            device = self._on.device
            device.lost = True
            raise InvokeTimeoutError(
                f"CUDA device '{device.info.name}' has not ended an invoke after "
                f"{seconds * 1e3:g} ms (invoke_timeout_ms). Create a new GpuDelegate and "
                "interpreter, with a longer limit if the device is not stuck."
            )

    def _run_in_time(self) -> None:
        self._on.check_alive()
        try:
            self.start()
            self.finish()
        except InvokeTimeoutError:
            raise
        except BaseException:
            device, seconds = self._on.device, self._on.timeout or 0.0
            with contextlib.suppress(ExecutionError):
                device.lost = not wait_until(self.is_done, seconds) or device.lost
            raise

    def fail(self, names: Sequence[str], statuses: Sequence[int]) -> None:
        """Raise the error of the first call that failed; the last one is cuCtxPopCurrent."""
        cu = driver()
        if statuses[0] and self._popped.value:  # the push failed, so another context was popped
            ready("cuCtxPushCurrent", self._popped.value)()
        results = zip((*names, "cuCtxPopCurrent"), statuses, strict=True)
        name, status = next((name, status) for name, status in results if status)
        error = failure(getattr(cu, name), cu.CUresult(status))
        self._on.device.note(error)
        raise error

    @finalizer
    def __del__(self) -> None:
        """Release the submission's graph; a run in flight references its submission."""
        if self._used and not is_inherited(TITLE):
            self._on.device.release(self, self._owned)

    def fail_waiting(self, statuses: Sequence[int]) -> None:
        """Raise the error of a run after its wait."""
        self.fail(("cuCtxPushCurrent", *self._names, "cuStreamSynchronize"), statuses)


def _run(
    submission: CUDASubmission,
    context: CUDAContext,
    calls: Sequence[_Call],
    used: Sequence[Buffer],
    moves_in: Sequence[_Move],
    moves_out: Sequence[_Move],
) -> None:
    """Stage, launch, wait and copy outputs; no Python code runs between launch and wait."""
    if not context.ready or context.device.lost:
        context.check_alive()
    for buffer in used:
        buffer.check_open()
    for pointer, own, size in moves_in:
        if pointer.value != own:
            ctypes.memmove(own, pointer, size)
    statuses = together(calls)
    if any(statuses):
        submission.fail_waiting(statuses)
    for pointer, own, size in moves_out:
        if pointer.value != own:
            ctypes.memmove(pointer, own, size)


def _moves(pairs: Iterable[tuple[Buffer, Span]]) -> Iterable[_Move]:
    for buffer, span in pairs:
        if isinstance(buffer, HostBuffer) and not is_external(buffer, span):
            yield buffer.pointer, *span
