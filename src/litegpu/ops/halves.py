"""Weights as halves or as tf32, for the instructions that multiply these."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from litegpu.ops.base import HALF_MAX, LowerContext

_FLOATS = npt.NDArray[np.float32]


def low_part(weights: _FLOATS, ctx: LowerContext) -> _FLOATS | None:
    """Return what half precision loses of the weights, None when that does not matter."""
    rest = weights - as_halves(weights)
    return rest if ctx.target.exact_weights(weights.nbytes) and rest.any() else None


def as_halves(weights: _FLOATS) -> npt.NDArray[np.float16]:
    """Round to half; what it cannot hold becomes its largest value."""
    return np.clip(weights, -HALF_MAX, HALF_MAX).astype(np.float16)


def as_tf32_parts(weights: _FLOATS) -> list[_FLOATS]:
    """Return two arrays that tf32 can hold, the high part first, whose sum are the weights."""
    high = _as_tf32(weights)
    with np.errstate(invalid="ignore"):  # infinite weights have no rest
        return [high, _as_tf32(weights - high)]


def _as_tf32(weights: _FLOATS) -> _FLOATS:
    """Round to the 11 leading bits that tf32 holds, as split_tf32 of CUDA's prelude does."""
    bits = (weights.view(np.uint32) + np.uint32(0x1000)) & np.uint32(0xFFFFE000)
    return bits.view(np.float32)


def spread_taps(weights: _FLOATS, columns: int, part: int, length: int) -> _FLOATS:
    """Return [O, H, W, I] as [columns, length], with zeros around and between parts of channels."""
    outputs, height, width, depth = weights.shape
    taps, lanes = height * width, -(-depth // part) * part
    spread = np.zeros((outputs, taps, lanes), np.float32)
    spread[..., :depth] = weights.reshape(outputs, taps, depth)
    flat = np.zeros((columns, length), np.float32)
    flat[:outputs, : taps * lanes] = spread.reshape(outputs, -1)
    return flat


def padded(array: _FLOATS, channels: int) -> _FLOATS:
    """Return an array with its last axis extended by zeros."""
    extra = channels - array.shape[-1]
    return np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, extra)]).astype(np.float32)
