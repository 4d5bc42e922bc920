"""The options that select the part of a picture to process."""

from __future__ import annotations

from dataclasses import dataclass

from litegpu.tasks.components.containers.rect import Rect


@dataclass
class ImageProcessingOptions:
    """The part of a picture to process, and its rotation.

    `rotation_degrees` is the clockwise rotation: 0, 90, 180 or 270.
    """

    region_of_interest: Rect | None = None
    rotation_degrees: int = 0
