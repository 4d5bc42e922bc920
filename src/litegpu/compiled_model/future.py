"""Futures of submitted runs."""

from __future__ import annotations

import asyncio
import os
import weakref
from collections.abc import Callable, Generator
from concurrent.futures import Future, InvalidStateError
from typing import Any

from litegpu.compiled_model.contexts import Flight
from litegpu.errors import ForkedProcessError, RunTimeoutError
from litegpu.host.native_calls import wait_until


class AwaitedFuture(Future[Any]):
    """A Future of concurrent.futures that can also be awaited."""

    def __await__(self) -> Generator[Any, None, Any]:
        """Return the result, without blocking the event loop."""
        return asyncio.wrap_future(self).__await__()


class ModelFuture(AwaitedFuture):
    """A run in flight: wait for it from any thread, or `await` it.

    A ModelFuture is a Future of concurrent.futures. A failed run does not affect other runs, and a
    started run cannot be cancelled. A run completes even if its future is garbage-collected.
    """

    def __init__(self, flight: Flight, results: Callable[[], Any]) -> None:
        """Create the future of the run `flight`; `results` returns the run's results."""
        super().__init__()
        self.set_running_or_notify_cancel()
        self._flight, self._results = flight, results
        self._pid = os.getpid()
        # wait() and as_completed() of concurrent.futures register here.
        self._waiters: list[Any] = _Waiters(weakref.ref(self))

    def done(self) -> bool:
        """Return whether `result` would return immediately. Raises ForkedProcessError."""
        self._check_process()
        return self._flight.is_done()

    def _check_process(self) -> None:
        """Raise ForkedProcessError in a child that was forked while the run was in flight."""
        if self._pid != os.getpid() and not self._flight.over:
            raise ForkedProcessError(
                "This run was started before the process was forked, and finishes in the parent "
                "process. Wait for the run there; start children with "
                'multiprocessing.get_context("spawn").'
            )

    def running(self) -> bool:
        """Return whether `result` would have to wait."""
        return not self.done()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait at most `timeout` seconds for the run; return whether it has ended.

        Raises ForkedProcessError in a child that was forked before the run ended.
        """
        self._check_process()
        if timeout is not None and not wait_until(self.done, timeout):
            return False
        self._end()
        return True

    def exception(self, timeout: float | None = None) -> Exception | None:
        """Wait as `result` does; return the run's error, or None if the run succeeded."""
        if not self.wait(timeout):
            raise RunTimeoutError(
                f"The run has not finished after {timeout} seconds. The run continues: wait again."
            )
        return self._flight.error

    def result(self, timeout: float | None = None) -> Any:
        """Return what the call would have returned; wait at most `timeout` seconds.

        Raises RunTimeoutError, a subclass of TimeoutError, if the run has not ended in time. Raises
        the run's error if the run failed.
        """
        error = self.exception(timeout)
        if error is not None:
            raise error.with_traceback(None)
        return self._results()

    def add_done_callback(self, fn: Callable[[Future[Any]], object]) -> None:
        """Call `fn` with this future when the run ends, in the thread that notices it first."""
        super().add_done_callback(fn)
        self.watch()

    def watch(self) -> None:
        """Make a thread wait for the run's end, in case no other thread waits for the run."""
        if not super().done():
            self._flight.watch(self._end)

    def _end(self) -> None:
        """Wait for the end, then notify waiters once."""
        self._flight.end()
        if super().done():
            return
        error = self._flight.error
        try:
            if error is None:
                self.set_result(self._results())
            else:
                self.set_exception(error)
        except InvalidStateError:
            pass  # another thread has already set the result


class _Waiters(list[Any]):
    """Callbacks of a future; once the list has a callback, a thread waits for the run."""

    def __init__(self, future: weakref.ref[ModelFuture]) -> None:
        super().__init__()
        self._future = future

    def append(self, waiter: Any) -> None:
        super().append(waiter)
        future = self._future()
        if future is not None:
            future.watch()
