"""Energy per inference: counters of joules, read while the machine is idle and while it is busy."""

from __future__ import annotations

import contextlib
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

LEAD_IN_SECS = 1.0
"""Seconds of each phase before its first reading.

Meters lag: NVML's counter changes about ten times per second, its power is an average over a
second.
"""


class Meter(AbstractContextManager["Meter"]):
    """A counter of joules, active while it is entered."""

    kind: str
    """What it measures: `GPU` or `CPU`."""
    name: str
    """The hardware, and how it is read."""

    @abstractmethod
    def read(self) -> float:
        """Return joules since some moment in the past.

        Raises:
            MeterError: it cannot be read any more.
        """


class MeterError(Exception):
    """There is no meter, or it cannot be read; the text has the reason and the remedy."""


@dataclass(frozen=True)
class MeterEnergy:
    """The result of one meter. Watts are averages over a phase, joules are per inference.

    `above_idle_joules` exclude what the idle hardware uses in the same time.
    """

    kind: str
    name: str
    idle_watts: float
    busy_watts: float
    joules: float
    above_idle_joules: float


@dataclass(frozen=True)
class Energy:
    """The energy per inference, by meter; `missing` lists unavailable meters with the reasons.

    `idle_seconds` and `busy_seconds` are the lengths of the two phases, `runs` is the number of
    inferences in the second.
    """

    runs: int
    idle_seconds: float
    busy_seconds: float
    meters: tuple[MeterEnergy, ...]
    missing: tuple[str, ...]

    @property
    def joules(self) -> float:
        """Joules per inference, of all meters together."""
        return sum(each.joules for each in self.meters)

    @property
    def above_idle_joules(self) -> float:
        """Joules per inference, of all meters together, without the idle energy."""
        return sum(each.above_idle_joules for each in self.meters)


@dataclass(frozen=True)
class Rest:
    """The length of the idle phase, and the watts of each meter."""

    seconds: float
    watts: dict[Meter, float]


class Meters(AbstractContextManager["Meters"]):
    """Meters that are read together, only at both ends of a phase: nothing slows what is measured.

    A meter that fails is excluded from then on, and listed in `missing`.
    """

    def __init__(self, meters: Sequence[Meter], missing: Sequence[str] = ()) -> None:
        self.missing = list(missing)
        self._meters = list(meters)
        self._opened = contextlib.ExitStack()

    def __enter__(self) -> Meters:
        for meter in tuple(self._meters):
            with self._left_out_if_it_fails(meter):
                self._opened.enter_context(meter)
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def rest(self, seconds: float) -> Rest:
        """Stay idle for this long, after a lead-in that does not count."""
        time.sleep(LEAD_IN_SECS)
        _, spent, joules = self._phase(lambda: time.sleep(seconds), 0)
        return Rest(spent, {meter: each / spent for meter, each in joules.items()})

    def work(self, run: Callable[[], object], seconds: float, rest: Rest) -> Energy:
        """Return the energy of one `run`, including its copies.

        It is repeated for this long, at least once, after a lead-in.
        """
        _repeat(run, LEAD_IN_SECS)
        runs, spent, joules = self._phase(run, seconds)
        found = tuple(
            MeterEnergy(
                *(meter.kind, meter.name, rest.watts[meter], each / spent),
                *(each / runs, (each - rest.watts[meter] * spent) / runs),
            )
            for meter, each in joules.items()
        )
        return Energy(runs, rest.seconds, spent, found, tuple(self.missing))

    def _phase(
        self, run: Callable[[], object], least_secs: float
    ) -> tuple[int, float, dict[Meter, float]]:
        """Return the number of runs, their total seconds, and the joules of each meter."""
        before, start = self._read(), time.perf_counter()
        runs = _repeat(run, least_secs)
        seconds, after = time.perf_counter() - start, self._read()
        return runs, seconds, {meter: after[meter] - before[meter] for meter in after}

    def _read(self) -> dict[Meter, float]:
        found: dict[Meter, float] = {}
        for meter in tuple(self._meters):
            with self._left_out_if_it_fails(meter):
                found[meter] = meter.read()
        return found

    @contextlib.contextmanager
    def _left_out_if_it_fails(self, meter: Meter) -> Iterator[None]:
        try:
            yield
        except MeterError as error:
            self._meters.remove(meter)
            self.missing.append(str(error))


def _repeat(run: Callable[[], object], least_secs: float) -> int:
    """Run for at least `least_secs` seconds, at least once; return the number of runs."""
    count, end = 0, time.perf_counter() + least_secs
    while not count or time.perf_counter() < end:
        run()
        count += 1
    return count
