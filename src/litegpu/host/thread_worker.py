"""A worker thread for objects that only one thread may use; other threads submit calls.

Signals interrupt only the main thread, so a call on a worker always completes. A signal may
interrupt a waiting caller at any moment. `Worker.call` then either cancels the call before its
start, or waits for its end and raises the exception afterwards.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from litegpu.errors import ExecutionError, without_threads

_Result = TypeVar("_Result")

_LOOK_SECONDS = 0.1
"""Interval in seconds at which a waiting caller checks that the thread still runs."""
_LEVELS = 8
"""Minimum number of consecutive interrupts that a call tolerates."""
_EXIT_SECONDS = 0.5
"""Seconds that the program's exit waits for running calls."""


class WorkerEndedError(ExecutionError):
    """The worker has ended and accepts no more calls."""


class UnwantedError(Exception):
    """The caller no longer waits for the call; raised and handled on the worker."""


class Worker:
    """One thread that makes calls in the order in which they are submitted.

    The thread is a daemon thread: at exit, the program waits for the thread only briefly.
    """

    def __init__(self, name: str) -> None:
        """Start the thread. Raises UnsupportedDeviceError if the system cannot start a thread."""
        self.ended = False
        """Whether the worker was stopped or abandoned, or belongs to the parent process."""
        self._gone = False
        self._calls: queue.SimpleQueue[_Call[Any] | None] = queue.SimpleQueue()
        self._current: _Call[Any] | None = None
        self._last: Callable[[], object] | None = None
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            raise without_threads(error) from error
        _workers.add(self)

    def call(self, function: Callable[[], _Result], timeout: float | None = None) -> _Result:
        """Make a call on the thread and return its result, or raise its exception.

        After `timeout` seconds, raises TimeoutError, and the worker makes no further calls; see
        `commit`. Raises WorkerEndedError if the thread cannot answer.
        """
        if threading.current_thread() is self._thread:
            return function()
        call = _Call(function, timeout)
        self._call(call, _LEVELS)
        if call.error is None:
            return call.result
        try:
            raise call.error
        finally:
            call.error = None  # its traceback references the error, which would outlive its handler

    def _call(self, call: _Call[Any], levels: int) -> None:
        """Make a call; return or raise once the call has ended, is abandoned or will never start.

        An interrupt may also exit `_wait_for_end` between two of its rounds; the next level then
        continues. A higher number of levels makes an exit by an interrupt far less likely, even if
        an interrupt arrives during the handling of another interrupt.
        """
        try:
            if levels:
                self._call(call, levels - 1)
            else:
                self._ask(call)
        finally:
            if not call.over:
                self._wait_for_end(call)

    def _ask(self, call: _Call[Any]) -> None:
        if not self.ended:
            self._calls.put(call)
            while self._wait(call):
                pass
        if not call.over:
            raise WorkerEndedError(
                f"The thread '{self._thread.name}' has ended, because the program is ending or "
                "its device was closed. Create a new delegate and interpreter, unless the "
                "program is ending."
            )

    def _wait(self, call: _Call[Any]) -> bool:
        """Wait briefly for a call; return whether to continue waiting. Raises TimeoutError."""
        call.wait()
        if call.abandon_if_expired():
            self.stop()  # takes effect after the call that may hang
            raise TimeoutError(f"no answer from {self._thread.name}")
        return not call.over and self._answers()

    def _wait_for_end(self, call: _Call[Any]) -> None:
        """Return once a call has ended, is abandoned or will never start."""
        done = call.over
        while not done:
            try:  # noqa: SIM105 - contextlib.suppress could be interrupted itself
                done = self._wait_out(call)
            except BaseException:
                pass  # the first exception is raised at the end

    def _wait_out(self, call: _Call[Any]) -> bool:
        while not (call.over or call.withdrawn()) and self._wait(call):
            pass
        return True

    def _answers(self) -> bool:
        """Return whether the thread can still finish a call that it has started.

        `Thread.is_alive` is not reliable: after an interrupt, it may return False for a running
        thread (Python 3.11).
        """
        return not (self._gone or sys.is_finalizing())

    def post(self, function: Callable[[], object]) -> None:
        """Submit a call without waiting; safe during garbage collection."""
        if not self.ended:
            self._calls.put(_Call(function))

    def check(self) -> None:
        """Raise UnwantedError if the caller was interrupted. Only calls on the worker call this."""
        if self._current is not None and self._current.unwanted:
            raise UnwantedError

    def commit(self) -> None:
        """Disable the caller's timeout for the rest of the call. Only calls on the worker use it.

        Raises UnwantedError if the timeout has already passed; the call must then not access the
        caller's memory any more.
        """
        if self._current is not None and not self._current.claims(_RESULTS, _WORKER):
            raise UnwantedError

    def at_end(self, function: Callable[[], object]) -> None:
        """Set the function that releases the thread's resources, which the thread calls last."""
        self._last = function

    def stop(self) -> None:
        """End the thread after all calls submitted so far."""
        self.ended = True
        self._calls.put(None)

    def join(self, seconds: float) -> None:
        """Wait at most `seconds` for the thread's end."""
        self._thread.join(seconds)

    def forget(self) -> None:
        """Forget the thread in a forked child, because the thread exists only in the parent."""
        self.ended = self._gone = True

    def _work(self) -> None:
        try:
            while (call := self._calls.get()) is not None:
                self._current = call
                call.make()
                self._current = None
                del call  # it references its result
            if self._last is not None:
                with contextlib.suppress(Exception):
                    self._last()
        finally:
            self._gone = True


_BEGIN, _RESULTS = "begin", "results"
_CALLER, _WORKER = "caller", "worker"


class _Call(Generic[_Result]):
    """A submitted call and its result."""

    __slots__ = ("_claimed", "_done", "_until", "error", "function", "over", "result", "unwanted")

    result: _Result

    def __init__(self, function: Callable[[], _Result], timeout: float | None = None) -> None:
        self.function = function
        self.error: BaseException | None = None
        self.over = False
        self.unwanted = False
        self._until = None if timeout is None else time.monotonic() + timeout
        self._claimed: dict[str, str] = {}
        self._done = threading.Lock()
        self._done.acquire()

    def claims(self, what: str, who: str) -> bool:
        """Return whether this side may do a step, which only the first claiming side may do."""
        return self._claimed.setdefault(what, who) == who

    def make(self) -> None:
        """Make the call on the worker, unless the call was withdrawn."""
        if not self.claims(_BEGIN, _WORKER):
            return
        try:
            self.result = self.function()
        except BaseException as error:
            self.error = error
        finally:
            self.over = True
            self._done.release()

    def wait(self) -> None:
        """Wait briefly for the end."""
        left = self._until - time.monotonic() if self._until is not None else 0.0
        self._done.acquire(timeout=min(left, _LOOK_SECONDS) if left > 0 else _LOOK_SECONDS)

    def abandon_if_expired(self) -> bool:
        """Abandon the call if its timeout has passed and the call has not committed its results."""
        if self.over or self._until is None or time.monotonic() < self._until:
            return False
        return self.withdrawn() or self.claims(_RESULTS, _CALLER)

    def withdrawn(self) -> bool:
        """Withdraw the call if not started, else notify it; return whether it is withdrawn."""
        self.unwanted = True
        return self._claimed.get(_RESULTS) == _CALLER or self.claims(_BEGIN, _CALLER)


_workers: weakref.WeakSet[Worker] = weakref.WeakSet()


@atexit.register
def _end_all() -> None:
    """Make all workers release their resources while threads can still run."""
    ending = [worker for worker in _workers if not worker.ended]
    for worker in ending:
        worker.stop()
    until = time.monotonic() + _EXIT_SECONDS
    for worker in ending:
        worker.join(max(until - time.monotonic(), 0))


def _forget_all() -> None:
    for worker in _workers:
        worker.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
