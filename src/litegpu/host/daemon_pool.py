"""A pool of threads that do not delay the exit of a program."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import Empty, SimpleQueue
from typing import Any, TypeVar

_Result = TypeVar("_Result")
_Call = tuple["Future[Any]", Callable[[], Any]]


class DaemonPool:
    """A pool of daemon threads.

    At exit, Python waits for all calls of a `ThreadPoolExecutor`. The threads of a DaemonPool stop
    at exit without waiting. Submitted calls must therefore not be essential, and must not run code
    of other libraries.
    """

    def __init__(self, threads: int, name: str) -> None:
        """Start the threads."""
        self._calls: SimpleQueue[_Call | None] = SimpleQueue()
        self._threads = threads
        for number in range(threads):
            threading.Thread(target=self._work, name=f"{name}-{number}", daemon=True).start()

    def submit(self, function: Callable[[], _Result]) -> Future[_Result]:
        """Submit a call."""
        future: Future[_Result] = Future()
        self._calls.put((future, function))
        return future

    def shutdown(self, cancel_futures: bool = False) -> None:
        """End the threads after all submitted calls; `cancel_futures` cancels waiting calls."""
        with contextlib.suppress(Empty):
            while cancel_futures and (call := self._calls.get_nowait()) is not None:
                call[0].cancel()
        for _ in range(self._threads):
            self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            future, function = call
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(function())
                except BaseException as error:
                    future.set_exception(error)
