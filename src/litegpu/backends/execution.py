"""What a device makes of a program: compiled once, run in any number of contexts."""

from __future__ import annotations

import contextlib
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import ClassVar

from litegpu.backends.buffers import Bindings, Bytes
from litegpu.backends.program import Program
from litegpu.errors import BindingError, CompilationError, ExecutionError
from litegpu.host.fork_safety import Living
from litegpu.host.native_calls import wait_until


class Executable(ABC):
    """A compiled program and its constants on a device; immutable apart from `exchange`.

    Contexts of any thread share it. It is released when its owner has closed it and no context of
    it exists.
    """

    def __init__(self, program: Program) -> None:
        """Take the program as the device runs it."""
        self.program = program
        self.fast_compiled = False
        """Whether its binaries were compiled fast; see Device.compilation."""
        self._contexts = Living[ExecutionContext]()
        self._joining = threading.RLock()
        self._closed = False
        self._owners: set[int] = set()

    def own(self, owner: object) -> bool:
        """Add an owner, before whose `close` nothing is released; False if already released.

        Owners exist until they have closed it.
        """
        with self._joining:
            if not self._closed:
                self._owners.add(id(owner))
            return not self._closed

    def context(self) -> ExecutionContext:
        """Allocate what one run at a time needs.

        Raises DeviceMemoryError when memory is short, ExecutionError when the device fails or after
        `close`.
        """
        if self._closed:
            raise ExecutionError("This executable was released. Compile its program again.")
        return self._make_context()

    @abstractmethod
    def _make_context(self) -> ExecutionContext: ...

    def binaries(self) -> Mapping[str, bytes]:
        """Return the binaries for Device.load with the same program, by name.

        Empty if the API has none. After a first run they may contain more: some drivers compile
        only then. Raises ExecutionError if the device fails.
        """
        return {}

    def exchange(self, binaries: Mapping[str, bytes]) -> None:
        """Replace the binaries by optimized ones, which each context uses from its next run on.

        Any thread may call it, also while contexts run. After `close` it does nothing. Raises
        CompilationError if the driver rejects them, ExecutionError if the device fails; then
        nothing changes.
        """
        with self._joining:
            if not self._closed:
                self._exchange(binaries)
                self.fast_compiled = False

    def _exchange(self, binaries: Mapping[str, bytes]) -> None:
        raise CompilationError("This executable cannot exchange its binaries.")

    def enter(self, context: ExecutionContext) -> None:
        """Keep the executable alive while this context exists."""
        with self._joining:
            self._contexts.add(context)

    def leave(self, context: ExecutionContext) -> None:
        """Remove a closed context."""
        self._contexts.discard(context)
        self._release_unused()

    def close(self, owner: object = None) -> None:
        """Release everything on the device, once no context needs it. Harmless when repeated.

        Where an `owner` says so, all others must have, too.
        """
        with self._joining:
            self._owners.discard(id(owner))
            if owner is None or not self._owners:
                self._closed = True
        self._release_unused()

    def _release_unused(self) -> None:
        with self._joining:
            if self._closed and not len(self._contexts):
                self._release()

    @abstractmethod
    def _release(self) -> None:
        """Release everything on the device. It may be called again after an error."""


class ExecutionContext(ABC):
    """Memory and a queue, for one run of an executable at a time; one thread at a time uses it."""

    timeout: float | None = None
    """The most seconds that a run may wait for the device; None: no limit.

    After that long it raises InvokeTimeoutError, the device is lost, and memory that it may still
    touch is never freed. What is bound before it is changed keeps its limit.
    """
    has_streams: ClassVar[bool] = False
    """Whether `bind_after` supports the streams of other libraries."""
    in_flight: Event | None = None
    """What was submitted last, until its end was seen."""

    def __init__(self, executable: Executable) -> None:
        """Reference an executable. The creator of a context registers it there."""
        self.executable = executable
        self.program = executable.program

    @abstractmethod
    def bind(self, bindings: Bindings) -> Submission:
        """Prepare runs with given buffers. Raises BindingError when they do not fit."""

    def bind_after(self, bindings: Bindings, stream: int) -> Submission:
        """Prepare runs that begin after what is on a stream of the API's then.

        Raises BindingError where there are no streams that others could have, and as `bind` does.
        """
        raise without_streams()

    def bind_cached(self, bindings: Bindings, stream: int | None = None) -> Submission:
        """Prepare runs as `bind` does, or `bind_after`, of which there will be many.

        Preparing them may take longer, for kernels that use the buffers themselves. Raises what
        these do.
        """
        return self.bind(bindings) if stream is None else self.bind_after(bindings, stream)

    def run(self, bindings: Bindings) -> None:
        """Copy in, run all launches, copy out, and wait. Raises what `bind` and `Event.wait` do."""
        self.bind(bindings).run()

    def submit(self, bindings: Bindings) -> Event:
        """Begin a run. See Submission.submit."""
        return self.bind(bindings).submit()

    def pinned(self) -> Bindings | None:
        """Return the context's host memory that needs no copy, valid until `close`.

        Runs on data in it are faster. None if there is none.
        """
        return None

    @abstractmethod
    def profiler(self) -> Profiler:
        """Return what takes the times of this context."""

    @abstractmethod
    def read_memory(self) -> Bytes:
        """Return the context's memory as it is now (for tests and debugging)."""

    @abstractmethod
    def close(self) -> None:
        """Release what the context has on the device. Harmless when repeated."""

    def synchronize(self) -> None:
        """Wait for the last submitted run; its error is raised by its own event."""
        event = self.in_flight
        if event is not None:
            with contextlib.suppress(Exception):
                event.wait()
            self.in_flight = None


def without_streams() -> BindingError:
    """Return the error for a stream on a device that has none."""
    return BindingError(
        "This device has no streams. Wait for the inputs, and run without `stream`."
    )


class Submission(ABC):
    """A run of a context with given buffers: prepared once, run repeatedly."""

    def __init__(self, context: ExecutionContext) -> None:
        """Run in a context."""
        self._context = context

    @property
    @abstractmethod
    def run(self) -> Callable[[], None]:
        """What makes the run and waits: as little Python as the API permits, however many launches.

        It raises ExecutionError when the device fails, DeviceLostError when it did for good, and
        InvokeTimeoutError after the context's `timeout`.
        """

    def submit(self) -> Event:
        """Start a run after the previous one of this context; do not wait.

        Host inputs are copied now and may be modified immediately; pinned and device memory belongs
        to the run until its end. Outputs are complete when `Event.wait` has returned.
        Raises ExecutionError if the device fails.
        """
        context = self._context
        context.synchronize()
        event = Event(self, context)
        self.start()
        context.in_flight = event
        return event

    @abstractmethod
    def start(self) -> None:
        """Hand everything to the device."""

    @abstractmethod
    def is_done(self) -> bool:
        """Return whether the run is done, without waiting."""

    @abstractmethod
    def finish(self) -> None:
        """Wait for the device up to the context's timeout, and copy out. It may be repeated."""


class Event:
    """The end of a run that was submitted."""

    def __init__(self, submission: Submission, context: ExecutionContext) -> None:
        """Take what was submitted in a context."""
        self._submission, self._context = submission, context
        self._finishing = threading.Lock()
        self._over = False
        self._error: Exception | None = None

    def done(self) -> bool:
        """Return whether waiting would take no time, as when the run has failed."""
        if self._over or not self._finishing.acquire(blocking=False):
            return self._over
        try:
            return self._over or self._is_done()
        finally:
            self._finishing.release()

    def _is_done(self) -> bool:
        try:
            return self._submission.is_done()
        except Exception:  # `wait` will say so
            return True

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the outputs for at most `timeout` seconds; return whether they are complete.

        After the timeout the run continues. Without one the context's `timeout` applies from now
        on. Raises as Submission.run does, at each call.
        """
        if timeout is not None and not wait_until(self.done, timeout):
            return False
        with self._finishing:
            if not self._over:
                try:
                    self._submission.finish()
                except Exception as error:
                    self._error = error
                self._over = True
        if self._context.in_flight is self:
            self._context.in_flight = None
        if self._error is not None:
            raise self._error.with_traceback(None)
        return True


class Profiler(ABC):
    """Measures the times of a context, which must exist. Overwrites its memory."""

    def __init__(self, context: ExecutionContext) -> None:
        """Take the times of a context."""
        self._run = context.run

    @abstractmethod
    def durations(self) -> list[float]:
        """Run all launches once or more; return the device seconds of each alone."""

    def chain_seconds(self) -> float | None:
        """Run all launches as a run does, without copies; return their device seconds.

        None if the device cannot measure them.
        """
        return None

    def device_seconds(self, bindings: Bindings) -> float | None:
        """Run; return the device seconds from the first copy to the last, or None."""
        return None

    def phases(self, bindings: Bindings) -> dict[str, float]:
        """Run; return the host's seconds by what it was busy with, in order."""
        start = time.perf_counter()
        self._run(bindings)
        return {"run": time.perf_counter() - start}
