"""Temporal filters that smooth the landmarks in a video."""

from __future__ import annotations

import math
from typing import Any

from numpy.typing import NDArray

_FREQUENCY = 30.0
"""The assumed frame rate until two timestamps are known."""


class LowPassFilter:
    """Computes the exponential moving average of all values."""

    def __init__(self) -> None:
        self.last: NDArray[Any] | None = None

    def __call__(self, values: NDArray[Any], weight: Any) -> NDArray[Any]:
        """Return the average after adding these values with a weight from 0 to 1."""
        found = values if self.last is None else weight * values + (1 - weight) * self.last
        self.last = found
        return found


class OneEuroFilter:
    """The One Euro filter (Casiez et al., CHI 2012): fast changes are smoothed less."""

    def __init__(self, cutoff: float, slope: float, speed_cutoff: float = 1.0) -> None:
        """Store the parameters of the filter.

        `cutoff` is the cutoff frequency of values at rest in Hz, and `slope` is its increase with
        speed. `speed_cutoff` is the cutoff frequency of speeds in Hz.
        """
        self._cutoff, self._slope, self._speed_cutoff = cutoff, slope, speed_cutoff
        self._values, self._speeds = LowPassFilter(), LowPassFilter()
        self._raw: NDArray[Any] | None = None
        self._time, self._frequency = 0.0, _FREQUENCY

    def __call__(self, values: NDArray[Any], seconds: float, scale: float) -> NDArray[Any]:
        """Return the smoothed values at a time; the filter multiplies speeds by `scale`."""
        if self._time and seconds:
            self._frequency = 1 / (seconds - self._time)
        self._time = seconds
        change = values - (values if self._raw is None else self._raw)
        self._raw = values
        speed = self._speeds(change * scale * self._frequency, self._weight(self._speed_cutoff))
        return self._values(values, self._weight(self._cutoff + self._slope * abs(speed)))

    def _weight(self, cutoff: Any) -> Any:
        return 1 / (1 + self._frequency / (2 * math.pi * cutoff))
