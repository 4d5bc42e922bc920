"""Calls of C functions that cost little because their arguments are ready."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import partial
from typing import Any


def bound(function: Any, *arguments: Any) -> Callable[[], Any]:
    """Return a call of `function` with arguments that need no conversion when it is made.

    A ctypes object is read each time; plain values are kept. None stands for null.
    """
    kinds = zip(function.argtypes, arguments, strict=True)
    return partial(function, *(_ready(kind, argument) for kind, argument in kinds))


def _ready(kind: Any, argument: Any) -> Any:
    if argument is None:
        return kind()
    if isinstance(argument, ctypes.Array):
        return ctypes.cast(argument, kind)  # which keeps the array alive
    return kind(argument) if isinstance(argument, int) else argument
