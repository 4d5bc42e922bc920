"""Every environment variable that litegpu reads, in one place."""

from __future__ import annotations

import os
from collections.abc import Mapping

VARIABLES: Mapping[str, str] = {
    "LITEGPU_DEBUG": "1 prints decisions, 2 also kernel sources",
    "LITEGPU_BACKEND": "backend to use when the options name none",
    "LITEGPU_DEVICE": "device (index or part of its name) to use when the options name none",
    "LITEGPU_MODELS": "folder with real models",
}
"""Name and meaning of each variable."""


def text(name: str) -> str:
    """Return a declared variable's value, empty when unset. Raises KeyError for others."""
    if name not in VARIABLES:
        raise KeyError(f"undeclared environment variable {name}; declare it in config.VARIABLES")
    return os.environ.get(name, "").strip()


def debug_level() -> int:
    """Return LITEGPU_DEBUG as a number; anything that is not a number counts as 1."""
    value = text("LITEGPU_DEBUG")
    return int(value) if value.isdigit() else int(bool(value))
