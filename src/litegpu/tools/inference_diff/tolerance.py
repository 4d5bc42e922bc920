"""The criteria of `--tolerance`: the allowed differences between an output and its reference."""

from __future__ import annotations

import argparse
import operator
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from litegpu.errors import closest
from litegpu.runtime_abi.interpreter import dequantised
from litegpu.tools.flags import positive, positive_int, share

Array = NDArray[Any]


def distances(test: Array, reference: Array) -> NDArray[np.float64]:
    """Return |test - reference|: 0 for two NaN or equal infinities, infinite for a mismatch."""
    got, want = test.astype(np.float64), reference.astype(np.float64)
    with np.errstate(invalid="ignore"):
        found = np.abs(got - want)
        same = (got == want) | (np.isnan(got) & np.isnan(want))
    return np.where(same, 0.0, np.where(np.isfinite(found), found, np.inf))


def magnitude(reference: Array) -> float:
    """Return the largest finite magnitude, the scale of relative errors; 1 if all values are 0."""
    finite = np.abs(reference[np.isfinite(reference)].astype(np.float64))
    return float(finite.max(initial=0.0)) or 1.0


def cosine(test: Array, reference: Array) -> float:
    """Return the cosine similarity of two outputs; equal outputs have the similarity 1.

    The similarity is 0 if only one output is all 0, or if any number is not finite.
    """
    if not distances(test, reference).any():
        return 1.0
    got, want = (each.ravel().astype(np.float64) for each in (test, reference))
    if not (np.isfinite(got).all() and np.isfinite(want).all()):
        return 0.0
    got, want = got / magnitude(got), want / magnitude(want)
    length = float(np.linalg.norm(got) * np.linalg.norm(want))
    return float(got @ want) / length if length else 0.0


def rows_with_others(test: Array, reference: Array, k: int) -> int:
    """Return the number of rows, along the last axis, whose `k` largest elements differ.

    The order of the `k` elements does not matter, and ties may be broken in any way. In a row with
    fewer than `k` elements, all elements count. NaN counts as smaller than all numbers.
    """
    got, want = (
        np.nan_to_num(each.astype(np.float64), nan=-np.inf, posinf=np.inf, neginf=-np.inf)
        for each in (np.atleast_1d(test), np.atleast_1d(reference))
    )
    k = min(k, got.shape[-1])
    if not got.size:
        return 0
    least_got, least_want = (np.sort(each)[..., -k, None] for each in (got, want))
    # What is above the k-th largest element of one side must be among the largest of the other.
    wrong = ((got > least_got) & (want < least_want)) | ((want > least_want) & (got < least_got))
    both = ((got >= least_got) & (want >= least_want)).sum(axis=-1)
    return int((wrong.any(axis=-1) | (both < k)).sum())


def _error(test: Array, reference: Array, _limit: float) -> float:
    return float(distances(test, reference).max(initial=0.0))


def _relative_error(test: Array, reference: Array, _limit: float) -> float:
    return _error(test, reference, 0) / magnitude(reference)


@dataclass(frozen=True)
class Criterion:
    """A measure of the difference between two outputs, with a test against a limit."""

    parse: Callable[[str], Any]
    """Parses a limit; raises ArgumentTypeError for invalid texts."""
    measure: Callable[[Array, Array, Any], float]
    within: Callable[[float, Any], bool]
    beyond: str = ""
    """Message for a value beyond the limit, after the output's name; "" for element errors."""


CRITERIA: Mapping[str, Criterion] = {
    "relative": Criterion(positive, _relative_error, operator.le),
    "absolute": Criterion(positive, _error, operator.le),
    "cosine": Criterion(
        *(share, lambda test, reference, _: cosine(test, reference), operator.ge),
        "has a cosine similarity of {value:.9g} to the reference, below {limit:g}",
    ),
    "top_k": Criterion(
        *(positive_int, rows_with_others, lambda value, _: value == 0),
        "has other elements among the {limit} largest than the reference in {value:g} rows",
    ),
}


@dataclass(frozen=True)
class Tolerance:
    """The limits of the criteria; None means that a criterion is unused."""

    relative: float | None = None
    absolute: float | None = None
    cosine: float | None = None
    top_k: int | None = None

    @property
    def limits(self) -> dict[str, float]:
        """The limits, by the name of the criterion."""
        return {name: limit for name, limit in asdict(self).items() if limit is not None}

    def allowed(self, reference: Array) -> float:
        """Return the allowed absolute difference of an element from its reference."""
        limits = [np.inf]
        if self.relative is not None:
            limits.append(self.relative * magnitude(reference))
        if self.absolute is not None:
            limits.append(self.absolute)
        return float(min(limits))

    def text(self) -> str:
        """Return the limits in the syntax of `--tolerance`."""
        if self.limits.keys() == {"relative"}:
            return f"{self.relative:g}"
        return ",".join(f"{name}:{limit:g}" for name, limit in self.limits.items())

    def elements_text(self) -> str:
        """Return the limits for single elements, as a part of a sentence."""
        texts = {"relative": "{:g} of its largest magnitude", "absolute": "{:g}"}
        limits = ((name, limit) for name, limit in self.limits.items() if name in texts)
        return " and of ".join(texts[name].format(limit) for name, limit in limits)


def parse_tolerance(text: str) -> Tolerance:
    """Parse limits such as `relative:0.01,cosine:0.999`; a number alone means `relative`.

    Raises ArgumentTypeError for an invalid text.
    """
    found = Tolerance()
    for each in text.split(","):
        name, colon, value = each.strip().partition(":")
        name, value = (name, value) if colon else ("relative", name)
        if name not in CRITERIA:
            close = closest(name, CRITERIA)
            hint = f". Did you mean '{close}'?" if close else ""
            raise argparse.ArgumentTypeError(f"'{name}' is not one of {', '.join(CRITERIA)}{hint}")
        if name in found.limits:
            raise argparse.ArgumentTypeError(f"'{name}' is given twice")
        found = replace(found, **{name: CRITERIA[name].parse(value)})
    return found


@dataclass(frozen=True)
class Measured:
    """The measurement of a criterion for an output over all runs."""

    criterion: str
    limit: float
    worst: float
    worst_run: int
    first_run_beyond: int | None
    """The first run beyond the limit; None if all runs are within it."""
    passed: bool


class Measuring:
    """Measures a criterion for an output over the runs."""

    def __init__(self, name: str, limit: float) -> None:
        """Measure a criterion with a limit."""
        self._name, self._limit = name, limit
        self._values: list[float] = []

    def add(self, test: Array, reference: Array, detail: dict[str, Any]) -> None:
        """Measure a run; element errors of quantized outputs are in integer steps."""
        criterion = CRITERIA[self._name]
        if criterion.beyond:
            test, reference = (dequantised(each, detail) for each in (test, reference))
        self._values.append(criterion.measure(test, reference, self._limit))

    def result(self) -> Measured:
        """Return the worst value of all runs, and the first run beyond the limit."""
        within = CRITERIA[self._name].within
        beyond = [run for run, value in enumerate(self._values) if not within(value, self._limit)]
        worst = int(np.argmin(self._values) if within(2, 1) else np.argmax(self._values))
        return Measured(
            *(self._name, self._limit, self._values[worst], worst),
            first_run_beyond=beyond[0] if beyond else None,
            passed=not beyond,
        )
