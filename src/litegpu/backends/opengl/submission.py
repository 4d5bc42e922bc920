"""The calls of a run on an OpenGL device: input copies, launches, output copies."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING

from litegpu.backends.buffers import Bindings, DeviceBuffer, HostBuffer
from litegpu.backends.direct_updates import DirectUpdates
from litegpu.backends.execution import Submission
from litegpu.backends.opengl import library
from litegpu.backends.opengl.buffers import OpenGLBorrowedBuffer
from litegpu.host.native_calls import bound

if TYPE_CHECKING:
    from litegpu.backends.opengl.context import OpenGLContext

_Call = Callable[[], object]


class OpenGLSubmission(Submission):
    """A run of prepared calls, which the context's thread makes."""

    def __init__(
        self, context: OpenGLContext, bindings: Bindings, direct: DirectUpdates | None = None
    ) -> None:
        """Prepare the calls for checked buffers."""
        super().__init__(context)
        self._on = context
        self._bindings = bindings  # keeps the memory alive
        self._direct = direct or DirectUpdates()
        self._fence: int | None = None
        buffers = (*bindings.inputs, *bindings.outputs)
        on_device = any(isinstance(each, DeviceBuffer) for each in buffers)
        self._shares = context.device.shares and on_device
        """Whether a buffer may belong to the application's context."""
        self._awaited: list[int] = []
        """Fences of the application's context for which the next run waits."""
        collect, fetch = self._copies_out(bindings)
        launches = (call for each in context.launches_on(self._direct) for call in each)
        self._work: list[_Call] = [*self._copies_in(bindings), *launches, *collect]
        self._fetch: list[_Call] = fetch
        if self._shares:
            theirs = [each for each in buffers if isinstance(each, OpenGLBorrowedBuffer)]
            self._work[:0] = [self._follow, *(each.check_there for each in theirs)]
        if self._shares or not fetch:
            self._fetch.append(bound(context.gl.call.glFinish))

    def _copies_in(self, bindings: Bindings) -> Iterator[_Call]:
        gl, source, target = self._on.gl.call, library.COPY_READ_BUFFER, library.COPY_WRITE_BUFFER
        parts = self._on.program.inputs
        starts = accumulate((part.size for part in parts), initial=0)
        pairs = [*enumerate(zip(parts, starts, bindings.inputs, strict=False))]
        direct = self._direct.inputs
        yield bound(gl.glBindBuffer, source, self._on.sent)
        yield bound(gl.glBindBuffer, target, self._on.memory)
        for number, (part, start, buffer) in pairs:
            if isinstance(buffer, HostBuffer):
                yield bound(gl.glBufferSubData, source, start, part.size, buffer.pointer)
                if number not in direct:
                    ends = (start, part.offset, part.size)
                    yield bound(gl.glCopyBufferSubData, source, target, *ends)
        for number, (part, _, buffer) in pairs:
            if isinstance(buffer, DeviceBuffer) and number not in direct:
                ends = (buffer.offset, part.offset, part.size)
                yield bound(gl.glBindBuffer, source, buffer.handle)
                yield bound(gl.glCopyBufferSubData, source, target, *ends)
        for number, (part, start, buffer) in pairs:
            if (to := direct.get(number)) is not None:
                at = (self._on.sent, start)
                if isinstance(buffer, DeviceBuffer):
                    at = buffer.handle, buffer.offset
                yield bound(gl.glBindBuffer, source, at[0])
                yield bound(gl.glBindBuffer, target, to.handle)
                yield bound(gl.glCopyBufferSubData, source, target, at[1], to.offset, part.size)

    def _copies_out(self, bindings: Bindings) -> tuple[list[_Call], list[_Call]]:
        """Return the calls that collect the outputs, and the calls that copy them to the host."""
        gl, source, target = self._on.gl.call, library.COPY_READ_BUFFER, library.COPY_WRITE_BUFFER
        parts = self._on.program.outputs
        starts = accumulate((part.size for part in parts), initial=0)
        collect: list[_Call] = [
            bound(gl.glMemoryBarrier, library.BUFFER_UPDATE_BARRIER),
            bound(gl.glBindBuffer, source, self._on.memory),
        ]
        to_host: list[_Call] = [bound(gl.glBindBuffer, target, self._on.returned)]
        fetch: list[_Call] = []
        ends = enumerate(zip(parts, starts, bindings.outputs, strict=False))
        for part, start, buffer in (e for number, e in ends if number not in self._direct.outputs):
            copy = partial(bound, gl.glCopyBufferSubData, source, target, part.offset)
            if isinstance(buffer, DeviceBuffer):
                collect.append(bound(gl.glBindBuffer, target, buffer.handle))
                collect.append(copy(buffer.offset, part.size))
            elif isinstance(buffer, HostBuffer):
                to_host.append(copy(start, part.size))
                fetch.append(bound(gl.glGetBufferSubData, target, start, part.size, buffer.pointer))
        return [*collect, *to_host], fetch

    @property
    def run(self) -> Callable[[], None]:
        context = self._on
        if context.timeout is None:
            calls = (*self._work, *self._fetch)
            work = partial(context.make, calls)
        else:
            work = partial(self._make_within, context.timeout, self._work, self._fetch)
        if self._shares:
            return partial(self._run_after, work)
        return partial(_run, context, work, self._bindings)

    def _run_after(self, work: _Call) -> None:
        """Run after the application's commands, if its context is current on this thread."""
        self._await_current()
        _run(self._on, work, self._bindings)

    def _await_current(self) -> None:
        fence = self._on.device.fence_of_current()
        if fence is not None:
            self._awaited.append(fence)

    def _follow(self) -> None:
        while self._awaited:
            self._on.gl.follow(self._awaited.pop())

    def _make_within(self, seconds: float, work: Sequence[_Call], fetch: Sequence[_Call]) -> None:
        """Make all calls; the calls in `fetch` only if the caller is still waiting.

        Raises TimeoutError, or UnwantedError if the caller has stopped waiting.
        """
        worker = self._on.device.worker
        self._on.make([call for each in work for call in (worker.check, each)])
        if not self._on.gl.finish_within(seconds):
            raise TimeoutError
        worker.commit()
        self._on.make(fetch)

    def start(self) -> None:
        """Submit all work except the final copies to the host."""
        if self._shares:
            self._await_current()
        self._on.device.call(self._begin)

    def _begin(self) -> None:
        self._on.make(self._work)
        self._drop_fence()
        self._fence = self._on.gl.fence()

    def _drop_fence(self) -> None:
        fence, self._fence = self._fence, None
        if fence is not None:
            self._on.gl.call.glDeleteSync(fence)

    def is_done(self) -> bool:
        return self._on.device.call(lambda: self._on.gl.is_reached(self._fence))

    def finish(self) -> None:
        """Wait, and copy outputs to the host. Raises InvokeTimeoutError."""
        # Other code may have bound its buffers in the meantime.
        gl, target = self._on.gl.call, library.COPY_WRITE_BUFFER
        fetch: list[_Call] = [bound(gl.glBindBuffer, target, self._on.returned), *self._fetch]
        context = self._on
        if context.timeout is None:
            context.device.call(partial(context.make, fetch))
        else:
            seconds = context.timeout
            context.device.call(partial(self._make_within, seconds, (), fetch), seconds)
        context.device.worker.post(self._drop_fence)


def _run(context: OpenGLContext, work: _Call, _bound: Bindings) -> None:
    """Submit a run in the context's thread. `_bound` keeps the run's buffers alive."""
    if context.in_flight is not None:
        context.synchronize()
    context.device.call(work, context.timeout)
