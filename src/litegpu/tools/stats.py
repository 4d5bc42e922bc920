"""The measuring loop, and statistics of runs in the format of TensorFlow Lite's tools."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass


def figure(value: float) -> str:
    """Format a number like a C++ stream: six significant digits, no trailing zeros."""
    return f"{value:.6g}"


def shown_value(value: object) -> str:
    """Format a flag's value like TensorFlow Lite's tools: 1 for true, 0 for false."""
    if isinstance(value, float):
        return figure(value)
    return str(int(value)) if isinstance(value, bool) else str(value)


@dataclass(frozen=True)
class Stats:
    """Measured integers in order: microseconds, or bytes."""

    values: tuple[int, ...] = ()

    @property
    def first(self) -> int:
        """The first value; 0 without values."""
        return self.values[0] if self.values else 0

    @property
    def average(self) -> float:
        """The mean; 0 without values."""
        return statistics.fmean(self.values) if self.values else 0.0

    @property
    def deviation(self) -> float:
        """The population standard deviation."""
        return statistics.pstdev(self.values) if self.values else 0.0

    def percentile(self, percent: float) -> int:
        """Return a percentile of the values; 0 without values."""
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
        """Return the line of `text` with additional percentiles."""
        low, median, high = (self.percentile(percent) for percent in (5, 50, 95))
        return f"{self.text()} p5={low} median={median} p95={high}"


@dataclass(frozen=True)
class Pace:
    """The number of runs, and the time between runs; times are in seconds.

    There are at least `runs` runs, for at least `min_secs`, but no run starts after `max_secs`. A
    `frequency` above 0 is the number of runs per second; otherwise a `delay` follows each run.
    """

    runs: int
    min_secs: float
    max_secs: float
    delay: float = -1.0
    frequency: float = -1.0


def timed_runs(pace: Pace, prepare: Callable[[], object], run: Callable[[], object]) -> Stats:
    """Return the duration of each `run` in microseconds, without the time of `prepare`."""
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
