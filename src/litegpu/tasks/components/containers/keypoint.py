"""Points of detected objects."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class NormalizedKeypoint:
    """A point of an object: x and y from 0 to 1 over the width and height of the picture."""

    x: float | None = None
    y: float | None = None
    label: str | None = None
    score: float | None = None
