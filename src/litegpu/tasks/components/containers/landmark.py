"""Landmarks: points on faces, hands and persons."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Landmark:
    """A point in meters.

    `visibility` and `presence` are probabilities, or 0 if the model does not have them.
    """

    x: float | None = None
    y: float | None = None
    z: float | None = None
    visibility: float | None = None
    presence: float | None = None


@dataclass
class NormalizedLandmark:
    """A point on a picture: x and y from 0 to 1 over its width and height; z is in widths.

    `visibility` and `presence` are probabilities, or 0 if the model does not have them.
    """

    x: float | None = None
    y: float | None = None
    z: float | None = None
    visibility: float | None = None
    presence: float | None = None
