"""Runs a task in a thread: on pictures of a camera, or on blocks of sound."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from litegpu.errors import ExecutionError, without_threads

Item = TypeVar("Item")


class LiveStream(Generic[Item]):
    """A thread that processes one item at a time.

    While the thread is busy, one further item waits; a newer item replaces the waiting one. With
    `drops=False`, all items wait in their order.
    """

    def __init__(
        self,
        handle: Callable[[Item], None],
        name: str,
        *,
        item: str = "picture",
        drops: bool = True,
    ) -> None:
        """Start the thread; `item` is the word for an item in errors.

        Raises UnsupportedDeviceError if the system cannot start a thread.
        """
        self._handle, self._item, self._drops = handle, item, drops
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
        """Pass an item to the thread. Raises ExecutionError if an earlier item failed."""
        with self._changed:
            self._raise()
            if self._drops:
                self._waiting.clear()
            self._waiting.append(item)
            self._changed.notify_all()

    def close(self) -> None:
        """Process the waiting items, and end the thread.

        A call from the thread itself drops the waiting items and returns at once. Raises
        ExecutionError if an item failed.
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
                f"A {self._item} of the live stream failed: {error} The task goes on with the "
                "next one."
            ) from error

    def _work(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._ended)
                if not self._waiting:
                    return
                item = self._waiting.pop(0)
            try:
                self._handle(item)
            except Exception as error:
                with self._changed:
                    self._error = error
