"""Calls C functions with little overhead, by preparing their arguments."""

from __future__ import annotations

import ctypes
import operator
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

_SPINNING = 200e-6
"""Seconds of polling without sleeping."""
_LONGEST_PAUSE = 1e-3


def bound(function: Any, *arguments: Any) -> partial[Any]:
    """Return a call of `function` with arguments that are converted in advance.

    Each call reads a ctypes object again; plain values are constant. An argument None is passed as
    null.
    """
    kinds = zip(function.argtypes, arguments, strict=True)
    return partial(function, *(_ready(kind, argument) for kind, argument in kinds))


def _ready(kind: Any, argument: Any) -> Any:
    if argument is None:
        return kind()
    if isinstance(argument, ctypes.Array):
        return ctypes.cast(argument, kind)  # which keeps the array alive
    return kind(argument) if isinstance(argument, int) else argument


def together(calls: Iterable[partial[Any]]) -> list[Any]:
    """Make bound calls in sequence, without Python code in between; return their results.

    Python therefore raises the exception of a signal handler either before or after all of the
    calls.
    """
    return list(map(_call, calls))


_call: Callable[[partial[Any]], Any] = getattr(operator, "call", partial.__call__)
"""Calls its first argument in C; `operator.call`, from Python 3.11 on, is faster."""


def wait_until(done: Callable[[], bool], seconds: float) -> bool:
    """Poll `done` for at most `seconds`; return its last result."""
    began = time.perf_counter()
    while not done():
        waited = time.perf_counter() - began
        if waited > seconds:
            return False
        if waited > _SPINNING:
            time.sleep(min(waited / 10, _LONGEST_PAUSE, max(seconds - waited, 0)))
    return True
