"""Latencies in the format of TensorFlow Lite's evaluation tasks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from litegpu.files.wire import message


@dataclass(frozen=True)
class LatencyStatistics:
    """Latencies in microseconds; the population standard deviation is an integer."""

    last_us: int
    max_us: int
    min_us: int
    sum_us: int
    avg_us: float
    std_deviation_us: int

    @classmethod
    def of(cls, times: Sequence[int]) -> LatencyStatistics:
        """Return the statistics of one or more times, in the order of measurement."""
        average, deviation = sum(times) / len(times), int(np.std(times))
        return cls(times[-1], max(times), min(times), sum(times), average, deviation)

    def text(self) -> str:
        """Return the text after `latency: `."""
        return f"avg={self.avg_us:g}(us), std_dev={self.std_deviation_us}(us)"

    def message(self) -> bytes:
        """Return the serialized message LatencyMetrics."""
        return message(*enumerate(asdict(self).values(), start=1))
