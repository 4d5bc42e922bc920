"""Tells where the CPU's own result hangs on its rounding: there it is no judge of a device.

Sums that cancel are as uncertain as their largest terms, in float32 on any device. How uncertain is
shown by what the CPU makes of the same model with every float changed by at most an ulp: those of
the inputs, of the constants, and of each result on its way to the nodes that read it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from fuzzing.worker import ULP, Arrays, Result, Task

TRIES = 6
HALF_ULP = 2.0**-10
_FACTOR = 8.0
"""How far beyond what was seen in so few tries a result may lie: sums of n terms vary by n ulps."""


def hangs_on_rounding(
    run: Callable[[Task], Result], task: Task, expected: Arrays, got: Arrays
) -> bool:
    """Whether every output that differs does so within the uncertainty of the CPU's.

    `run` runs a task on the CPU.
    """
    nearby = [run(nudged(task, number)).outputs for number in range(1, TRIES + 1)]
    return is_among(nearby, expected, got)


def is_among(nearby: Sequence[Arrays], expected: Arrays, got: Arrays) -> bool:
    """Whether a result lies about as far from the expected one as others that are as good."""
    if any(_kinds(each) != _kinds(expected) for each in nearby):
        return False
    for index, (wanted, found) in enumerate(zip(expected, got, strict=True)):
        if np.array_equal(wanted, found, equal_nan=wanted.dtype.kind == "f"):
            continue
        if wanted.shape != found.shape or wanted.dtype != found.dtype:
            return False
        if wanted.dtype != np.float32:
            # Which of two is larger, say: only where that changed on the CPU, too.
            undecided = np.any([each[index] != wanted for each in nearby], axis=0)
            if np.any((wanted != found) & ~undecided):
                return False
            continue
        spilled = [np.isfinite(each[index]) != np.isfinite(wanted) for each in nearby]
        if np.any((np.isfinite(wanted) != np.isfinite(found)) & ~np.any(spilled, axis=0)):
            return False
        spread = max(_distance(each[index], wanted) for each in nearby)
        if _distance(found, wanted) > _FACTOR * spread:
            return False
    return True


def nudged(task: Task, number: int) -> Task:
    """Return a task all whose floats, results too, are changed by some ulps or not at all.

    By one in the first tries, by a few in the last: those undo ties.
    """
    ulp = (HALF_ULP if task.half else ULP) * (4 if number > TRIES // 2 else 1)
    return replace(task, nudge=number, ulp=ulp)


def _kinds(arrays: Arrays) -> list[tuple[tuple[int, ...], str]]:
    return [(array.shape, array.dtype.name) for array in arrays]


def _distance(first: np.ndarray, second: np.ndarray) -> float:
    """Return the norm of the difference where both are finite."""
    both = np.isfinite(first) & np.isfinite(second)
    return float(np.linalg.norm(first[both].astype(np.float64) - second[both]))
