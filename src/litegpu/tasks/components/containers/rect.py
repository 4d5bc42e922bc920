"""Rectangles relative to the size of a picture."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Rect:
    """An axis-aligned part of a picture; its sides are fractions (0 to 1) of the picture's size."""

    left: float
    top: float
    right: float
    bottom: float


@dataclass
class NormalizedRect:
    """A rotated rectangle.

    The center and the size are relative to the width and height of the picture, and `rotation` is
    in radians, clockwise. The fields `width` and `height` are the rectangle's size before the
    rotation.
    """

    x_center: float
    y_center: float
    width: float
    height: float
    rotation: float | None = 0.0
    rect_id: int | None = None
