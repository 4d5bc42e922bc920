"""What comes of a run that was submitted."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Generator
from typing import Any

from litegpu.backends.calls import wait_until
from litegpu.compiled_model.contexts import Flight
from litegpu.errors import ForkedProcessError, InvokeTimeoutError


class ModelFuture:
    """A run in flight: wait for it from any thread, or `await` it.

    A failed run fails alone. Runs whose future nobody keeps are brought to their end all the same.
    """

    def __init__(self, flight: Flight, results: Callable[[], Any]) -> None:
        """Take a run, and what gives its results after its end; CompiledModel does that."""
        self._flight, self._results = flight, results
        self._pid = os.getpid()

    def done(self) -> bool:
        """Return whether `result` would take no time. Raises ForkedProcessError."""
        self._check_process()
        return self._flight.is_done()

    def _check_process(self) -> None:
        """Raise ForkedProcessError in a child that was forked while the run was in flight."""
        if self._pid != os.getpid() and not self._flight.over:
            raise ForkedProcessError(
                "This run was begun before the process was forked, and ends in the parent. Wait "
                'for it there; start children with multiprocessing.get_context("spawn").'
            )

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the end, for `timeout` seconds at most; return whether it has come.

        Raises ForkedProcessError in a child that was forked before the end.
        """
        self._check_process()
        if timeout is not None and not wait_until(self.done, timeout):
            return False
        self._flight.end()
        return True

    def exception(self, timeout: float | None = None) -> Exception | None:
        """Wait as `result` does; return what went wrong, None if nothing did."""
        if not self.wait(timeout):
            raise InvokeTimeoutError(
                f"The run has not ended after {timeout} seconds. It goes on: ask again."
            )
        return self._flight.error

    def result(self, timeout: float | None = None) -> Any:
        """Return what the call would have returned, after `timeout` seconds at most.

        Raises InvokeTimeoutError when the run has not ended by then, and what went wrong in it.
        """
        error = self.exception(timeout)
        if error is not None:
            raise error.with_traceback(None)
        return self._results()

    def __await__(self) -> Generator[Any, None, Any]:
        """Return the result, while the event loop goes on."""
        return asyncio.get_running_loop().run_in_executor(None, self.result).__await__()
