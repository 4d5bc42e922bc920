"""The one table of op cases: plain data that every backend runs at every precision.

Each module here holds the cases of a family of operations in `CASES`, and perhaps nodes of it that
must not run on a device in `REJECTED`; nothing lists the modules.
`base` says what a case is, `quantized` what those of stored integers share; the package `rejected`
holds further nodes that must not run on a device.
"""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules

from cases import rejected
from cases.base import Case
from cases.rejected.base import Rejected

MODULES = tuple(
    import_module(f"{__name__}.{found.name}")
    for found in iter_modules(__path__)
    if not found.ispkg and found.name not in ("base", "quantized")
)

TABLE: Mapping[str, Case] = {case.name: case for module in MODULES for case in module.CASES}
"""Every case by its name."""

REJECTED: tuple[Rejected, ...] = (
    *rejected.CASES,
    *(case for module in MODULES for case in getattr(module, "REJECTED", ())),
)
"""Nodes that stay on the CPU, and the reason that is given for each."""

CASE_COUNT = sum(len(module.CASES) for module in MODULES)
"""Number of lines; equal names would make `TABLE` shorter."""
