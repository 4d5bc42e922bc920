"""Statistics of runs as TensorFlow Lite's tools print them, and the measuring loop."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass


def figure(value: float) -> str:
    """Return a number in the format of a C++ stream: six digits, no trailing zeros."""
    return f"{value:.6g}"


def shown_value(value: object) -> str:
    """Return a flag's value as the original prints it: 1 and 0 for true and false."""
    if isinstance(value, float):
        return figure(value)
    return str(int(value)) if isinstance(value, bool) else str(value)


@dataclass(frozen=True)
class Stats:
    """Integers in the order of measurement: microseconds, or bytes."""

    values: tuple[int, ...] = ()

    @property
    def first(self) -> int:
        """The first value, 0 without any."""
        return self.values[0] if self.values else 0

    @property
    def average(self) -> float:
        """The mean, 0 without any."""
        return statistics.fmean(self.values) if self.values else 0.0

    @property
    def deviation(self) -> float:
        """The standard deviation of the population, not of a sample."""
        return statistics.pstdev(self.values) if self.values else 0.0

    def percentile(self, percent: float) -> int:
        """Return the percentile of the values; 0 without any."""
        ordered = sorted(self.values)
        return ordered[min(int(len(ordered) * percent / 100), len(ordered) - 1)] if ordered else 0

    def text(self) -> str:
        """Return `count=… first=… curr=… min=… max=… avg=… std=…`, without percentiles."""
        values = self.values
        if len(set(values)) < 2:
            last = f" curr={values[-1]}{'(all same)' * (len(values) > 1)}" if values else ""
            return f"count={len(values)}{last}"
        return (
            f"count={len(values)} first={values[0]} curr={values[-1]} min={min(values)} "
            f"max={max(values)} avg={figure(self.average)} std={math.trunc(self.deviation)}"
        )

    def line(self) -> str:
        """Return the same with percentiles."""
        low, median, high = (self.percentile(percent) for percent in (5, 50, 95))
        return f"{self.text()} p5={low} median={median} p95={high}"


@dataclass(frozen=True)
class Pace:
    """The number of runs, and the time between them; times in seconds.

    There are at least `runs` runs, for at least `min_secs`, but none starts after `max_secs`. With
    a `frequency` above 0, that many start per second; otherwise there is a `delay` after each.
    """

    runs: int
    min_secs: float
    max_secs: float
    delay: float = -1.0
    frequency: float = -1.0


def timed_runs(pace: Pace, prepare: Callable[[], object], run: Callable[[], object]) -> Stats:
    """Return the microseconds of each `run`; the time of `prepare` does not count."""
    values: list[int] = []
    begin = now = time.perf_counter()
    while len(values) < pace.runs or now < begin + pace.min_secs:
        if now > begin + pace.max_secs:
            break
        prepare()
        start = time.perf_counter_ns()
        run()
        values.append((time.perf_counter_ns() - start) // 1000)
        pause = pace.delay
        if pace.frequency > 0:
            pause = begin + len(values) / pace.frequency - time.perf_counter()
        if pause > 0:
            time.sleep(pause)
        now = time.perf_counter()
    return Stats(tuple(values))
