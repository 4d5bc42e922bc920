"""An iterator that a separate thread runs some items ahead of the consumer."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

Item = TypeVar("Item")

_LOOK_S = 0.1
"""Interval, in seconds, between two checks for Ctrl-C; some systems do not interrupt a wait."""
_PATIENCE_S = 10.0
"""Seconds that a thread may take to finish its current item."""


@contextmanager
def ahead(items: Iterable[Item], depth: int) -> Iterator[Iterator[Item]]:
    """Iterate over `items` in another thread, at most `depth` items ahead.

    The consumer gets the exceptions of the iterator. At the end of the context, the thread ends
    after its current item, and closes the iterator if it is a generator.
    """
    channel: _Channel[Item] = _Channel(depth)
    thread = threading.Thread(target=channel.fill, args=(items,), daemon=True)
    thread.start()
    try:
        yield channel.received()
    finally:
        channel.close()
        thread.join(_PATIENCE_S)


class _Channel(Generic[Item]):
    """A bounded queue between two threads."""

    def __init__(self, depth: int) -> None:
        self._depth = depth
        self._items: deque[Item] = deque()
        self._changed = threading.Condition()
        self._closed = self._ended = False
        self._error: BaseException | None = None

    def fill(self, items: Iterable[Item]) -> None:
        """Put all items into the queue, until the consumer closes the channel."""
        iterator = iter(items)
        try:
            for item in iterator:
                if not self._put(item):
                    break
        except BaseException as error:
            self._error = error
        finally:
            try:
                getattr(iterator, "close", lambda: None)()
            except BaseException as error:
                self._error = self._error or error
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def received(self) -> Iterator[Item]:
        """Yield the items from the queue."""
        while True:
            with self._changed:
                while not self._items and not self._ended:
                    self._changed.wait(_LOOK_S)
                if not self._items:
                    if self._error:
                        raise self._error
                    return
                item = self._items.popleft()
                self._changed.notify_all()
            yield item

    def close(self) -> None:
        """Stop the producing thread after its current item."""
        with self._changed:
            self._closed = True
            self._items.clear()
            self._changed.notify_all()

    def _put(self, item: Item) -> bool:
        with self._changed:
            while len(self._items) >= self._depth and not self._closed:
                self._changed.wait(_LOOK_S)
            if not self._closed:
                self._items.append(item)
                self._changed.notify_all()
            return not self._closed
