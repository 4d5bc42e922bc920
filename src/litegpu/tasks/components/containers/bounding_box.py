"""Boxes in pixels."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class BoundingBox:
    """A box in pixels of a picture: left, top, width and height."""

    origin_x: int
    origin_y: int
    width: int
    height: int
