"""Energy per inference, from energy counters read in an idle phase and a busy phase."""

from __future__ import annotations

import contextlib
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

LEAD_IN_SECS = 1.0
"""Seconds between the start of a phase and the first reading of the meters.

Meters lag: NVML updates its energy counter about ten times per second, and its power value is an
average over a second.
"""


class Meter(AbstractContextManager["Meter"]):
    """An energy counter in joules, active inside its `with` block."""

    kind: str
    """The measured processor: `GPU` or `CPU`."""
    name: str
    """The name of the hardware and of the measuring interface."""

    @abstractmethod
    def read(self) -> float:
        """Return the joules since an arbitrary fixed time in the past.

        Raises:
            MeterError: the counter can no longer be read.
        """


class MeterError(Exception):
    """No meter is available, or a meter cannot be read.

    The message contains the reason and the remedy.
    """


@dataclass(frozen=True)
class MeterEnergy:
    """The result of one meter: average watts of each phase, and joules per inference.

    `above_idle_joules` excludes the energy that idle hardware uses in the same time.
    """

    kind: str
    name: str
    idle_watts: float
    busy_watts: float
    joules: float
    above_idle_joules: float


@dataclass(frozen=True)
class Energy:
    """The energy per inference, by meter; `missing` lists unavailable meters with reasons.

    `idle_seconds` and `busy_seconds` are the durations of the two phases. `runs` is the number of
    inferences in the busy phase.
    """

    runs: int
    idle_seconds: float
    busy_seconds: float
    meters: tuple[MeterEnergy, ...]
    missing: tuple[str, ...]

    @property
    def joules(self) -> float:
        """Joules per inference, summed over all meters."""
        return sum(each.joules for each in self.meters)

    @property
    def above_idle_joules(self) -> float:
        """Joules per inference without the idle energy, summed over all meters."""
        return sum(each.above_idle_joules for each in self.meters)


@dataclass(frozen=True)
class Rest:
    """The duration of the idle phase, and the watts of each meter."""

    seconds: float
    watts: dict[Meter, float]


class Meters(AbstractContextManager["Meters"]):
    """Meters that are read together, only at the start and the end of a phase.

    Between these readings, no code slows the measured program. After a meter has failed, it is
    excluded and listed in `missing`.
    """

    def __init__(self, meters: Sequence[Meter], missing: Sequence[str] = ()) -> None:
        self.missing = list(missing)
        self._meters = list(meters)
        self._opened = contextlib.ExitStack()

    def __enter__(self) -> Meters:
        for meter in tuple(self._meters):
            with self._omitted_on_failure(meter):
                self._opened.enter_context(meter)
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def rest(self, seconds: float) -> Rest:
        """Measure an idle phase of this duration, after a lead-in that is not measured."""
        time.sleep(LEAD_IN_SECS)
        _, spent, joules = self._phase(lambda: time.sleep(seconds), 0)
        return Rest(spent, {meter: each / spent for meter, each in joules.items()})

    def work(self, run: Callable[[], object], seconds: float, rest: Rest) -> Energy:
        """Return the energy of one call of `run`, including its copies.

        After a lead-in, the method repeats `run` for this duration, at least once.
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
        """Return the number of runs, their total duration, and the joules of each meter."""
        before, start = self._read(), time.perf_counter()
        runs = _repeat(run, least_secs)
        seconds, after = time.perf_counter() - start, self._read()
        return runs, seconds, {meter: after[meter] - before[meter] for meter in after}

    def _read(self) -> dict[Meter, float]:
        found: dict[Meter, float] = {}
        for meter in tuple(self._meters):
            with self._omitted_on_failure(meter):
                found[meter] = meter.read()
        return found

    @contextlib.contextmanager
    def _omitted_on_failure(self, meter: Meter) -> Iterator[None]:
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
