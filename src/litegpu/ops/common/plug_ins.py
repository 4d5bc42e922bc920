"""Imports the entry points of installed packages that register users' ops."""

from __future__ import annotations

import logging
from functools import cache
from importlib.metadata import entry_points

_log = logging.getLogger("litegpu")
PLUG_INS = "litegpu.ops"
"""The entry-point group that lists modules with users' ops."""


@cache
def import_plug_ins() -> None:
    """Import the modules of installed packages that register users' operations."""
    for entry in entry_points(group=PLUG_INS):
        try:
            entry.load()
        except Exception as error:  # a foreign module may raise anything
            _log.warning(
                "The operations of the package '%s' are missing, for %s cannot be imported (%s: "
                "%s). Update the package, or uninstall it.",
                *(entry.dist.name if entry.dist else entry.name, entry.value),
                *(type(error).__name__, error),
            )
