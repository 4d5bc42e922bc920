"""Results of detectors."""

from __future__ import annotations

from dataclasses import dataclass

from litegpu.tasks.components.containers.bounding_box import BoundingBox
from litegpu.tasks.components.containers.category import Category
from litegpu.tasks.components.containers.keypoint import NormalizedKeypoint


@dataclass
class Detection:
    """A detected object: its box, its classes, and its keypoints if the model outputs keypoints."""

    bounding_box: BoundingBox
    categories: list[Category]
    keypoints: list[NormalizedKeypoint] | None = None


@dataclass
class DetectionResult:
    """The objects detected in a picture."""

    detections: list[Detection]
