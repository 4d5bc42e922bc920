"""Finalizers (`__del__`) that never print a traceback."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar

_Self = TypeVar("_Self")


def finalizer(release: Callable[[_Self], None]) -> Callable[[_Self], None]:
    """Decorate a `__del__` that may run with attributes missing, or while Python shuts down.

    Attributes are missing after an error in `__init__`. At shutdown, Python sets the globals of
    modules to None, so the wrapper uses no globals. The wrapper does not suppress interrupts.
    """

    @functools.wraps(release)
    def guarded(self: _Self) -> None:
        try:  # noqa: SIM105 - contextlib may be gone
            release(self)
        except Exception:
            pass

    return guarded
