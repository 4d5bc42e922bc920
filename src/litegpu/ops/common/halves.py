"""Checks which arrays float16 can represent, and rounds arrays to float16."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from litegpu.codegen import HALF_MAX, HALF_TINY
from litegpu.ops.common.dequantized import as_dequantized

_FLOATS = npt.NDArray[np.float32]


def fits_half(array: _FLOATS) -> bool:
    """Whether the largest magnitude of an array is a normal float16, or 0."""
    return bool(holds(largest_of(array, None)))


def largest_of(array: _FLOATS, axes: tuple[int, ...] | None) -> _FLOATS:
    """Return the largest finite magnitude along axes."""
    found = as_dequantized(array)
    if found is not None and (known := found.largest(axes)) is not None:
        return known
    array = np.asarray(array)
    # Without a temporary array of magnitudes, which would take longer than both reductions.
    highest, lowest = array.max(axis=axes, initial=0), array.min(axis=axes, initial=0)
    largest = np.asarray(np.maximum(highest, -lowest))
    if np.isfinite(largest).all():
        return largest
    magnitudes = np.abs(array)
    return np.asarray(magnitudes.max(axis=axes, initial=0, where=np.isfinite(magnitudes)))


def holds(largest: _FLOATS) -> npt.NDArray[np.bool_]:
    """Whether all largest magnitudes are normal float16 numbers, or 0."""
    return np.asarray((largest == 0) | ((largest >= HALF_TINY) & (largest <= HALF_MAX)))


def as_halves(weights: _FLOATS) -> npt.NDArray[np.float16]:
    """Round an array to float16; values beyond the range become the largest float16."""
    return np.clip(weights, -HALF_MAX, HALF_MAX).astype(np.float16)
