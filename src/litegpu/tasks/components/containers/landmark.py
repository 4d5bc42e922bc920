"""Landmarks: points on faces, hands and persons."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Landmark:
    """A landmark with coordinates in meters.

    `visibility` and `presence` are probabilities, or 0 if the model does not output them.
    """

    x: float | None = None
    y: float | None = None
    z: float | None = None
    visibility: float | None = None
    presence: float | None = None


@dataclass
class NormalizedLandmark:
    """A landmark in a picture, with normalized coordinates.

    The coordinates x and y are fractions (0 to 1) of the picture's width and height; z is in units
    of the picture's width.

    `visibility` and `presence` are probabilities, or 0 if the model does not output them.
    """

    x: float | None = None
    y: float | None = None
    z: float | None = None
    visibility: float | None = None
    presence: float | None = None
