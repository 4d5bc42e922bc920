"""Which part of a picture a task looks at."""

from __future__ import annotations

from dataclasses import dataclass

from litegpu.tasks.components.containers.rect import Rect


@dataclass
class ImageProcessingOptions:
    """The part of a picture to look at, and its rotation in degrees, clockwise: 0, 90, 180, 270."""

    region_of_interest: Rect | None = None
    rotation_degrees: int = 0
