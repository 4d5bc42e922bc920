"""Decodes, processes and draws pictures in parallel, and measures each stage."""

from __future__ import annotations

import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, TypeVar

from litegpu.tools.console import print_table
from litegpu.tools.engines.stages import Stage
from litegpu.wording import counted

Item = TypeVar("Item")
Value = TypeVar("Value")


@dataclass
class Clock:
    """Measures each stage: the busy time, summed over threads, and the number of pictures."""

    workers: dict[str, int]
    busy_s: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    counts: Counter[str] = field(default_factory=Counter)
    wall_s: float = 0.0
    _lock: Any = field(default_factory=Lock)

    @contextmanager
    def timing(self, stage: str) -> Iterator[None]:
        """Add the duration of the context to a stage, unless an exception occurs."""
        start = time.perf_counter()
        yield
        with self._lock:
            self.busy_s[stage] += time.perf_counter() - start
            self.counts[stage] += 1

    def stages(self) -> list[Stage]:
        """Return the stages in order."""
        return [
            Stage(name, workers, self.busy_s[name], self.counts[name])
            for name, workers in self.workers.items()
        ]

    def print(self, unit: str, done: int) -> None:
        """Print a table of the stages, and the rate of the whole pipeline."""
        print_table(*stage_table(self.stages()))
        print(f"\n{counted(done, unit)} in {self.wall_s:.2f} s: {self.rate(done):.1f} a second")

    def rate(self, done: int) -> float:
        """Return the pictures per second."""
        return done / self.wall_s if self.wall_s else 0.0


def stage_table(stages: Sequence[Stage]) -> tuple[Sequence[str], list[Sequence[str]]]:
    """Return headings and rows with the busy time of each stage, and its rate without others."""
    return ("stage", ">workers", ">pictures", ">busy s", ">a second by itself"), [
        (
            *(each.name, str(each.workers), str(each.samples)),
            *(f"{each.busy_s:.2f}", f"{each.rate:.1f}"),
        )
        for each in stages
    ]


def spread(
    function: Callable[[Item], Value], items: Iterable[Item], workers: int
) -> Iterator[Value]:
    """Yield the results of a function for each item, in order; threads work in advance.

    The consumer's thread iterates over the items.
    """
    waiting: deque[Future[Value]] = deque()
    with ThreadPoolExecutor(workers) as pool:
        try:
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) > workers + 1:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for each in waiting:
                each.cancel()
