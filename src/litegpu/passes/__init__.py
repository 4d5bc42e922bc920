"""Graph rewrites, one per file. Importing this package finds them all and puts them in order."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from pkgutil import iter_modules

from litegpu.passes import base
from litegpu.passes.base import FusionPass, Pass, PassResult

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")

BEFORE_NORMALIZE: Mapping[str, Pass] = base.BEFORE_NORMALIZE.in_order()
"""Passes on the model's own operations, in the order in which they run."""
PASSES: Mapping[str, Pass] = base.PASSES.in_order()
"""Passes after normalization."""
FUSIONS: Mapping[str, FusionPass] = base.FUSIONS.in_order()
"""What hangs on the device at hand: on its implementations and its limits."""

__all__ = [
    "BEFORE_NORMALIZE",
    "FUSIONS",
    "PASSES",
    "FusionPass",
    "Pass",
    "PassResult",
]
