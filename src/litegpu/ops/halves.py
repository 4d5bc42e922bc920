"""Weights as halves, for the instructions that multiply halves."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from litegpu.ops.base import HALF_MAX, LowerContext

_FLOATS = npt.NDArray[np.float32]


def low_part(weights: _FLOATS, ctx: LowerContext) -> _FLOATS | None:
    """Return what half precision loses of the weights, None when that does not matter."""
    rest = weights - np.clip(weights, -HALF_MAX, HALF_MAX).astype(np.float16)
    return rest if ctx.target.exact_weights(weights.nbytes) and rest.any() else None


def spread_taps(weights: _FLOATS, columns: int, part: int, length: int) -> npt.NDArray[np.float16]:
    """Return [O, H, W, I] as [columns, length], zeros around and between whole parts of channels.

    What half cannot hold becomes its largest value.
    """
    outputs, height, width, depth = weights.shape
    taps, lanes = height * width, -(-depth // part) * part
    spread = np.zeros((outputs, taps, lanes), np.float32)
    spread[..., :depth] = weights.reshape(outputs, taps, depth)
    flat = np.zeros((columns, length), np.float16)
    flat[:outputs, : taps * lanes] = np.clip(spread, -HALF_MAX, HALF_MAX).reshape(outputs, -1)
    return flat


def padded(array: _FLOATS, channels: int) -> _FLOATS:
    """Return an array with its last axis extended by zeros."""
    extra = channels - array.shape[-1]
    return np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, extra)]).astype(np.float32)
