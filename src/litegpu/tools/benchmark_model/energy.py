"""Energy of an inference: counters of joules, read while the machine rests and while it works."""

from __future__ import annotations

import contextlib
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

LEAD_IN_SECS = 1.0
"""Seconds of each phase before its first reading.

Meters lag: NVML's counter moves about ten times a second, its power is a mean over a second.
"""


class Meter(AbstractContextManager["Meter"]):
    """Something that counts joules while it is entered."""

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
    """There is no meter, or it cannot be read; the text says why and what to do."""


@dataclass(frozen=True)
class MeterEnergy:
    """What one meter says. Watts are means over a phase, joules are of one inference.

    `above_idle_joules` are those beyond what the hardware takes at rest in the same time.
    """

    kind: str
    name: str
    idle_watts: float
    busy_watts: float
    joules: float
    above_idle_joules: float


@dataclass(frozen=True)
class Energy:
    """The energy of an inference, meter by meter; `missing` says which there are not, and why.

    `idle_seconds` and `busy_seconds` are how long the two phases were, `runs` how many inferences
    the second had.
    """

    runs: int
    idle_seconds: float
    busy_seconds: float
    meters: tuple[MeterEnergy, ...]
    missing: tuple[str, ...]

    @property
    def joules(self) -> float:
        """Joules of one inference, by all meters together."""
        return sum(each.joules for each in self.meters)

    @property
    def above_idle_joules(self) -> float:
        """The same beyond what is taken at rest."""
        return sum(each.above_idle_joules for each in self.meters)


@dataclass(frozen=True)
class Rest:
    """How long the machine rested, and the watts that each meter saw."""

    seconds: float
    watts: dict[Meter, float]


class Meters(AbstractContextManager["Meters"]):
    """Meters that are read together, at both ends of a phase only: nothing slows what is measured.

    One that fails is left out from then on, and named in `missing`.
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
        """Do nothing for so long, after a lead-in that does not count."""
        time.sleep(LEAD_IN_SECS)
        _, spent, joules = self._phase(lambda: time.sleep(seconds), 0)
        return Rest(spent, {meter: each / spent for meter, each in joules.items()})

    def work(self, run: Callable[[], object], seconds: float, rest: Rest) -> Energy:
        """Return the energy of one `run`, the copies that belong to it included.

        It is called again and again for so long, once at least, after a lead-in.
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
        """Return how often it ran, the seconds of all, and the joules by each meter."""
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
    """Run for so long, once at least; return how often."""
    count, end = 0, time.perf_counter() + least_secs
    while not count or time.perf_counter() < end:
        run()
        count += 1
    return count
