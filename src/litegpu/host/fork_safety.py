"""Records the process that opened each GPU API, because forked children cannot use the API.

In a forked child, a driver's threads do not exist, and its locks keep their state. The first driver
call in the child could therefore block forever. litegpu raises an error before that call.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections.abc import Iterator
from typing import Generic, TypeVar

from litegpu.errors import ForkedProcessError

_Thing = TypeVar("_Thing")


class Living(Generic[_Thing]):
    """A set of weakly referenced objects.

    Unlike with a WeakSet, the deletion of an object runs no Python code, so no interrupt can be
    lost in such code.
    """

    def __init__(self) -> None:
        """Create an empty set."""
        self._known: list[weakref.ref[_Thing]] = []
        # Garbage collection may delete an object of the set at the same time.
        self._changing = threading.RLock()

    def add(self, thing: _Thing) -> None:
        """Add an object, and remove deleted ones."""
        with self._changing:
            self._known = [*(ref for ref in self._known if ref() is not None), weakref.ref(thing)]

    def discard(self, thing: _Thing) -> None:
        """Remove an object."""
        with self._changing:
            self._known = [ref for ref in self._known if ref() is not thing]

    def __iter__(self) -> Iterator[_Thing]:
        """Yield the existing objects, also if a thread died while changing the set."""
        return iter([thing for ref in self._known if (thing := ref()) is not None])

    def __len__(self) -> int:
        return sum(ref() is not None for ref in self._known)


_openers: dict[str, int] = {}
"""The process that first opened an API, by the API's title."""
_natives = Living[object]()
"""Objects whose resources are released by driver calls."""


def touch(title: str) -> None:
    """Record that this process opens an API now.

    Raises ForkedProcessError if a parent process opened the API before the fork.
    """
    _openers.setdefault(title, os.getpid())
    if is_inherited(title):
        raise ForkedProcessError(
            f"{title} was opened before this process was forked, and works only in the parent "
            "process. Start workers with multiprocessing.get_context('spawn') (in PyTorch's "
            "DataLoader: multiprocessing_context='spawn'), or fork before litegpu lists or opens "
            "devices."
        )


def is_inherited(title: str) -> bool:
    """Return whether a parent opened an API before this process was forked."""
    return _openers.get(title, os.getpid()) != os.getpid()


def refuse_if_forked() -> None:
    """Raise ForkedProcessError if a parent opened any API before this process was forked."""
    for title in tuple(_openers):
        touch(title)


def keep_in_children(native: object) -> None:
    """Never destroy an object, nor the objects that it references, in forked children."""
    _natives.add(native)


def immortal(thing: object) -> None:
    """Never destroy an object, nor the objects that it references now."""
    # A reference in a list is not sufficient: it would be dropped when the interpreter exits.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def _in_child() -> None:
    for native in tuple(_natives):
        immortal(native)
    if _openers and _on_exit is not None:
        # Exit handlers of drivers wait for threads, or read their memory, which a child does not
        # have. This handler runs before them, after all of Python, and exits with the same code.
        _on_exit(_exit, None)


if hasattr(os, "register_at_fork"):
    _exit, _on_exit = ctypes.pythonapi._exit, getattr(ctypes.pythonapi, "on_exit", None)
    os.register_at_fork(after_in_child=_in_child)
