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
    """A compiled program and its constants on a device; only `exchange` changes it any more.

    Contexts of any thread share it. It is released when its owner has closed it and no context of
    it lives any more.
    """

    def __init__(self, program: Program) -> None:
        """Take the program as the device runs it."""
        self.program = program
        self.fast_compiled = False
        """Whether its binaries were compiled in a hurry; see Device.compilation."""
        self._contexts = Living[ExecutionContext]()
        self._joining = threading.RLock()
        self._closed = False
        self._owners: set[int] = set()

    def own(self, owner: object) -> bool:
        """Have one more owner, before whose `close` nothing is released; False if it was before.

        Owners live until they have closed it.
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
            raise ExecutionError("This executable was released. Compile its program anew.")
        return self._make_context()

    @abstractmethod
    def _make_context(self) -> ExecutionContext: ...

    def binaries(self) -> Mapping[str, bytes]:
        """Return what Device.load makes an executable of the same program of, by names.

        Nothing where the API gives none. After a first run they may hold more: some drivers compile
        only then. Raises ExecutionError when the device fails.
        """
        return {}

    def exchange(self, binaries: Mapping[str, bytes]) -> None:
        """Take better binaries of the program: each context has them from its next run on.

        Any thread may call it, also while contexts run. After `close` it does nothing. Raises
        CompilationError when the driver refuses them, ExecutionError when the device fails; then
        nothing has changed.
        """
        with self._joining:
            if not self._closed:
                self._exchange(binaries)
                self.fast_compiled = False

    def _exchange(self, binaries: Mapping[str, bytes]) -> None:
        raise CompilationError("This executable takes no other binaries.")

    def enter(self, context: ExecutionContext) -> None:
        """Stay for a context, which is being made, until it leaves or is no more."""
        with self._joining:
            self._contexts.add(context)

    def leave(self, context: ExecutionContext) -> None:
        """Let a context go that is closed."""
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
    """Whether `bind_after` knows streams that others may have."""
    in_flight: Event | None = None
    """What was submitted last, until its end was seen."""

    def __init__(self, executable: Executable) -> None:
        """Keep an executable. Whoever makes a context has it enter there."""
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
        """Return the context's own host memory that needs no copying, until `close`.

        Whatever is bound costs a run less where its data lies there already. None: there is none.
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
        """Wait for what was submitted last; whoever waits for it is told its error."""
        event = self.in_flight
        if event is not None:
            with contextlib.suppress(Exception):
                event.wait()
            self.in_flight = None


def without_streams() -> BindingError:
    """Return the error for a stream on a device that has none."""
    return BindingError(
        "This device has no streams. Wait for what makes the inputs, and run without `stream`."
    )


class Submission(ABC):
    """A run of a context with given buffers: prepared once, made as often as wanted."""

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
        """Begin a run, after the end of the one before in this context; do not wait.

        Inputs of the host are copied now and may change at once; pinned and device memory belongs
        to the run until its end. Outputs are there when `Event.wait` has returned.
        Raises ExecutionError when the device fails.
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
        """Return whether the device has come to an end, without waiting."""

    @abstractmethod
    def finish(self) -> None:
        """Wait for the device, as long as the context may, and copy out. It may be repeated."""


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
        """Wait for the outputs, for `timeout` seconds at most; return whether they are there.

        Nothing is given up after that. Without one the context's `timeout` holds, from now on.
        Raises what Submission.run does, each time again.
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
    """Takes the times of a context, which must live. What its memory held is lost."""

    def __init__(self, context: ExecutionContext) -> None:
        """Take the times of a context."""
        self._run = context.run

    @abstractmethod
    def durations(self) -> list[float]:
        """Run all launches once or more; return the device seconds of each by itself."""

    def chain_seconds(self) -> float | None:
        """Run all launches as a run does, without copies; return their device seconds.

        None where the device cannot tell.
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
