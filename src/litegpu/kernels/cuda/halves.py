"""Weights as halves or tf32 for matrix instructions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from litegpu.ops.base import Target
from litegpu.ops.common.halves import as_halves, holds, largest_of

_FLOATS = npt.NDArray[np.float32]
_Element = TypeVar("_Element", bound=np.generic)
REST_SCALE = 2048.0
"""Factor that scales the remainders of weights; the CUDA function `rest_of` scales remainders of
inputs.

With this factor, the remainder of a value has 11 bits wherever the high part is not 0. The CUDA
function `with_rests` divides by this factor.
"""
_BEST = 15
"""Exponent of the power of 2 below which scaled weights are, well inside half's range."""


@dataclass(frozen=True, slots=True)
class Halves:
    """Weights [O, ...] for instructions that multiply halves.

    `parts`, not yet rounded, are the weights and optionally their remainders times REST_SCALE.
    Channels beyond half's range are scaled by a power of two, and kernels must multiply their sums
    by `back` [O]. `back` is None if no channel is scaled.
    """

    parts: list[_FLOATS]
    back: _FLOATS | None


def halves_of(weights: _FLOATS, target: Target, exact: bool = True, siblings: int = 1) -> Halves:
    """Return weights [O, ...] as halves, in two parts if the policy requires them `exact`.

    `siblings` has the same meaning as in Value.
    """
    scaled, back = _scaled(weights)
    parts = [scaled]
    if exact and target.policy.keeps_fp32_weights(weights.nbytes // siblings):
        rest = scaled - as_halves(scaled)
        parts += [rest * np.float32(REST_SCALE)] if rest.any() else []
    return Halves(parts, back)


def parts_of(weights: _FLOATS, target: Target, exact: bool = True, siblings: int = 1) -> int:
    """Return the number of parts that `halves_of` would return, without computing them.

    Usually, the first channel is sufficient to determine the number of parts.
    """
    if not exact or not target.policy.keeps_fp32_weights(weights.nbytes // siblings):
        return 1
    some = (weights[:1], weights[1:])
    return 1 + any(
        len(halves_of(channels, target, siblings=siblings).parts) > 1 for channels in some
    )


def _scaled(weights: _FLOATS) -> tuple[_FLOATS, _FLOATS | None]:
    """Return weights [O, ...] scaled to half's range by channel, and the inverse factors."""
    largest = largest_of(weights, tuple(range(1, weights.ndim)))
    representable = holds(largest)
    if representable.all():
        return weights, None
    # Neither the factor nor its inverse may exceed float32's range.
    powers = np.where(representable, 0, np.clip(_BEST - np.frexp(largest)[1], -126, 126))
    factors = np.ldexp(np.float32(1), powers).astype(np.float32)
    factors_of_rows = factors.reshape(-1, *[1] * (weights.ndim - 1))
    return weights * factors_of_rows, np.float32(1) / factors


def as_tf32_parts(weights: _FLOATS) -> list[_FLOATS]:
    """Return two arrays of tf32 values, the high part first, whose sum is the weights."""
    high = _as_tf32(weights)
    with np.errstate(invalid="ignore"):  # infinite weights have no remainder
        return [high, _as_tf32(weights - high)]


def _as_tf32(weights: _FLOATS) -> _FLOATS:
    """Return weights rounded to the 11 bits of tf32; truncated where rounding would overflow."""
    bits, leading = weights.view(np.uint32), np.uint32(0xFFFFE000)
    rounded = ((bits + np.uint32(0x1000)) & leading).view(np.float32)
    finite = np.isfinite(weights) & np.isfinite(rounded)
    return np.where(finite, rounded, (bits & leading).view(np.float32))


def spread_taps(
    weights: npt.NDArray[_Element], columns: int, part: int, length: int
) -> npt.NDArray[_Element]:
    """Return [O, H, W, I] as [columns, length], with zero padding after channels and taps.

    The result is a view if no padding is needed.
    """
    outputs, height, width, depth = weights.shape
    taps, lanes = height * width, -(-depth // part) * part
    if (columns, length) == (outputs, taps * depth):
        return weights.reshape(columns, length)
    flat = np.zeros((columns, length), weights.dtype)
    # Splitting the last axis is a view, too.
    spread = flat[:outputs, : taps * lanes].reshape(outputs, taps, lanes)
    spread[..., :depth] = weights.reshape(outputs, taps, depth)
    return flat


def padded(array: npt.NDArray[_Element], channels: int) -> npt.NDArray[_Element]:
    """Return an array with its last axis extended by zeros."""
    extra = channels - array.shape[-1]
    return np.pad(array, [(0, 0)] * (array.ndim - 1) + [(0, extra)])
