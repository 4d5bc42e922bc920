"""Computes mean average precision by TensorFlow Lite's rule for COCO detections."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

IOU_THRESHOLDS = tuple(float(np.float32(0.5 + 0.05 * step)) for step in range(10))
"""Thresholds of the overlap (IoU): 0.5 to 0.95, as float32."""

_RECALL_STEPS = 100
RECALLS = tuple(step / _RECALL_STEPS for step in range(_RECALL_STEPS + 1))
"""Recalls at which precision is sampled."""


@dataclass(frozen=True)
class Detection:
    """An object in a picture; the box (top, left, bottom, right) is in fractions of the picture."""

    class_id: int
    box: tuple[float, float, float, float]
    score: float = 1.0


@dataclass(frozen=True)
class AveragePrecision:
    """The average precision of an evaluation.

    `at` has the mean over the classes for each IoU threshold, and `overall` is the mean over the
    thresholds.

    `classes` has the mean over the thresholds for each class. `precisions` has the classes' mean
    precision at RECALLS for each threshold. Without objects, all figures are empty or 0.
    """

    at: tuple[tuple[float, float], ...]
    overall: float
    classes: dict[int, float]
    precisions: tuple[tuple[float, ...], ...] = ()


def average_precision(
    pictures: Iterable[tuple[Sequence[Detection], Sequence[Detection]]],
) -> AveragePrecision:
    """Return the average precision over pictures, each (true objects, detected objects).

    A class counts if any picture contains it. A class that is only detected counts with precision
    0.
    """
    truth, found = _by_class(pictures)
    table = {
        each: _class_precisions(truth.get(each, []), found.get(each, []))
        for each in sorted(truth.keys() | found.keys())
    }
    if not table:
        return AveragePrecision((), 0.0, {})
    sampled = np.array(list(table.values()))  # classes, thresholds, recalls
    precisions, means = sampled.mean(axis=0), sampled.mean(axis=2)
    return AveragePrecision(
        at=tuple(zip(IOU_THRESHOLDS, means.mean(axis=0).tolist(), strict=True)),
        overall=float(means.mean()),
        classes={each: float(row.mean()) for each, row in zip(table, means, strict=True)},
        precisions=tuple(tuple(row) for row in precisions.tolist()),
    )


_Placed = tuple[int, Detection]
"""The index of a picture, and an object in this picture."""


def _by_class(
    pictures: Iterable[tuple[Sequence[Detection], Sequence[Detection]]],
) -> tuple[dict[int, list[_Placed]], dict[int, list[_Placed]]]:
    sides: tuple[dict[int, list[_Placed]], ...] = ({}, {})
    for number, picture in enumerate(pictures):
        for side, objects in zip(sides, picture, strict=True):
            for each in objects:
                side.setdefault(each.class_id, []).append((number, each))
    return sides[0], sides[1]


def _class_precisions(truth: list[_Placed], found: list[_Placed]) -> NDArray[np.float64]:
    """Return the precision of a class at each threshold and recall."""
    if not truth:
        return np.zeros((len(IOU_THRESHOLDS), len(RECALLS)))
    boxes: dict[int, list[Detection]] = {}
    for number, each in truth:
        boxes.setdefault(number, []).append(each)
    ranked = sorted(
        found, key=lambda placed: _rank(placed[1])
    )  # stable: ties in their original order
    overlaps = [(number, _overlaps(each, boxes.get(number, ()))) for number, each in ranked]
    return np.array(
        [_sampled(_hits(overlaps, threshold), len(truth)) for threshold in IOU_THRESHOLDS]
    )


def _rank(found: Detection) -> float:
    """Return a sort key: the best score first, NaN last."""
    return math.inf if math.isnan(found.score) else -found.score


def _overlaps(found: Detection, objects: Sequence[Detection]) -> list[float]:
    """Return the IoU with each object, in float32 as in TensorFlow Lite's tool."""
    if not objects:
        return []
    box = np.asarray(found.box, np.float32)
    others = np.asarray([each.box for each in objects], np.float32)
    low, high = np.maximum(box[:2], others[:, :2]), np.minimum(box[2:], others[:, 2:])
    shared = _area(low, high)
    union = _area(box[:2], box[2:]) + _area(others[:, :2], others[:, 2:]) - shared
    with np.errstate(divide="ignore", invalid="ignore"):
        result: NDArray[np.float32] = np.where(union > 0, shared / union, np.float32(0))
    return [float(each) for each in result]


def _area(low: NDArray[np.float32], high: NDArray[np.float32]) -> NDArray[np.float32]:
    sides = np.maximum(high - low, np.float32(0))
    result: NDArray[np.float32] = sides[..., 0] * sides[..., 1]
    return result


def _hits(overlaps: Sequence[tuple[int, list[float]]], threshold: float) -> list[bool]:
    """Return for each detection, the highest score first, whether it matches an object.

    A detection matches the unmatched object of its picture with the largest IoU, if the IoU is
    sufficient.
    """
    matched: dict[int, set[int]] = {}
    result = []
    for number, shares in overlaps:
        used = matched.setdefault(number, set())
        free = [index for index in range(len(shares)) if index not in used]
        best = max(free, key=shares.__getitem__, default=None)
        hit = best is not None and shares[best] >= threshold
        if hit and best is not None:
            used.add(best)
        result.append(hit)
    return result


def _sampled(hits: Sequence[bool], objects: int) -> NDArray[np.float64]:
    """Return, for each recall, the best precision at that or a higher recall."""
    correct = np.cumsum(hits, dtype=np.int64)
    precision = correct / np.arange(1, len(hits) + 1)
    best = np.maximum.accumulate(precision[::-1])[::-1]
    # in integers: correct / objects >= step / steps
    first = np.searchsorted(
        correct * _RECALL_STEPS, np.arange(_RECALL_STEPS + 1) * objects, side="left"
    )
    result: NDArray[np.float64] = np.append(best, 0.0)[first]
    return result
