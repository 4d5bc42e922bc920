"""Executables and execution contexts: a compiled program can run in several contexts."""

from __future__ import annotations

import contextlib
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Protocol

import numpy as np

from litegpu.backends.buffers import Bindings, Buffer, Bytes
from litegpu.backends.program import BufferRange, Program
from litegpu.backends.shared_blocks import SharedBlock, SharedBlocks, Uploader
from litegpu.errors import BindingError, CompilationError, ExecutionError
from litegpu.host.fork_safety import Living
from litegpu.host.native_calls import wait_until

SMALL_CONSTANTS = 16 << 20
"""Size in bytes up to which the host keeps constants, for the search for lethal kernels."""


class _BlockOwner(Protocol):
    """A device with its blocks of constants."""

    @property
    def blocks(self) -> SharedBlocks: ...
    def upload(self, data: Bytes) -> Buffer: ...
    def uploader(self) -> Uploader | None: ...


class Executable(ABC):
    """A compiled program and its constants on a device; immutable apart from `exchange`.

    All threads share an executable through their contexts. The device memory is released once all
    owners have closed the executable and all contexts are closed.
    """

    def __init__(self, program: Program, device: _BlockOwner) -> None:
        """Store the program in the form in which the device runs it."""
        self.program, self._block_owner = program, device
        self.constants: Any = None
        """The device's handle of the small constants; false if there are none."""
        self._blocks: list[SharedBlock] | None = None
        self.fast_compiled = False
        """Whether the binaries were compiled fast; see Device.compilation."""
        self._contexts = Living[ExecutionContext]()
        self._joining = threading.RLock()
        self._closed = False
        self._owners: set[int] = set()

    def free_constants(self) -> None:
        """Free the host's copy of large constants; the device has its own copy.

        The constants of `program` keep their size, but read as zeros.
        """
        program = self.program
        if program.constant_bytes > SMALL_CONSTANTS:
            nothing = np.broadcast_to(np.uint8(0), (program.constants.nbytes,))
            blocks = tuple(block.freed() for block in program.blocks)
            self.program = replace(program, constants=nothing, blocks=blocks)

    def constants_of(self, part: BufferRange) -> Any:
        """Return the handle of the constants that contain a range; contexts keep it valid."""
        if part.block is None:
            return self.constants
        assert self._blocks is not None, "an executable with a context has its blocks"
        return self._blocks[part.block].handle

    def own(self, owner: object) -> bool:
        """Add an owner, which delays the release until its `close`; return False if released.

        An owner is removed when it closes the executable.
        """
        with self._joining:
            if not self._closed:
                self._owners.add(id(owner))
            return not self._closed

    def context(self) -> ExecutionContext:
        """Return a context: the memory and the queue for one run at a time.

        The first context uploads the large constants that no other program on the device has.
        Raises DeviceMemoryError if memory is insufficient, and ExecutionError if the device fails
        or after `close`.
        """
        if self._closed:
            raise ExecutionError("This executable was released. Compile its program again.")
        with self._joining:
            if self._blocks is None:
                owner = self._block_owner
                self._blocks = owner.blocks.upload(self.program.blocks, owner)
        return self._make_context()

    @abstractmethod
    def _make_context(self) -> ExecutionContext: ...

    def binaries(self) -> Mapping[str, bytes]:
        """Return the executable's binaries by name, for Device.load with the same program.

        The mapping is empty if the API has no binaries. The first run may add binaries, because
        some drivers compile during that run. Raises ExecutionError if the device fails.
        """
        return {}

    def exchange(self, binaries: Mapping[str, bytes]) -> None:
        """Replace the binaries by optimized binaries, which each context uses as of its next run.

        Any thread may call `exchange`, also during runs. After `close`, the method does nothing.
        Raises CompilationError if the driver rejects the binaries, and ExecutionError if the device
        fails. After an error, the executable is unchanged.
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
        """Release all device memory once no context needs it. Repeated calls do nothing.

        With an `owner`, the release waits until all other owners have closed the executable, too.
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
                self._blocks = None

    @abstractmethod
    def _release(self) -> None:
        """Release all device memory. Callers may retry after an error."""


class ExecutionContext(ABC):
    """The memory and queue with which one thread at a time runs an executable."""

    timeout: float | None = None
    """Maximum seconds that a run may wait for the device; None for no limit.

    After that time, the run raises InvokeTimeoutError and the device is lost. Memory that the
    device may still access is never freed. A new `timeout` does not affect submissions that are
    already bound.
    """
    has_streams: ClassVar[bool] = False
    """Whether `bind_after` supports the streams of other libraries."""
    in_flight: Event | None = None
    """The event of the last submitted run, until the run is known to have ended."""

    def __init__(self, executable: Executable) -> None:
        """Reference an executable; the context's creator calls `Executable.enter`."""
        self.executable = executable

    @property
    def program(self) -> Program:
        """The program that the context runs."""
        return self.executable.program

    @abstractmethod
    def bind(self, bindings: Bindings) -> Submission:
        """Prepare runs with these buffers. Raises BindingError if the buffers do not fit."""

    def bind_after(self, bindings: Bindings, stream: int) -> Submission:
        """Prepare runs; each run waits for all work that is in a stream when the run starts.

        Raises BindingError if the API has no streams of other libraries, and the errors of `bind`.
        """
        raise without_streams()

    def bind_cached(self, bindings: Bindings, stream: int | None = None) -> Submission:
        """Prepare many runs, as `bind` does or, with a `stream`, as `bind_after` does.

        Preparation may take longer, so that kernels can access the buffers directly. Raises the
        errors of `bind` and `bind_after`.
        """
        return self.bind(bindings) if stream is None else self.bind_after(bindings, stream)

    def run(self, bindings: Bindings) -> None:
        """Copy in, run all launches, copy out, and wait. Raises as `bind` and `Event.wait` do."""
        self.bind(bindings).run()

    def first_run(self, bindings: Bindings) -> None:
        """Run as `run` does; drivers that compile kernels at their first launch do so here.

        A context of such a driver launches one kernel after another, so that an interrupt waits
        for one kernel only, and reports the progress. The context's timeout does not apply.
        """
        self.run(bindings)

    def submit(self, bindings: Bindings) -> Event:
        """Start a run. See Submission.submit."""
        return self.bind(bindings).submit()

    def pinned(self) -> Bindings | None:
        """Return the context's host memory that needs no copy, valid until `close`.

        Runs with inputs and outputs in this memory are faster. Returns None if the context has no
        such memory.
        """
        return None

    @abstractmethod
    def profiler(self) -> Profiler:
        """Return the profiler that measures the times of this context."""

    @abstractmethod
    def read_memory(self) -> Bytes:
        """Return the current content of the context's memory (for tests and debugging)."""

    @abstractmethod
    def close(self) -> None:
        """Release all device memory of the context. Repeated calls do nothing."""

    def synchronize(self) -> None:
        """Wait for the last submitted run; only the run's event raises the run's error."""
        event = self.in_flight
        if event is not None:
            with contextlib.suppress(Exception):
                event.wait()
            self.in_flight = None


def without_streams() -> BindingError:
    """Return the error for a stream on a device whose API has no streams."""
    return BindingError(
        "This device has no streams. Wait for the inputs, and run without `stream`."
    )


class Submission(ABC):
    """A prepared run of a context with fixed buffers, which can run repeatedly."""

    def __init__(self, context: ExecutionContext) -> None:
        """Create a submission in a context."""
        self._context = context

    @property
    @abstractmethod
    def run(self) -> Callable[[], None]:
        """The function that starts a run and waits, with minimal Python overhead.

        The function raises ExecutionError if the device fails, DeviceLostError if the device fails
        permanently, and InvokeTimeoutError after the context's `timeout`.
        """

    def submit(self) -> Event:
        """Start a run after this context's previous run, without waiting for the end.

        The method copies host inputs, which the caller may modify afterwards. The caller must not
        modify pinned and device memory until the run ends. Outputs are complete when `Event.wait`
        has returned. Raises ExecutionError if the device fails.
        """
        context = self._context
        context.synchronize()
        event = Event(self, context)
        self.start()
        context.in_flight = event
        return event

    @abstractmethod
    def start(self) -> None:
        """Submit all work to the device."""

    @abstractmethod
    def is_done(self) -> bool:
        """Return whether the run is done, without waiting."""

    @abstractmethod
    def finish(self) -> None:
        """Wait for the device up to the context's timeout, and copy outputs; can be repeated."""


class Event:
    """The end of a submitted run."""

    def __init__(self, submission: Submission, context: ExecutionContext) -> None:
        """Refer to a submission that was started in a context."""
        self._submission, self._context = submission, context
        self._finishing = threading.Lock()
        self._over = False
        self._error: Exception | None = None

    def done(self) -> bool:
        """Return whether `wait` would return or raise immediately."""
        if self._over or not self._finishing.acquire(blocking=False):
            return self._over
        try:
            return self._over or self._is_done()
        finally:
            self._finishing.release()

    def _is_done(self) -> bool:
        try:
            return self._submission.is_done()
        except Exception:  # `wait` raises it
            return True

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the outputs for at most `timeout` seconds; return whether they are complete.

        After `timeout` seconds the method returns, but the run continues. Without `timeout`, the
        context's timeout applies, starting at the call. Repeated calls raise the same error; see
        Submission.run.
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
    """Measures the times of an open context, and overwrites the context's memory."""

    def __init__(self, context: ExecutionContext) -> None:
        """Measure the times of a context."""
        self._run = context.run

    @abstractmethod
    def durations(self) -> list[float]:
        """Run all launches once or more; return the device time of each launch in seconds."""

    def chain_seconds(self) -> float | None:
        """Run all launches as in a run, but without copies; return the device time in seconds.

        Returns None if the device cannot measure the time.
        """
        return None

    def device_seconds(self, bindings: Bindings) -> float | None:
        """Run once; return the device time in seconds from first to last copy, or None."""
        return None

    def phases(self, bindings: Bindings) -> dict[str, float]:
        """Run once; return the host's time in seconds for each of its activities, in order."""
        start = time.perf_counter()
        self._run(bindings)
        return {"run": time.perf_counter() - start}
