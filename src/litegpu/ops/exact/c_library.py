"""The C library's float32 functions, which the CPU kernels call; NumPy's round differently."""

from __future__ import annotations

import ctypes
import math
import sys
from functools import cache

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

_LIBRARIES = ("ucrtbase",) if sys.platform == "win32" else (None, "libm.so.6")
"""Libraries to search, in search order; None is the running Python process."""


def erfcf(numbers: Floats) -> Floats:
    """Return the complementary error function of each number."""
    return _each("erfcf", numbers)


def expf(numbers: Floats) -> Floats:
    """Return e to the power of each number."""
    return _each("expf", numbers)


def expm1f(numbers: Floats) -> Floats:
    """Return e to the power of each number, minus 1."""
    return _each("expm1f", numbers)


def logf(numbers: Floats) -> Floats:
    """Return the natural logarithm of each number."""
    return _each("logf", numbers)


def tanhf(numbers: Floats) -> Floats:
    """Return the hyperbolic tangent of each number."""
    return _each("tanhf", numbers)


def _each(name: str, numbers: Floats) -> Floats:
    library = _library()
    if library is None:
        # Compute in float64 and round once: the C library's result is nearly always the same.
        bare = name.removesuffix("f")
        function = getattr(np, bare, None) or np.vectorize(getattr(math, bare))
        with np.errstate(over="ignore"):
            return np.asarray(function(numbers.astype(np.float64)), np.float32)
    called = getattr(library, name)
    called.restype, called.argtypes = ctypes.c_float, [ctypes.c_float]
    found = [called(number) for number in numbers.ravel().tolist()]
    return np.asarray(found, np.float32).reshape(numbers.shape)


@cache
def _library() -> ctypes.CDLL | None:
    """Return a C library that has all required functions, or None."""
    for name in _LIBRARIES:
        try:
            library = ctypes.CDLL(name)
            if all(hasattr(library, each) for each in ("erfcf", "expf", "expm1f", "logf", "tanhf")):
                return library
        except OSError:
            continue
    return None
