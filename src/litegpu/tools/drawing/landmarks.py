"""Models that output points: a vector with two to five numbers per point."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from litegpu.errors import ModelError
from litegpu.tools.drawing.anchors import sigmoid
from litegpu.tools.drawing.facts import ModelFacts
from litegpu.tools.drawing.finding import Evidence, Outputs, Scene
from litegpu.tools.drawing.points import Figures, figure, skeleton_of
from litegpu.tools.drawing.skeletons import SKELETONS

Array = NDArray[Any]
_NUMBERS = (3, 2, 5, 4)
"""Possible numbers per point: x and y, usually z, optionally visibility and presence."""
_PIXELS = 2.0
"""Coordinates above this value are pixels of the input, not fractions of its size."""
_NEAR = (-0.5, 1.5)
"""Range of normalized coordinates of points that count as near the input."""
_MIN_SPREAD = 0.02
"""Minimum standard deviation of a figure's points, as a fraction of the input's size."""
_SCORED = 17
"""The number of points of bodies whose three numbers per point are y, x and a score."""


class Vector(NamedTuple):
    """The layout of an output with points."""

    output: int
    points: int
    numbers: int
    """Numbers per point."""
    in_pixels: bool


def evidence(outputs: Outputs, facts: ModelFacts) -> Evidence | None:
    """Return why a model outputs points: a known figure has this number of points."""
    found = _known(outputs, facts)
    if found is None:
        return _weak_evidence(outputs, facts)
    what = skeleton_of(found.points).what
    why = f"'{outputs[found.output].name}' has {found.points} points, as a {what} has"
    single = len(outputs) == 1 and outputs[0].values.ndim <= 2
    return Evidence(not single or found.in_pixels, why)


def _weak_evidence(outputs: Outputs, facts: ModelFacts) -> Evidence | None:
    found = _any(outputs, facts)
    if found is None or not _near(outputs[found.output].values, found, facts):
        return None
    name = outputs[found.output].name
    why = f"'{name}' may be {found.points} points of {found.numbers} numbers"
    return Evidence(False, why)


def read(outputs: Outputs, scene: Scene) -> Figures:
    """Return the points in the picture, and the values of outputs with a single element.

    Raises:
        ModelError: no output is a list of points.
    """
    found = _known(outputs, scene.facts) or _any(outputs, scene.facts)
    if found is None:
        shapes = ", ".join(str(list(each.values.shape)) for each in outputs)
        raise ModelError(
            f"No output of this model is a list of points; their shapes are {shapes}, and points "
            "are vectors of two to five numbers per point. Choose another --task."
        )
    values = _rows(outputs[found.output].values, found)
    positions, scores = _places_and_scores(values, found, scene.facts)
    skeleton = skeleton_of(found.points)
    one = figure(scene.frame.positions(positions), scores, skeleton, scene.min_score)
    confidences = {
        each.name: _confidence(float(each.values.reshape(-1)[0]), scene.facts, index)
        for index, each in enumerate(outputs)
        if each.values.size == 1
    }
    return Figures((one,), skeleton, confidences)


def _known(outputs: Outputs, facts: ModelFacts) -> Vector | None:
    """Return the output with the points of a known figure near the input.

    The function prefers an output in pixels, because other outputs are in meters, relative to the
    figure.
    """
    found = [
        Vector(output, points, numbers, _in_pixels(each.values, points, numbers))
        for output, each in enumerate(outputs)
        for points, numbers in _splits(each.values)
        if points in SKELETONS and not _is_distribution(each.values)
    ]
    near = [each for each in found if _near(outputs[each.output].values, each, facts)]
    return min(near, key=lambda each: (not each.in_pixels, each.output), default=None)


def _any(outputs: Outputs, facts: ModelFacts) -> Vector | None:
    """Return the longest vector that can be divided into points."""
    found = [
        Vector(output, points, numbers, _in_pixels(each.values, points, numbers))
        for output, each in enumerate(outputs)
        for points, numbers in _splits(each.values)[:1]
    ]
    return max(found, key=lambda each: each.points * each.numbers, default=None)


def _splits(values: Array) -> list[tuple[int, int]]:
    """Return the possible layouts of an output: (number of points, numbers per point)."""
    longest, size = max(values.shape, default=0), values.size
    if size < 4 or values.shape[:1] != (1,):
        return []
    if longest == size:
        return [(size // each, each) for each in _NUMBERS if size % each == 0 and size >= 2 * each]
    last = values.shape[-1]
    listed = longest * last == size and last in _NUMBERS and values.shape[-2] == longest
    return [(longest, last)] if listed else []


def _is_distribution(values: Array) -> bool:
    """Return whether the values are nonnegative and sum to 1, like class probabilities."""
    flat = values.astype(np.float64)
    return bool(abs(flat.sum() - 1) < _DISTRIBUTION_ERROR and flat.min() >= 0)


_DISTRIBUTION_ERROR = 0.02


def _rows(values: Array, found: Vector) -> Array:
    return values.reshape(found.points, found.numbers).astype(np.float64)


def _in_pixels(values: Array, points: int, numbers: int) -> bool:
    plane = values.reshape(points, numbers)[:, :2]
    return bool(np.abs(plane).max() > _PIXELS)


def _near(values: Array, found: Vector, facts: ModelFacts) -> bool:
    """Return whether most points are near the input, and not all at the same position."""
    plane = _rows(values, found)[:, :2]
    if found.in_pixels:
        plane = plane / facts.input_size
    low, high = _NEAR
    within = ((plane > low) & (plane < high)).all(1).mean()
    spread = plane.std(0).max()
    return bool(within >= _MOSTLY and spread >= _MIN_SPREAD)


_MOSTLY = 0.8


def _places_and_scores(values: Array, found: Vector, facts: ModelFacts) -> tuple[Array, Array]:
    """Return normalized x and y, `[K, 2]`, and a score or NaN for each point."""
    positions, scores = values[:, :2], np.full(len(values), np.nan)
    third = values[:, 2:3]
    is_scored = found.points == _SCORED and found.numbers == 3
    if is_scored and third.min() >= 0 and third.max() <= 1:
        return positions[:, ::-1], values[:, 2]
    if found.in_pixels:
        positions = positions / facts.input_size
    if found.numbers > 3:  # visibility, and where there are five numbers presence
        extra = values[:, 3:]
        inside = extra.min() >= 0 and extra.max() <= 1
        scores = (extra if inside else sigmoid(extra)).min(1)
    return positions, scores


def _confidence(value: float, facts: ModelFacts, output: int) -> float:
    if facts.is_probability(output):
        return value
    return float(sigmoid(np.array(value)))
