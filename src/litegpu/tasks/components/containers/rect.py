"""Rectangles relative to the size of a picture."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Rect:
    """A part of a picture: its sides, from 0 at the left and top to 1."""

    left: float
    top: float
    right: float
    bottom: float


@dataclass
class NormalizedRect:
    """A rotated rectangle.

    The center and the size are relative to the width and height of the picture, and `rotation` is
    in radians, clockwise. The size is that before the rotation, so width is measured in widths of
    the picture whatever the rotation is.
    """

    x_center: float
    y_center: float
    width: float
    height: float
    rotation: float | None = 0.0
    rect_id: int | None = None
