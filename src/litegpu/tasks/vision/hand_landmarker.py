"""The landmarks of hands."""

from __future__ import annotations

from dataclasses import dataclass

from litegpu.tasks.components.containers.category import Category
from litegpu.tasks.components.containers.landmark import Landmark, NormalizedLandmark
from litegpu.tasks.components.containers.rect import NormalizedRect
from litegpu.tasks.core.assets import members_of
from litegpu.tasks.vision.core.connections import HandLandmarksConnections
from litegpu.tasks.vision.core.detect_task import DetectTask
from litegpu.tasks.vision.core.hands import MODELS, Hand, HandOptions, HandTask, hand_lists
from litegpu.tasks.vision.core.landmark_names import HandLandmark
from litegpu.tasks.vision.core.regions import Size

__all__ = [
    "HandLandmark",
    "HandLandmarker",
    "HandLandmarkerOptions",
    "HandLandmarkerResult",
    "HandLandmarksConnections",
]


@dataclass
class HandLandmarkerResult:
    """The detected hands: handedness, and 21 landmarks in the picture and in meters, for each."""

    handedness: list[list[Category]]
    hand_landmarks: list[list[NormalizedLandmark]]
    hand_world_landmarks: list[list[Landmark]]


@dataclass
class HandLandmarkerOptions(HandOptions[HandLandmarkerResult]):
    """The options of a HandLandmarker: see VisionTaskOptions and HandOptions."""


class HandLandmarker(
    HandTask[HandLandmarkerOptions, HandLandmarkerResult],
    DetectTask[HandLandmarkerOptions, HandLandmarkerResult],
):
    """Detects hands and 21 landmarks of each hand.

    The model file is a bundle with `hand_detector.tflite` and `hand_landmarks_detector.tflite`.
    """

    options_type = HandLandmarkerOptions

    def _open(self, options: HandLandmarkerOptions) -> None:
        self._open_hands(options, *members_of(options.base_options, MODELS).values())

    def _result(
        self, found: list[Hand], rect: NormalizedRect, picture: Size, timestamp_ms: int
    ) -> HandLandmarkerResult:
        return HandLandmarkerResult(*hand_lists(found))
