"""Points of bodies, hands and faces, drawn with connecting lines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from litegpu.tools.drawing.ink import Ink, colour
from litegpu.tools.drawing.skeletons import SKELETONS, Skeleton
from litegpu.wording import counted

if TYPE_CHECKING:
    from PIL import Image

Array = NDArray[Any]
_MAX_ROWS = 50
"""Maximum number of points for a table with a row per point."""
_MAX_DOTS = 150
"""Maximum number of points that are drawn in normal size; more points are drawn smaller."""


@dataclass(frozen=True)
class Figure:
    """A body, hand or face: pixel positions of its points, `[K, 2]`, and their scores."""

    positions: Array
    scores: Array
    shown: Array
    """A mask `[K]` of the points to draw."""

    def box(self) -> tuple[float, float, float, float]:
        """Return the bounding box of the drawn points, or of all points if none are drawn."""
        used = self.positions[self.shown] if self.shown.any() else self.positions
        low, high = used.min(0), used.max(0)
        return float(low[0]), float(low[1]), float(high[0]), float(high[1])


@dataclass(frozen=True)
class Figures:
    """All figures found in a picture."""

    found: tuple[Figure, ...]
    skeleton: Skeleton
    confidences: dict[str, float] = field(default_factory=dict)
    """The values of scalar outputs by name, for example the probability of a figure."""

    def draw(self, picture: Image.Image) -> Image.Image:
        """Return the picture with points and connecting lines."""
        drawn = picture.copy()
        ink = Ink(drawn)
        for number, figure in enumerate(self.found):
            line, dot = colour(number), colour(number + 3)
            for start, end in self.skeleton.edges:
                if figure.shown[start] and figure.shown[end]:
                    ink.line(_point(figure, start), _point(figure, end), line)
            small = 0.5 if len(figure.positions) > _MAX_DOTS else 1.5
            for position in np.flatnonzero(figure.shown):
                ink.dot(_point(figure, int(position)), dot, small)
        return drawn

    def table(self) -> tuple[Sequence[str], list[Sequence[str]]]:
        """Return a row for each point; figures with many points have one row each."""
        if any(len(figure.positions) > _MAX_ROWS for figure in self.found):
            headings: tuple[str, ...] = ("found", ">points", ">left", ">top", ">right", ">bottom")
            return headings, [
                (
                    self.skeleton.what,
                    str(len(each.positions)),
                    *(f"{edge:.1f}" for edge in each.box()),
                )
                for each in self.found
            ]
        headings = (f">{self.skeleton.what}", "point", ">score", ">x", ">y", "drawn")
        return headings, [
            (
                str(number),
                self._name(index),
                _shown_score(figure.scores[index]),
                *(f"{value:.1f}" for value in figure.positions[index]),
                "yes" if figure.shown[index] else "no",
            )
            for number, figure in enumerate(self.found, 1)
            for index in range(len(figure.positions))
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return the points with positions and scores for JSON; a missing score is null."""
        return {
            "figures": [
                {
                    "kind": self.skeleton.what,
                    "points": [
                        {
                            "name": self._name(index),
                            "x": float(figure.positions[index, 0]),
                            "y": float(figure.positions[index, 1]),
                            "score": float(figure.scores[index]),
                            "drawn": bool(figure.shown[index]),
                        }
                        for index in range(len(figure.positions))
                    ],
                }
                for figure in self.found
            ],
            "confidences": self.confidences,
        }

    def brief(self) -> str:
        """Return the numbers of figures and points, and the confidences, as a text."""
        points = sum(int(figure.shown.sum()) for figure in self.found)
        sure = "".join(f", {name} {value:.2f}" for name, value in self.confidences.items())
        return f"{counted(len(self.found), 'figure')} with {counted(points, 'point')}{sure}"

    def _name(self, position: int) -> str:
        names = self.skeleton.names
        return names[position] if position < len(names) else f"point {position}"


def skeleton_of(points: int) -> Skeleton:
    """Return the skeleton with this number of points."""
    return SKELETONS.get(points, Skeleton("figure"))


def figure(positions: Array, scores: Array, skeleton: Skeleton, min_score: float) -> Figure:
    """Return a figure that shows points with at least this score; NaN means no score."""
    shown = ~(scores < min_score) & np.isfinite(positions).all(1)
    if skeleton.drawn is not None:
        shown[skeleton.drawn :] = False
    return Figure(positions, scores, shown)


def _point(figure: Figure, position: int) -> tuple[float, float]:
    x, y = figure.positions[position].tolist()
    return x, y


def _shown_score(score: float) -> str:
    return "" if np.isnan(score) else f"{score:.4f}"
