"""Owns native handles: no handle leaks or is released twice, even after an interrupt.

A signal's exception may be raised wherever Python code runs, also between a call and storing its
result. So one call of C code both creates and stores a handle, and one removes and releases it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import starmap
from typing import Any


class Handle:
    """A place for one native handle; empty until the handle is created."""

    def __init__(
        self, release: Callable[[Any], Any], pick: Callable[[Any], Any] | None = None
    ) -> None:
        """Store the release function; `pick` extracts the handle from the result of its creation.

        Both must be C code. Without `pick`, the result itself is the handle.
        """
        self.function = release
        """The function that releases the handle."""
        self._pick = pick
        self._results: list[Any] = []

    def creation(self, create: Callable[..., Any], *arguments: Any) -> Callable[[], None]:
        """Return a call, of C code only, that creates the handle by `create` and stores it."""
        return partial(self._results.extend, starmap(create, [arguments]))

    @property
    def result(self) -> Any:
        """The result of `create`."""
        return self._results[0]

    def forget(self) -> None:
        """Drop a result that is not a handle, because creating the handle failed."""
        self._results.clear()

    def release(self) -> Any:
        """Release the handle; return the result, or None if there is no handle, or it is null."""
        done: list[Any] = []
        if self._results:
            released = map(list.pop, [self._results])
            released = map(self._pick, released) if self._pick else released
            done.extend(map(self.function, filter(None, released)))
        return done[0] if done else None


class Owner:
    """Handles that are released together, in reverse order of creation."""

    def __init__(self, check: Callable[[Callable[..., Any], Any], object]) -> None:
        """Store a function that raises an error if a release function's result says so."""
        self._check = check
        self._handles: list[Handle] = []

    def __bool__(self) -> bool:
        """Whether the owner may have handles."""
        return bool(self._handles)

    def hold(
        self, release: Callable[[Any], Any], pick: Callable[[Any], Any] | None = None
    ) -> Handle:
        """Return a place for a handle that this owner releases. See Handle."""
        handle = Handle(release, pick)
        self._handles.append(handle)
        return handle

    def release(self) -> None:
        """Release all handles; continues after an error, and raises the first one at the end."""
        first: BaseException | None = None
        while self._handles:
            try:
                while self._handles:
                    handle = self._handles[-1]
                    done = handle.release()
                    self._handles.pop()
                    if done is not None:
                        self._check(handle.function, done)
            except BaseException as error:
                first = first or error
        if first is not None:
            raise first

    def abandon(self) -> None:
        """Never release the handles: the device may still use them, or is lost."""
        self._handles.clear()
