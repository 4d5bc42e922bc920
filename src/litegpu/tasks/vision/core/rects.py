"""Rotated rectangles around detected objects and landmarks: the inputs of landmark models."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from litegpu.pictures.boxes import overlaps
from litegpu.tasks.components.containers.rect import NormalizedRect
from litegpu.tasks.vision.core.regions import Size

Floats = NDArray[np.float32]


def rotation(
    start: NDArray[np.floating], end: NDArray[np.floating], target: float, picture: Size
) -> float:
    """Return the rotation, in radians, that gives a line between two points the angle `target`.

    The points are (x, y), relative to the picture. Angles of lines increase counterclockwise.
    """
    x, y = (end - start) * picture
    return normalized(target - math.atan2(-y, x))


def normalized(angle: float) -> float:
    """Return the equivalent angle between -π and π."""
    return angle - 2 * math.pi * math.floor((angle + math.pi) / (2 * math.pi))


def rect_of_box(corners: Floats, angle: float) -> NormalizedRect:
    """Return the rectangle of a box (left, top, right and bottom), rotated by an angle."""
    left, top, right, bottom = map(float, corners)
    return NormalizedRect((left + right) / 2, (top + bottom) / 2, right - left, bottom - top, angle)


def expanded(rect: NormalizedRect, picture: Size, scale: float, shift_y: float) -> NormalizedRect:
    """Return a square whose side is `scale` times the longer side of a rectangle.

    The square is shifted along the rectangle's rotated y axis by `shift_y` times its height.
    """
    width, height = rect.width * picture[0], rect.height * picture[1]
    angle = rect.rotation or 0.0
    x = rect.x_center - height * shift_y * math.sin(angle) / picture[0]
    y = rect.y_center + height * shift_y * math.cos(angle) / picture[1]
    side = max(width, height) * scale
    return NormalizedRect(x, y, side / picture[0], side / picture[1], angle, rect.rect_id)


def is_new(rect: NormalizedRect, others: list[NormalizedRect], most_overlap: float) -> bool:
    """Return whether the overlap with each other rectangle is at most `most_overlap`.

    Rotations of rectangles are ignored.
    """
    if not others:
        return True
    found = overlaps(_corners(rect), np.stack([_corners(each) for each in others]))
    return not bool((found > most_overlap).any())


def merged(rects: Iterable[NormalizedRect], most_overlap: float) -> list[NormalizedRect]:
    """Return rectangles without duplicates: a later one replaces those that it overlaps."""
    found: list[NormalizedRect] = []
    for each in rects:
        found = [*(other for other in found if is_new(each, [other], most_overlap)), each]
    return found


def _corners(rect: NormalizedRect) -> NDArray[np.float64]:
    center, size = np.array([rect.x_center, rect.y_center]), np.array([rect.width, rect.height])
    return np.concatenate([center - size / 2, center + size / 2])
