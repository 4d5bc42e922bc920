"""Changes the sample rate of sound with a sinc filter in a Kaiser window."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
_RADIUS, _CUTOFF, _BETA = 5.0, 0.9, 6.0
"""The radius in samples of the slower rate, the cutoff relative to half of it, and the window."""
_MAX_PHASES = 1000
_AT_ONCE = 1 << 16


class Resampler:
    """Resamples a stream of sound; filter and sample positions are those of MediaPipe."""

    def __init__(self, source: float, target: float, channels: int) -> None:
        """Compute the filters; the rates are in samples per second.

        The ratio of the rates is rounded to a fraction whose denominator is at most 1000.
        """
        factor = source / target
        ratio = Fraction(factor).limit_denominator(_MAX_PHASES)
        self._step, self._phases = ratio.numerator, ratio.denominator
        slower = max(1.0, factor)
        radius = _RADIUS * slower
        self._radius = int(np.ceil(radius))
        taps = np.arange(-self._radius, self._radius + 1)
        places = np.arange(self._phases)[:, np.newaxis] / self._phases - taps
        inside = np.maximum(0.0, 1 - (places / radius) ** 2)
        window = np.where(abs(places) <= radius, np.i0(_BETA * np.sqrt(inside)) / np.i0(_BETA), 0)
        cutoff = _CUTOFF / slower
        self._filters: Floats = (window * np.sinc(cutoff * places) * cutoff).astype(np.float32)
        self._waiting: Floats = np.zeros((self._radius, channels), np.float32)
        self._place = 0
        """The place of the next result in `_waiting`, in steps of 1 / `_phases` of a sample."""

    def __call__(self, samples: Floats) -> Floats:
        """Return the results `[N, channels]` for which all samples are known now."""
        given = np.concatenate([self._waiting, samples])
        ready = max(0, len(given) - 2 * self._radius)
        count = max(0, -((self._place - ready * self._phases) // self._step))
        if not count:
            self._waiting = given
            return given[:0]
        windows = np.lib.stride_tricks.sliding_window_view(given, 2 * self._radius + 1, axis=0)
        found = np.empty((count, given.shape[1]), np.float32)
        for first in range(0, count, _AT_ONCE):
            numbers = np.arange(first, min(count, first + _AT_ONCE), dtype=np.int64)
            rows, phases = np.divmod(self._place + numbers * self._step, self._phases)
            found[first : first + _AT_ONCE] = np.einsum(
                "nt,nct->nc", self._filters[phases], windows[rows]
            )
        done, self._place = divmod(self._place + count * self._step, self._phases)
        self._waiting = given[done:]
        return found

    def flush(self) -> Floats:
        """Return the results after the last sample, as if silence followed."""
        return self(np.zeros((2 * self._radius, self._waiting.shape[1]), np.float32))
