"""In which process each GPU API was opened: what is forked later cannot use it.

The threads of a driver do not exist in a forked child and its locks stay as they were, so that
the first call there may wait for ever. The error comes before that call.
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
    """Objects that are known for as long as they live.

    Unlike those of a WeakSet their end runs no Python, where an interrupt would go unseen.
    """

    def __init__(self) -> None:
        """Know none."""
        self._known: list[weakref.ref[_Thing]] = []
        # Collecting garbage meanwhile may end an object that is to be forgotten.
        self._changing = threading.RLock()

    def add(self, thing: _Thing) -> None:
        """Know an object, and forget those that live no more."""
        with self._changing:
            self._known = [*(ref for ref in self._known if ref() is not None), weakref.ref(thing)]

    def discard(self, thing: _Thing) -> None:
        """Forget an object."""
        with self._changing:
            self._known = [ref for ref in self._known if ref() is not thing]

    def __iter__(self) -> Iterator[_Thing]:
        """Yield those that live, also where a thread that is gone has been changing them."""
        return iter([thing for ref in self._known if (thing := ref()) is not None])

    def __len__(self) -> int:
        return sum(ref() is not None for ref in self._known)


_openers: dict[str, int] = {}
"""The process that opened an API first, by the API's title."""
_natives = Living[object]()
"""Objects that hold what is released by calls of a driver."""


def touch(title: str) -> None:
    """Note that this process opens an API now.

    Raises ForkedProcessError if a parent had opened it before it was forked.
    """
    _openers.setdefault(title, os.getpid())
    if is_inherited(title):
        raise ForkedProcessError(
            f"{title} was opened before this process was forked, and works in the parent only. "
            "Start workers with multiprocessing.get_context('spawn') (in PyTorch's DataLoader: "
            "multiprocessing_context='spawn'), or fork before litegpu lists or opens devices."
        )


def is_inherited(title: str) -> bool:
    """Return whether a parent opened an API before this process was forked."""
    return _openers.get(title, os.getpid()) != os.getpid()


def refuse_if_forked() -> None:
    """Raise ForkedProcessError if a parent opened any API before this process was forked."""
    for title in tuple(_openers):
        touch(title)


def keep_in_children(native: object) -> None:
    """Let forked children never destroy an object, nor what it holds at the time of the fork."""
    _natives.add(native)


def immortal(thing: object) -> None:
    """Never destroy an object, nor what it holds now."""
    # More than a reference in a list, which the end of the interpreter would drop.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def _in_child() -> None:
    for native in tuple(_natives):
        immortal(native)
    if _openers and _on_exit is not None:
        # What drivers do at exit waits for, or reads of, threads that a child does not have. This
        # is done before, after all of Python: it ends the process with the same exit code.
        _on_exit(_exit, None)


if hasattr(os, "register_at_fork"):
    _exit, _on_exit = ctypes.pythonapi._exit, getattr(ctypes.pythonapi, "on_exit", None)
    os.register_at_fork(after_in_child=_in_child)
