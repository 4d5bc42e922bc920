"""Compares latencies and outputs of two interpreters on the same Gaussian inputs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from litegpu.errors import ModelError
from litegpu.runtime_abi.interpreter import invoke, set_inputs
from litegpu.tools.inference_diff.tolerance import Measured, Measuring, Tolerance, distances
from litegpu.tools.latencies import LatencyStatistics

INVOKES = 3
"""Number of timed invocations of each side per run, as in TensorFlow Lite's tool."""

_SEED = 5489
_MEAN, _DEVIATION = 0.5, 1 / 3
_INPUTS = ("float16", "float32", "int8", "uint8", "int32", "int64", "bool")
_OUTPUTS = ("float32", "int8", "uint8", "int32", "bool")


class GaussianInputs:
    """Reproducible inputs, normally distributed over the range of their type."""

    def __init__(self, details: Sequence[dict[str, Any]]) -> None:
        """Store the details of the inputs. Raises ModelError for an unsupported type."""
        self._details = details
        self._random = np.random.Generator(np.random.MT19937(_SEED))
        _check_types("inputs", details, _INPUTS)

    def draw(self) -> list[NDArray[Any]]:
        """Return the next random value of each input."""
        return [self._tensor(detail) for detail in self._details]

    def _tensor(self, detail: dict[str, Any]) -> NDArray[Any]:
        shape, kind = tuple(map(int, detail["shape"])), np.dtype(detail["dtype"])
        unit = self._unit(int(np.prod(shape, dtype=np.int64))).reshape(shape)
        if kind.kind == "f":
            return (2 * unit - 1).astype(kind)
        if kind.kind == "b":
            return unit >= _MEAN
        low, high = int(np.iinfo(kind).min), int(np.iinfo(kind).max)
        return (low + unit * (float(high) - low)).astype(kind)

    def _unit(self, count: int) -> NDArray[np.float64]:
        """Return normally distributed numbers; numbers outside [0, 1) are redrawn."""
        values = self._random.normal(_MEAN, _DEVIATION, count)
        while (outside := (values < 0) | (values >= 1)).any():
            values[outside] = self._random.normal(_MEAN, _DEVIATION, int(outside.sum()))
        return values


@dataclass(frozen=True)
class BadElement:
    """An output element beyond the tolerance."""

    run: int
    index: tuple[int, ...]
    test: float
    reference: float


@dataclass(frozen=True)
class OutputDiff:
    """The differences of an output from the reference over all runs.

    The fields `avg_error` to `std_deviation` are statistics of the mean absolute error of each run.
    Quantized outputs are compared as integers, without dequantization.
    """

    name: str
    avg_error: float
    min_error: float
    largest_mean_error: float
    std_deviation: float
    max_error: float
    max_error_run: int
    max_error_index: tuple[int, ...]
    first_bad: BadElement | None
    """The first element beyond the tolerance, ordered by run and then by index."""
    criteria: tuple[Measured, ...]

    @property
    def passed(self) -> bool:
        """Whether the output is within the tolerance."""
        return all(each.passed for each in self.criteria)

    @property
    def first_run_beyond(self) -> int | None:
        """The first run in which the output is beyond the tolerance."""
        runs = (each.first_run_beyond for each in self.criteria)
        return min((run for run in runs if run is not None), default=None)


@dataclass(frozen=True)
class Comparison:
    """The combined results of all runs."""

    num_runs: int
    reference: LatencyStatistics
    test: LatencyStatistics
    outputs: tuple[OutputDiff, ...]


@dataclass
class _OutputErrors:
    """Collects the errors of an output over the runs."""

    name: str
    tolerance: Tolerance
    means: list[float] = field(default_factory=list)
    worst: tuple[float, int, tuple[int, ...]] = (-1.0, 0, ())
    bad: BadElement | None = None

    def __post_init__(self) -> None:
        self.measuring = [Measuring(*each) for each in self.tolerance.limits.items()]

    def add(
        self, run: int, test: NDArray[Any], reference: NDArray[Any], detail: dict[str, Any]
    ) -> None:
        """Add the results of a run; `detail` is the runtime's description of the output."""
        for each in self.measuring:
            each.add(test, reference, detail)
        found = distances(test, reference)
        self.means.append(float(found.mean()) if found.size else 0.0)
        if not found.size:
            return
        position = index_of(int(found.argmax()), found.shape)
        if found[position] > self.worst[0]:
            self.worst = (float(found[position]), run, position)
        beyond = found > self.tolerance.allowed(reference)
        if self.bad is None and beyond.any():
            position = index_of(int(beyond.argmax()), found.shape)
            self.bad = BadElement(run, position, float(test[position]), float(reference[position]))

    def result(self) -> OutputDiff:
        """Return the statistics of all runs."""
        means = np.asarray(self.means)
        error, run, position = self.worst
        with np.errstate(invalid="ignore"):  # an infinite error has no deviation
            average, deviation = float(means.mean()), float(means.std())
        return OutputDiff(
            name=self.name,
            avg_error=average,
            min_error=float(means.min()),
            largest_mean_error=float(means.max()),
            std_deviation=deviation,
            max_error=max(error, 0.0),
            max_error_run=run,
            max_error_index=position,
            first_bad=self.bad,
            criteria=tuple(each.result() for each in self.measuring),
        )


def compare_runs(
    test: Any,
    reference: Any,
    inputs: GaussianInputs,
    num_runs: int,
    tolerance: Tolerance,
    progress: Any,
) -> Comparison:
    """Run both interpreters `num_runs` times on the same inputs, with three timed calls per run.

    Args:
        test: the tested interpreter.
        reference: the reference interpreter.
        inputs: the generator of inputs.
        num_runs: the number of runs, each on new inputs.
        tolerance: the allowed differences from the reference.
        progress: a function that yields the runs and shows the progress.

    Raises:
        ModelError: the tool cannot compare outputs of these types, or one side cannot run on
            the random inputs.
    """
    details = test.get_output_details(), reference.get_output_details()
    for each in details:
        _check_types("outputs", each, _OUTPUTS)
    errors = [_OutputErrors(detail["name"], tolerance) for detail in details[1]]
    times: tuple[list[int], list[int]] = ([], [])
    for run in progress(range(num_runs)):
        values = inputs.draw()
        for side, spent in zip((test, reference), times, strict=True):
            set_inputs(side, values)
            spent += [_timed(side) for _ in range(INVOKES)]
        for found, tested, wanted in zip(errors, *details, strict=True):
            found.add(
                *(run, test.get_tensor(tested["index"]), reference.get_tensor(wanted["index"])),
                wanted,
            )
    return Comparison(
        *(num_runs, LatencyStatistics.of(times[1]), LatencyStatistics.of(times[0])),
        tuple(found.result() for found in errors),
    )


def _timed(target: Any) -> int:
    start = time.perf_counter_ns()
    invoke(target)
    return (time.perf_counter_ns() - start) // 1000


def index_of(position: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the index of an element from its position in the flattened array."""
    return tuple(map(int, np.unravel_index(position, shape)))


def _check_types(what: str, details: Sequence[dict[str, Any]], known: tuple[str, ...]) -> None:
    for detail in details:
        kind = np.dtype(detail["dtype"]).name
        if kind not in known:
            raise ModelError(
                f"InferenceProfilerStage only supports {'/'.join(known)} {what}, and "
                f"'{detail['name']}' is {kind}. Compare a model without it."
            )
