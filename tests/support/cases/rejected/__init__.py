"""Nodes that stay on the CPU of operations whose cases lie elsewhere, or of several.

Each module here holds those of a family of operations in `CASES`; nothing lists the modules.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from cases.rejected.base import Rejected

CASES: tuple[Rejected, ...] = tuple(
    case
    for found in iter_modules(__path__)
    if found.name != "base"
    for case in import_module(f"{__name__}.{found.name}").CASES
)

__all__ = ["CASES", "Rejected"]
