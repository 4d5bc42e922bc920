"""The landmarks of one object."""

from __future__ import annotations

from dataclasses import dataclass

from litegpu.tasks.components.containers.category import Category
from litegpu.tasks.components.containers.landmark import Landmark, NormalizedLandmark
from litegpu.tasks.components.containers.rect import NormalizedRect


@dataclass
class LandmarksDetectionResult:
    """The landmarks of one object, on the picture and in meters, its classes and its rectangle."""

    landmarks: list[NormalizedLandmark] | None
    categories: list[Category] | None
    world_landmarks: list[Landmark] | None
    rect: NormalizedRect
