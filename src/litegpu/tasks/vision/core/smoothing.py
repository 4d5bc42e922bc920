"""Filters that calm the landmarks of a video."""

from __future__ import annotations

import math
from typing import Any

from numpy.typing import NDArray

_FREQUENCY = 30.0
"""Frames per second until two timestamps are known."""


class LowPassFilter:
    """Returns the mean of all values, of which each counts less than the next one."""

    def __init__(self) -> None:
        self.last: NDArray[Any] | None = None

    def __call__(self, values: NDArray[Any], weight: Any) -> NDArray[Any]:
        """Return the mean after these values, which have a weight from 0 to 1."""
        found = values if self.last is None else weight * values + (1 - weight) * self.last
        self.last = found
        return found


class OneEuroFilter:
    """Smooths values the less, the faster they change (Casiez et al., CHI 2012)."""

    def __init__(self, cutoff: float, slope: float, speed_cutoff: float = 1.0) -> None:
        """Store the cutoff frequencies in Hz: at rest, its increase with speed, that of speeds."""
        self._cutoff, self._slope, self._speed_cutoff = cutoff, slope, speed_cutoff
        self._values, self._speeds = LowPassFilter(), LowPassFilter()
        self._raw: NDArray[Any] | None = None
        self._time, self._frequency = 0.0, _FREQUENCY

    def __call__(self, values: NDArray[Any], seconds: float, scale: float) -> NDArray[Any]:
        """Return the smoothed values at a time; speeds are multiplied by `scale`."""
        if self._time and seconds:
            self._frequency = 1 / (seconds - self._time)
        self._time = seconds
        change = values - (values if self._raw is None else self._raw)
        self._raw = values
        speed = self._speeds(change * scale * self._frequency, self._weight(self._speed_cutoff))
        return self._values(values, self._weight(self._cutoff + self._slope * abs(speed)))

    def _weight(self, cutoff: Any) -> Any:
        return 1 / (1 + self._frequency / (2 * math.pi * cutoff))
