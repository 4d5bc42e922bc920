"""Checks whether this CPU's kernels round quantized ops like the GPU's exact mode."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from functools import cache
from importlib import import_module

_X86 = ("x86_64", "amd64", "i386", "i686", "x86")
_OF_NUMPY = ("numpy._core._multiarray_umath", "numpy.core._multiarray_umath")
"""The modules of NumPy 2 and NumPy 1 that list the detected CPU features."""


@cache
def other_rounding() -> str:
    """Return why the runtime's kernels may round differently on this CPU, or an empty string.

    The function assumes AVX for an x86 CPU with unknown features.
    """
    machine = platform.machine()
    if machine and machine.lower() not in _X86:
        return _otherwise(f"is {machine}")
    return "" if _features().get("AVX", True) else _otherwise("has no AVX")


def _otherwise(which: str) -> str:
    return (
        'quantized="exact" computes the same bits as the runtime\'s CPU kernels on x86 with AVX. '
        f"This CPU {which}, so its results may differ from the GPU's in some bits "
        "(docs/numerics.md)."
    )


def _features() -> Mapping[str, bool]:
    for name in _OF_NUMPY:
        try:
            found: Mapping[str, bool] = import_module(name).__cpu_features__
        except (ImportError, AttributeError):
            continue
        return found
    return {}
