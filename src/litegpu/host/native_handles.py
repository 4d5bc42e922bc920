"""Owns native handles: no handle leaks or is released twice, even after an interrupt.

An exception of a signal handler may occur at any bytecode, even between a call and the assignment
of its result. Therefore a single call of C code both creates and stores a handle, and another
single call both removes and releases the handle.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import starmap
from typing import Any


class Handle:
    """A slot for one native handle, which is empty until the creation of the handle."""

    def __init__(
        self, release: Callable[[Any], Any], pick: Callable[[Any], Any] | None = None
    ) -> None:
        """Store the release function; `pick` extracts the handle from the result of its creation.

        The functions `release` and `pick` must be C code. Without `pick`, the result of the
        creation is the handle.
        """
        self.function = release
        """The function that releases the handle."""
        self._pick = pick
        self._results: list[Any] = []

    def creation(self, create: Callable[..., Any], *arguments: Any) -> Callable[[], None]:
        """Return a call that creates the handle with `create` and stores it, in C code only."""
        return partial(self._results.extend, starmap(create, [arguments]))

    @property
    def result(self) -> Any:
        """The result of `create`."""
        return self._results[0]

    def forget(self) -> None:
        """Discard a result that is not a handle, because the creation failed."""
        self._results.clear()

    def release(self) -> Any:
        """Release the handle; return the function's result, or None for a missing or null one."""
        done: list[Any] = []
        if self._results:
            released = map(list.pop, [self._results])
            released = map(self._pick, released) if self._pick else released
            done.extend(map(self.function, filter(None, released)))
        return done[0] if done else None


class Owner:
    """Handles that are released together, in reverse order of creation."""

    def __init__(self, check: Callable[[Callable[..., Any], Any], object]) -> None:
        """Store a function that raises an error if a release function's result is an error."""
        self._check = check
        self._handles: list[Handle] = []

    def __bool__(self) -> bool:
        """Whether the owner may have handles."""
        return bool(self._handles)

    def hold(
        self, release: Callable[[Any], Any], pick: Callable[[Any], Any] | None = None
    ) -> Handle:
        """Return a slot for a handle that this owner releases. See Handle."""
        handle = Handle(release, pick)
        self._handles.append(handle)
        return handle

    def release(self) -> None:
        """Release all handles, also after errors; raise the first error at the end."""
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
