"""The throughput of each stage of a run, and the overlap of the stages."""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Generic

from litegpu.tools.console import print_table, print_text
from litegpu.tools.engines.jobs import Result, Value
from litegpu.wording import counted


@dataclass(frozen=True)
class Stage:
    """A stage of a run: number of workers, total busy time, and number of samples."""

    name: str
    workers: int
    busy_s: float
    samples: int

    @property
    def alone_s(self) -> float:
        """Duration of the run in seconds if it consisted of this stage only."""
        return self.busy_s / self.workers

    @property
    def rate(self) -> float:
        """Samples per second that the stage could process alone; 0 without samples."""
        return self.samples / self.alone_s if self.alone_s else 0.0


@dataclass
class Meter:
    """Sums the times of results, and the time of processing them in this process.

    Args:
        workers: the number of parallel workers.
        decode_threads: the number of decoding threads per worker.
    """

    workers: int
    decode_threads: int
    prepare_s: float = 0.0
    infer_s: float = 0.0
    finish_s: float = 0.0
    write_s: float = 0.0
    decoded: int = 0
    inferred: int = 0
    failed: int = 0
    samples: int = 0
    wall_s: float = 0.0
    places: Counter[str] = field(default_factory=Counter)
    """The number of samples per device."""
    _begun: float = field(default=math.inf, repr=False)

    def watch(self, results: Iterable[Result[Value]]) -> Iterator[Result[Value]]:
        """Yield the results; the time until the next result is requested counts as writing.

        The run starts with the first preparation, after the workers have opened their delegates.
        """
        for result in results:
            self._add(result)
            with self.writing():
                yield result

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Count the time of the context as writing."""
        start = time.perf_counter()
        yield
        self.write_s += time.perf_counter() - start
        self.wall_s = max(time.time() - self._begun, 0.0)

    def _add(self, result: Result[Any]) -> None:
        self._begun = min(self._begun, result.begun)
        self.samples += 1
        self.failed += bool(result.error)
        self.decoded += 1
        if result.infer_s > 0:
            self.inferred += 1
            self.places[result.place] += 1
        self.prepare_s += result.prepare_s
        self.infer_s += result.infer_s
        self.finish_s += result.finish_s

    def stages(self) -> list[Stage]:
        """Return the stages in order."""
        threads = self.workers * self.decode_threads
        return [
            Stage("decode", threads, self.prepare_s, self.decoded),
            Stage("infer", self.workers, self.infer_s + self.finish_s, self.inferred),
            Stage("write", 1, self.write_s, self.samples),
        ]

    @property
    def begun(self) -> float:
        """The start of the first preparation, in seconds since the epoch; infinite before it."""
        return self._begun

    @property
    def rate(self) -> float:
        """Samples per second of the whole run."""
        return self.samples / self.wall_s if self.wall_s else 0.0

    @property
    def overlap(self) -> float:
        """The overlap of the stages: 1 if the slowest stage never waits.

        An overlap of 0 means that the stages ran one after the other.
        """
        alone = [stage.alone_s for stage in self.stages()]
        saved, most = sum(alone) - self.wall_s, sum(alone) - max(alone)
        return min(max(saved / most, 0.0), 1.0) if most > 0 else 0.0

    @property
    def alone_s(self) -> float:
        """Duration in seconds if the stages ran one after the other."""
        return sum(stage.alone_s for stage in self.stages())

    def to_dict(self) -> dict[str, Any]:
        """Return all figures for JSON, in seconds and samples per second."""
        return {
            "samples": self.samples,
            "failed": self.failed,
            "seconds": self.wall_s,
            "rate": self.rate,
            "overlap": self.overlap,
            "stages": [
                {
                    "name": stage.name,
                    "workers": stage.workers,
                    "busy_seconds": stage.busy_s,
                    "rate": stage.rate,
                }
                for stage in self.stages()
            ],
        }

    def print(self, unit: str = "sample") -> None:
        """Print a table of the stages, and their overlap."""
        print_table(
            ("stage", ">workers", ">busy s", f">{unit}s/s by itself"),
            [
                (each.name, str(each.workers), f"{each.busy_s:.2f}", f"{each.rate:.1f}")
                for each in self.stages()
            ],
        )
        print()
        print_text(
            f"{counted(self.samples, unit)} in {self.wall_s:.2f} s: {self.rate:.1f} {unit}s/s. "
            + (
                f"One stage after the other would take {self.alone_s:.2f} s: they overlap by "
                f"{self.overlap:.0%} of what is possible."
                if self.alone_s > self.wall_s
                else f"The stages would take {self.alone_s:.2f} s one after the other: the rest "
                "passed while workers started, or waited for each other."
            )
        )


class Steps:
    """Measures the durations of a tool's consecutive steps, starting at construction."""

    def __init__(self) -> None:
        """Start the first step."""
        self._begun = time.time()
        self.seconds: dict[str, float] = {}

    def end(self, name: str, at: float = math.inf) -> None:
        """End a step, now or at an earlier time in seconds since the epoch."""
        end = max(min(at, time.time()), self._begun)
        self.seconds[name] = end - self._begun
        self._begun = end

    def to_dict(self) -> dict[str, Any]:
        """Return the total time, and the time of each step, for JSON."""
        return {"total_seconds": sum(self.seconds.values()), "steps": self.seconds}

    def print(self) -> None:
        """Print a table of the steps."""
        rows = [*self.seconds.items(), ("in all", sum(self.seconds.values()))]
        print_table(("step", ">s"), [(name, f"{seconds:.2f}") for name, seconds in rows])


@dataclass(frozen=True)
class Run(Generic[Value]):
    """A running job: the results in order, and a meter for their times.

    `results` is a generator; closing it ends all workers.
    """

    results: Generator[Result[Value], None, None]
    meter: Meter
