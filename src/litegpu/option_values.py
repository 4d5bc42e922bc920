"""Values of options, checked."""

from __future__ import annotations

import enum
import operator
import os
from typing import Any

from litegpu.errors import OptionsError

Names = type[enum.IntEnum] | type[enum.IntFlag]


def whole(name: str, value: Any, names: Names | None = None) -> int:
    """Return a whole number. Raises OptionsError with the option's name, and numbers with names."""
    try:
        return operator.index(value)
    except TypeError:
        kinds = "a device's number or part of its name" if name == "device" else "a whole number"
        known = f" litegpu.{names.__name__} has them: {members(names)}." if names else ""
        raise OptionsError(f"{name} must be {kinds}, not {value!r}.{known}") from None


def text(name: str, value: Any) -> str | None:
    """Return text or None; of a path its text. Raises OptionsError with the option's name."""
    path = os.fspath(value) if isinstance(value, os.PathLike) else value
    if path is None or (isinstance(path, str) and "\0" not in path):
        return path
    raise OptionsError(f"{name} must be text without null characters, not {value!r}.")


def members(names: Names) -> str:
    """Return the names of an enum with their numbers."""
    return ", ".join(f"{member.name} ({int(member)})" for member in names)
