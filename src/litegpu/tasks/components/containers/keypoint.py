"""Points of detected objects."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class NormalizedKeypoint:
    """A keypoint of an object: x and y are fractions (0 to 1) of the picture's width and height."""

    x: float | None = None
    y: float | None = None
    label: str | None = None
    score: float | None = None
