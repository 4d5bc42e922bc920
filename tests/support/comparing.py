"""Comparison of two results, and the message if they differ."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from cases.base import Array


def relative_error(expected: Array, got: Array) -> float:
    """Return ‖got - expected‖ / ‖expected‖ (without the division when the norm is 0)."""
    wanted = np.asarray(expected, np.float64)
    norm = float(np.linalg.norm(wanted))
    return float(np.linalg.norm(np.asarray(got, np.float64) - wanted)) / (norm or 1.0)


def mismatch(expected: Array, got: Array, limit: float) -> str:
    """Return what is wrong with a result, or an empty text."""
    if got.shape != expected.shape:
        return f"shape {got.shape} instead of {expected.shape}"
    if got.dtype != expected.dtype:
        return f"{got.dtype} instead of {expected.dtype}"
    if expected.dtype == np.complex64:
        expected, got = (np.atleast_1d(each).view(np.float32) for each in (expected, got))
    if expected.dtype.kind != "f":
        limit = 0.0  # integers and truth values are exact
    lost = np.isfinite(expected) & ~np.isfinite(got)
    if np.any(lost):
        return f"{int(lost.sum())} of {got.size} not finite, {_element(expected, got, lost)}"
    same = np.isinf(expected) & (got == expected)
    expected, got = (np.where(same, 0, each).astype(each.dtype) for each in (expected, got))
    error = relative_error(expected, got)
    if error <= limit:
        return ""
    distance = np.abs(np.asarray(got, np.float64) - expected)
    return (
        f"relative L2 error {error:.3g} above {limit:g}, "
        f"{_element(expected, got, distance)}; "
        f"max error {distance.max():.3g}, mean error {distance.mean():.3g}"
    )


def _element(expected: Array, got: Array, badness: npt.NDArray[Any]) -> str:
    """Name the worst element."""
    worst = tuple(map(int, np.unravel_index(int(np.argmax(badness)), badness.shape)))
    return f"at {worst}: expected {expected[worst]}, got {got[worst]}"
