"""A thread that owns what only one thread may touch; others have their calls made there."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, Generic, TypeVar

_Result = TypeVar("_Result")


class Worker:
    """One thread that makes calls in the order in which they are asked for.

    The thread is a daemon: a program that ends does not wait for it.
    """

    def __init__(self, name: str) -> None:
        """Start the thread."""
        self._calls: queue.SimpleQueue[_Call[Any] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def call(self, function: Callable[[], _Result]) -> _Result:
        """Make a call on the thread and return what it returns, or raise what it raises."""
        if threading.current_thread() is self._thread:
            return function()
        call = _Call(function)
        self._calls.put(call)
        call.done.acquire()
        if call.error is None:
            return call.result
        try:
            raise call.error
        finally:
            call.error = None  # held by what its traceback holds, it would outlive its handler

    def post(self, function: Callable[[], object]) -> None:
        """Have a call made some time, without waiting: safe while objects are collected."""
        self._calls.put(_Call(function))

    def stop(self) -> None:
        """End the thread after the calls that were asked for before."""
        self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call.make()
            del call  # it holds what it returned


class _Call(Generic[_Result]):
    """A call on its way, and what came of it."""

    __slots__ = ("done", "error", "function", "result")

    result: _Result

    def __init__(self, function: Callable[[], _Result]) -> None:
        self.function = function
        self.error: BaseException | None = None
        self.done = threading.Lock()
        self.done.acquire()

    def make(self) -> None:
        try:
            self.result = self.function()
        except BaseException as error:
            self.error = error
        self.done.release()
