"""Models that output body points as maps: a score and an offset per cell and point.

A model of this kind outputs scores `[1, H, W, K]` and offsets `[1, H, W, 2 K]`, in pixels, y before
x. Models for several people also output displacements `[1, H, W, 2 E]` along the edges of a tree.
The decoder starts at a point with a high score, and follows the tree in both directions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from litegpu.errors import ModelError
from litegpu.tools.drawing.anchors import sigmoid
from litegpu.tools.drawing.facts import ModelFacts
from litegpu.tools.drawing.finding import Evidence, Outputs, Scene
from litegpu.tools.drawing.points import Figures, figure, skeleton_of

Array = NDArray[Any]
TREE = (
    *((0, 1), (1, 3), (0, 2), (2, 4), (0, 5), (5, 7), (7, 9), (5, 11), (11, 13), (13, 15)),
    *((0, 6), (6, 8), (8, 10), (6, 12), (12, 14), (14, 16)),
)
"""The start and end point of each displacement, for a body of 17 points."""
_MIN_POINTS = 4
_MAX_PEOPLE = 20
_SAME_PERSON = 20.0 / 257
"""Maximum distance, relative to the input's height, of equal points of the same person."""
_MIN_VISIBLE = 3
"""Minimum number of a person's points that have the minimum score."""


class Maps(NamedTuple):
    """The outputs' indices by role."""

    scores: int
    offsets: int
    displacements: tuple[int, int] | None
    """The outputs with forward and backward displacements."""


def evidence(outputs: Outputs, facts: ModelFacts) -> Evidence | None:
    """Return why a model outputs points as maps."""
    found = find(outputs, facts)
    if found is None:
        return None
    points = outputs[found.scores].values.shape[3]
    return Evidence(True, f"the model has score maps of {points} points and maps of offsets")


def find(outputs: Outputs, facts: ModelFacts) -> Maps | None:
    """Return the maps, one of which has twice the channels of another, or None."""
    maps = [p for p, each in enumerate(outputs) if _is_map(each.values.shape, facts)]
    for scores in maps:
        height, width, points = outputs[scores].values.shape[1:]
        same = [p for p in maps if outputs[p].values.shape[1:3] == (height, width)]
        offsets = [p for p in same if outputs[p].values.shape[3] == 2 * points]
        if points >= _MIN_POINTS and len(offsets) == 1:
            others = [p for p in same if outputs[p].values.shape[3] == 2 * len(TREE)]
            tree = points == len(TREE) + 1 and len(others) == 2
            return Maps(scores, offsets[0], _directions(others, outputs) if tree else None)
    return None


def _is_map(shape: tuple[int, ...], facts: ModelFacts) -> bool:
    width, height = facts.input_size
    return len(shape) == 4 and 1 < shape[1] < height and 1 < shape[2] < width


def _directions(positions: Sequence[int], outputs: Outputs) -> tuple[int, int]:
    """Return the forward and backward displacements, by name, else in that order."""
    first, second = positions
    names = outputs[first].name.lower(), outputs[second].name.lower()
    swapped = any(word in names[0] for word in ("bwd", "backward"))
    return (second, first) if swapped else (first, second)


def read(outputs: Outputs, scene: Scene) -> Figures:
    """Return the bodies; models without displacements find only one.

    Raises:
        ModelError: the model has no outputs with scores and offsets.
    """
    maps = find(outputs, scene.facts)
    if maps is None:
        raise ModelError(
            "The outputs of this model are not maps of points: scores [1, H, W, K] and offsets "
            "[1, H, W, 2 K], smaller than the input. For a vector of points use --task=landmarks."
        )
    values = [outputs[position].values[0].astype(np.float64) for position in maps[:2]]
    scores = values[0] if scene.facts.is_probability(maps.scores) else sigmoid(values[0])
    decoder = Decoder(scores, values[1], scene.facts.input_size)
    if maps.displacements is None:
        bodies = [decoder.surest()]
    else:
        along = tuple(
            outputs[position].values[0].astype(np.float64) for position in maps.displacements
        )
        bodies = list(decoder.people(along[0], along[1], scene.min_score))
    skeleton = skeleton_of(scores.shape[2])
    found = [
        figure(
            scene.frame.positions(positions / scene.facts.input_size),
            sure,
            skeleton,
            scene.min_score,
        )
        for positions, sure in bodies
    ]
    return Figures(tuple(each for each in found if each.shown.any()), skeleton)


@dataclass(frozen=True)
class Decoder:
    """Decodes the maps of one picture: scores `[H, W, K]` and offsets `[H, W, 2 K]` in pixels."""

    scores: Array
    offsets: Array
    size: tuple[int, int]
    """Width and height of the input."""

    def surest(self) -> tuple[Array, Array]:
        """Return the position of each point's highest score, and the score."""
        _, width, points = self.scores.shape
        cells = self.scores.reshape(-1, points).argmax(0)
        found = [self._place(int(c) // width, int(c) % width, k) for k, c in enumerate(cells)]
        return np.array(found), self.scores.reshape(-1, points).max(0)

    def people(
        self, forward: Array, backward: Array, min_score: float
    ) -> Iterator[tuple[Array, Array]]:
        """Yield positions `[K, 2]` (x, y in pixels of the input) and scores `[K]` of each body."""
        points = self.scores.shape[2]
        seen: list[Array] = []
        near = _SAME_PERSON * self.size[1]
        for row, column, point in self._peaks(min_score):
            root = self._place(row, column, point)
            if any(np.hypot(*(body[point] - root)) <= near for body in seen):
                continue
            positions = np.full((points, 2), np.nan)
            sure = np.zeros(points)
            positions[point], sure[point] = root, self.scores[row, column, point]
            for edge in reversed(range(len(TREE))):
                self._follow(positions, sure, TREE[edge][::-1], backward, edge)
            for edge in range(len(TREE)):
                self._follow(positions, sure, TREE[edge], forward, edge)
            fresh = [
                not any(np.hypot(*(body[k] - positions[k])) <= near for body in seen)
                for k in range(points)
            ]
            if (sure[fresh] >= min_score).sum() < min(_MIN_VISIBLE, points):
                continue
            seen.append(positions)
            yield positions, sure
            if len(seen) == _MAX_PEOPLE:
                return

    def _follow(
        self, positions: Array, sure: Array, edge: tuple[int, int], along: Array, number: int
    ) -> None:
        """Find the point at the end of an edge, if the point at the start is known."""
        start, end = edge
        if np.isnan(positions[start, 0]) or not np.isnan(positions[end, 0]):
            return
        row, column = self._cell(positions[start])
        y, x = along[row, column, number], along[row, column, number + len(TREE)]
        row, column = self._cell(positions[start] + (x, y))
        positions[end] = self._place(row, column, end)
        sure[end] = self.scores[row, column, end]

    def _peaks(self, min_score: float) -> list[tuple[int, int, int]]:
        """Return row, column and point index of local maxima of the scores."""
        padded = np.pad(self.scores, ((1, 1), (1, 1), (0, 0)))
        height, width, _ = self.scores.shape
        around = np.max(
            [padded[y : y + height, x : x + width] for y in range(3) for x in range(3)], axis=0
        )
        found = np.argwhere((self.scores >= around) & (self.scores >= min_score))
        order = np.argsort(-self.scores[tuple(found.T)], kind="stable")
        return [(int(y), int(x), int(k)) for y, x, k in found[order]]

    def _strides(self) -> tuple[float, float]:
        """Return the distances (x, y) in pixels between the centers of adjacent cells."""
        height, width, _ = self.scores.shape
        return (self.size[0] - 1) / (width - 1), (self.size[1] - 1) / (height - 1)

    def _cell(self, position: Array) -> tuple[int, int]:
        height, width, _ = self.scores.shape
        column, row = np.rint(position / self._strides()).astype(int)
        return int(np.clip(row, 0, height - 1)), int(np.clip(column, 0, width - 1))

    def _place(self, row: int, column: int, point: int) -> Array:
        """Return x and y of a point of a cell, in pixels of the input."""
        points = self.scores.shape[2]
        offset = self.offsets[row, column, [point + points, point]]
        found: Array = np.array((column, row)) * self._strides() + offset
        return found
