"""Runs a task on the pictures of a camera, on a thread: the newest one waits, older ones go."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from litegpu.errors import ExecutionError, without_threads

Item = TypeVar("Item")


class LiveStream(Generic[Item]):
    """A thread that handles one item at a time.

    While it is busy, one further item waits; a newer one takes its place.
    """

    def __init__(self, handle: Callable[[Item], None], name: str) -> None:
        """Start the thread. Raises UnsupportedDeviceError if the system cannot start one."""
        self._handle = handle
        self._changed = threading.Condition()
        self._waiting: list[Item] = []
        self._ended = False
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:
            raise without_threads(error) from error

    def send(self, item: Item) -> None:
        """Hand over an item. Raises ExecutionError if an earlier one failed."""
        with self._changed:
            self._raise()
            self._waiting[:] = [item]
            self._changed.notify_all()

    def close(self) -> None:
        """Handle the item that waits, and end the thread.

        Called from the thread itself, this drops the item and does not wait. Raises ExecutionError
        if an item failed.
        """
        with self._changed:
            self._ended = True
            own = threading.current_thread() is self._thread
            if own:
                self._waiting.clear()
            self._changed.notify_all()
        if not own:
            self._thread.join()
        self._raise()

    def _raise(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise ExecutionError(
                f"A picture of the live stream failed: {error} The task goes on with the next one."
            ) from error

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._ended)
                if not self._waiting:
                    return
                item = self._waiting.pop()
            try:
                self._handle(item)
            except Exception as error:
                with self._changed:
                    self._error = error
