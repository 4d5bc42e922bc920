"""Selects kernels by measurement: times each candidate of each problem on the device."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from litegpu import progress
from litegpu.backends.base import Compilation, Device, DeviceInfo
from litegpu.engine.choices import Choices, Tuning
from litegpu.engine.compiled import CompiledPartition
from litegpu.errors import DeviceLostError, KernelError, LitegpuError
from litegpu.host.disk_cache import DiskCache
from litegpu.host.private_files import Folder
from litegpu.version import __version__

if TYPE_CHECKING:
    from litegpu.engine.placed import PlacedPartition
    from litegpu.engine.program import BuiltProgram

_log = logging.getLogger("litegpu")

_SAMPLES = 5
"""Number of measurements of a program, after a warm-up."""

_MAX_BYTES = 1 << 22
"""Maximum size in bytes of the file of stored choices, sufficient for some ten thousand choices."""

_MAX_DIGITS = 4
"""Maximum number of digits of a candidate's index."""

Seconds = Mapping[str, float]
"""The time in seconds of all launches selected for a problem, by the problem's text."""


class Tuner:
    """Selects among candidate kernels for one device, and stores the measurements.

    The tuner never measures software devices: compiling for them takes far longer than candidates
    could save.
    """

    def __init__(self, info: DeviceInfo, cache_dir: Folder | None, tuning: Tuning) -> None:
        """Create a tuner that stores choices in `cache_dir` (None: only in this object)."""
        self._tuning = Tuning.CACHED if tuning is Tuning.MEASURED and info.software else tuning
        self._files = DiskCache(cache_dir, ".tuning", "Measured choices", _MAX_BYTES)
        self._key = (__version__, info.backend, info.platform, info.name, info.driver)
        self._known: dict[str, int] = {}

    def facts(self) -> tuple[object, ...]:
        """Return all data besides the device that determines the next choice of `build`."""
        if self._tuning is Tuning.CACHED:
            self._known = {**self._load(), **self._known}
            return (self._tuning.name, sorted(self._known.items()))
        return (self._tuning.name,)

    def build(
        self, placed: PlacedPartition, compilation: Compilation | None = None
    ) -> BuiltProgram:
        """Build the program of a partition with the best candidate of each problem.

        The tuner adds the program's kernels to a `compilation` if it does not need to measure
        anything first.
        """
        if self._tuning is Tuning.ESTIMATED:
            return placed.build(Choices(), compilation)
        self._known = {**self._load(), **self._known}
        choices = Choices(self._known)
        built = placed.build(choices)
        unknown = {
            problem: candidates
            for problem, candidates in choices.queried.items()
            if candidates > 1 and problem not in self._known
        }
        if self._tuning is Tuning.CACHED or not unknown:
            return built
        self._known |= fastest(unknown, self._rounds(placed, built, unknown))
        self._store()
        return self._lower(
            placed, built, {problem: self._known.get(problem, 0) for problem in unknown}
        )

    def _lower(
        self, placed: PlacedPartition, first: BuiltProgram, chosen: Mapping[str, int]
    ) -> BuiltProgram:
        """Return the program of the selected candidates; `first` has all first candidates."""
        if not any(chosen.values()):
            return first
        return placed.build(Choices({**self._known, **chosen}))

    def _rounds(
        self, placed: PlacedPartition, first: BuiltProgram, unknown: Mapping[str, int]
    ) -> list[Seconds]:
        """Measure the programs in order: program k consists of the candidates with index k."""
        rejected: dict[str, set[int]] = {problem: set() for problem in unknown}
        count = max(unknown.values())
        return [
            self._round(placed, first, unknown, number, rejected)
            for number in progress.steps("measure", range(count), count)
        ]

    def _round(
        self,
        placed: PlacedPartition,
        first: BuiltProgram,
        unknown: Mapping[str, int],
        number: int,
        rejected: Mapping[str, set[int]],
    ) -> Seconds:
        """Return the times of the candidates with one index.

        If a problem has no such candidate, or if the device rejects that candidate, the problem
        uses another candidate and gets no time. The result is empty if the program fails for
        another reason.
        """
        while True:
            chosen = {}
            for problem, count in unknown.items():
                numbers = (n for n in (number, *range(count)) if n < count)
                usable = (n for n in numbers if n not in rejected[problem])
                chosen[problem] = next(usable, 0)
            built = self._lower(placed, first, chosen)
            try:
                times = _measure(placed.compile(built), built, placed.device)
            except DeviceLostError:
                raise
            except LitegpuError as error:
                _log.info("tuning: candidates %d are skipped: %s", number, error)
                failed = _problems_of(error, built) & unknown.keys()
                if all(chosen[problem] in rejected[problem] for problem in failed):
                    return {}
                for problem in failed:
                    rejected[problem].add(chosen[problem])
            else:
                return {p: seconds for p, seconds in times.items() if chosen.get(p) == number}

    def _load(self) -> dict[str, int]:
        data = self._files.load(*self._key)
        if data is None:
            return {}
        try:
            return _read(data)
        except (ValueError, RecursionError) as error:  # unlimited nesting raises the latter
            self._files.discard(str(error), *self._key)
            return {}

    def _store(self) -> None:
        self._files.store(json.dumps(self._known, indent=1).encode(), *self._key)


def _read(data: bytes) -> dict[str, int]:
    """Return the choices stored in a file. Raises ValueError or RecursionError."""
    found = json.loads(
        data,
        parse_int=_number,
        parse_float=_number,
        parse_constant=_number,
        object_pairs_hook=_once_each,
    )
    if not isinstance(found, dict):
        raise ValueError(f"{type(found).__name__} instead of an object")
    for problem, number in found.items():
        if type(number) is not int:
            raise ValueError(f"{number!r} is not the index of a candidate of {problem}")
    return found


def _number(text: str) -> int:
    """Convert a JSON number to a candidate's index.

    Raises ValueError if the number is out of range.
    """
    if not text.isdecimal() or len(text) > _MAX_DIGITS:
        raise ValueError(f"{text[:20]} is not the index of a candidate")
    return int(text)


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a problem occurs twice")
    return found


def _problems_of(error: LitegpuError, built: BuiltProgram) -> set[str]:
    """Return the problems whose candidates are kernels that the device rejects."""
    rejected = error.reasons if isinstance(error, KernelError) else {}
    launches = (launch for launch in built.launches if launch.kernel.name in rejected)
    return {problem for launch in launches for problem in launch.problems}


def _measure(compiled: CompiledPartition, built: BuiltProgram, device: Device) -> Seconds:
    """Return the median times of a program by problem, and release the program.

    Raises ExecutionError if the device fails.
    """
    try:
        compiled.warm_up(device)
        profiler = compiled.context.profiler()
        samples = [profiler.durations() for _ in range(_SAMPLES + 1)][1:]
    finally:
        compiled.close()
    found: dict[str, float] = {}
    for launch, times in zip(built.launches, zip(*samples, strict=True), strict=True):
        for problem in launch.problems:
            found[problem] = found.get(problem, 0.0) + float(np.median(times))
    return found


def fastest(candidates: Mapping[str, int], rounds: Sequence[Seconds]) -> dict[str, int]:
    """Return the index of the fastest candidate of each problem; the first if several are equal.

    `candidates` is the number of candidates of each problem; round k has the times of the
    candidates with index k, or None for failed measurements.
    """
    best = {}
    for problem, count in candidates.items():
        times = [(each[problem], k) for k, each in enumerate(rounds[:count]) if problem in each]
        if times:
            seconds, best[problem] = min(times)
            _log.info("tuning: %s: candidate %d, %.1f µs", problem, best[problem], seconds * 1e6)
    return best
