"""Tasks on hands: detection, landmarks, and tracking in a video."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from litegpu.errors import ModelError, TaskError
from litegpu.pictures.boxes import overlaps
from litegpu.tasks.components.containers.category import Category
from litegpu.tasks.components.containers.landmark import Landmark, NormalizedLandmark
from litegpu.tasks.components.containers.rect import NormalizedRect
from litegpu.tasks.vision.core.base_vision_task_api import Result, VisionTaskOptions
from litegpu.tasks.vision.core.detect_task import check_confidence
from litegpu.tasks.vision.core.landmarker import LandmarkTask, Seen, projected, turned_by
from litegpu.tasks.vision.core.point_detector import PointDetector
from litegpu.tasks.vision.core.rects import expanded, is_new, rect_of_box, rotation
from litegpu.tasks.vision.core.regions import Bytes, Region, Size, sampled

Floats = NDArray[np.float32]
MODELS = ("hand_detector.tflite", "hand_landmarks_detector.tflite")
_GRIDS = ((8, 2), (16, 6))
_PALM_POINTS, _WRIST, _MIDDLE = 7, 0, 2
_MAX_OVERLAP = 0.3
_PALM_ANGLE = 90.0
"""Angle, in radians, of the line from the wrist to the middle finger of a detected palm.

MediaPipe's graph also uses 90 as radians, which is equivalent to 2.035. MediaPipe's landmark model
expects this rotation.
"""
_PALM_SCALE, _PALM_SHIFT = 2.6, -0.5

_POINTS = 21
_PALM = (0, 1, 2, 3, 5, 6, 9, 10, 13, 14, 17, 18)
"""The landmarks of the palm and the first finger joints, enclosed by the next rectangle."""
_INDEX, _MIDDLE_FINGER, _RING, _LITTLE = 5, 9, 13, 17
_DEPTH = 0.4
"""The depth of a hand relative to the width of its rectangle."""
_HAND_SCALE, _HAND_SHIFT = 2.0, -0.1
_SIDES = ("Right", "Left")
_NEAR, _MIN_NEAR, _SAME_BOX = 0.2, 10, 0.2
"""Thresholds for duplicate hands: landmark distance in palm sizes, number of near landmarks, IoU.
"""


@dataclass
class HandOptions(VisionTaskOptions[Result]):
    """The options shared by the tasks on hands: see VisionTaskOptions.

    Args:
        num_hands: the maximum number of hands.
        min_hand_detection_confidence: the minimum probability of a palm, from 0 to 1.
        min_hand_presence_confidence: the minimum probability that a searched rectangle contains a
            hand.
        min_tracking_confidence: the overlap (IoU) above which two rectangles belong to the same
            hand.
    """

    num_hands: int = 1
    min_hand_detection_confidence: float = 0.5
    min_hand_presence_confidence: float = 0.5
    min_tracking_confidence: float = 0.5


HandOptionsT = TypeVar("HandOptionsT", bound=HandOptions[Any])


@dataclass(frozen=True)
class Hand(Seen):
    """The result of the landmark model for a hand."""

    world: Floats
    """[21, 3]: the landmarks in meters."""
    right: float
    """The probability of a right hand."""


class HandTask(LandmarkTask[HandOptionsT, Result, Hand], Generic[HandOptionsT, Result]):
    """A task that detects hands and 21 landmarks of each hand."""

    def _open_hands(self, options: HandOptionsT, palms: bytes, hands: bytes) -> None:
        """Compile the detector of palms and the landmark model."""
        check_confidence(
            options,
            *("min_hand_detection_confidence", "min_hand_presence_confidence"),
            "min_tracking_confidence",
        )
        if options.num_hands < 1:
            raise TaskError(f"num_hands is {options.num_hands}. Use a positive number.")
        base, self.most = options.base_options, options.num_hands
        self._least, self._same = (
            options.min_hand_presence_confidence,
            options.min_tracking_confidence,
        )
        self._palms = PointDetector(
            *(self._compiled(palms, base), _GRIDS, _PALM_POINTS),
            *(options.min_hand_detection_confidence, _MAX_OVERLAP),
        )
        self._hands = self._compiled(hands, base)
        sizes = [int(np.prod(each)) for each in self._hands.shapes]
        if sizes != [3 * _POINTS, 1, 1, 3 * _POINTS]:
            raise ModelError(
                f"The landmark model returns {sizes} numbers. It must return 63 (landmarks), 1 "
                "(presence), 1 (side) and 63 (landmarks in meters): use MediaPipe's."
            )

    def _detected(self, pixels: Bytes, rect: NormalizedRect) -> list[NormalizedRect]:
        picture = (pixels.shape[1], pixels.shape[0])
        boxes, _ = self._palms(pixels, rect)
        found = []
        for corners, points in zip(boxes.corners, boxes.points, strict=True):
            angle = rotation(points[_WRIST], points[_MIDDLE], _PALM_ANGLE, picture)
            palm = rect_of_box(corners, angle)
            found.append(expanded(palm, picture, _PALM_SCALE, _PALM_SHIFT))
        return found

    def _joined(
        self, followed: list[NormalizedRect], detected: list[NormalizedRect]
    ) -> list[NormalizedRect]:
        found = list(followed)
        for each in detected:
            if is_new(each, found, self._same):
                found.append(each)
        return found

    def _look(self, pixels: Bytes, rect: NormalizedRect) -> Hand | None:
        picture = (pixels.shape[1], pixels.shape[0])
        part = sampled(pixels, Region.of(rect, picture), self._hands.size)
        landmarks, presence, right, world = (each.ravel() for each in self._hands(part))
        if not presence[0] > self._least:
            return None
        width, height = self._hands.size
        points = landmarks.reshape(_POINTS, 3) / (width, height, width * _DEPTH)
        found = projected(points.astype(np.float32), rect, picture)
        turned = turned_by(world.reshape(_POINTS, 3), rect.rotation or 0.0)
        return Hand(found, hand_rect(found, picture), turned, float(right[0]))

    def _distinct(self, found: list[Hand], picture: Size) -> list[Hand]:
        remaining: list[Hand] = []
        for hand in found:
            if not any(_are_same(hand.points, each.points, picture) for each in remaining):
                remaining.append(hand)
        return remaining


def hand_lists(
    found: list[Hand],
) -> tuple[list[list[Category]], list[list[NormalizedLandmark]], list[list[Landmark]]]:
    """Return the sides, the landmarks in the picture and those in meters, as results have them."""
    return (
        [[_side(each.right)] for each in found],
        [
            [NormalizedLandmark(x, y, z, 0.0, 0.0) for x, y, z in each.points.tolist()]
            for each in found
        ],
        [[Landmark(x, y, z, 0.0, 0.0) for x, y, z in each.world.tolist()] for each in found],
    )


def hand_rect(points: Floats, picture: Size) -> NormalizedRect:
    """Return the rectangle that the landmark model searches for this hand in the next frame.

    The rectangle is upright if the fingers point upward.
    """
    palm = points[:, :2]
    knuckles = ((palm[_INDEX] + palm[_RING]) / 2 + palm[_MIDDLE_FINGER]) / 2
    angle = rotation(palm[_WRIST], knuckles, math.pi / 2, picture)
    chosen = palm[list(_PALM)]
    middle = (chosen.min(0) + chosen.max(0)) / 2
    turned = turned_by((chosen - middle) * picture, -angle)
    low, high = turned.min(0), turned.max(0)
    x, y = turned_by((low + high)[np.newaxis] / 2, angle)[0] / picture + middle
    width, height = (high - low) / picture
    rect = NormalizedRect(float(x), float(y), float(width), float(height), angle)
    return expanded(rect, picture, _HAND_SCALE, _HAND_SHIFT)


def _side(right: float) -> Category:
    index = int(right < 1 - right)
    return Category(index, max(right, 1 - right), _SIDES[index], _SIDES[index])


def _are_same(one: NDArray[Any], other: NDArray[Any], picture: Size) -> bool:
    """Return whether two results belong to the same hand."""
    one, other = one[:, :2] * np.array(picture), other[:, :2] * np.array(picture)
    least = _NEAR * max(_palm_size(one), _palm_size(other))
    near = np.linalg.norm(one - other, axis=1) < least
    boxes = [np.concatenate([each.min(0), each.max(0)]) for each in (one, other)]
    shared = overlaps(boxes[0], boxes[1][np.newaxis])[0]
    return bool(near.sum() >= _MIN_NEAR and shared > _SAME_BOX)


def _palm_size(points: NDArray[Any]) -> float:
    """Return the longest side of the triangle of wrist, index finger and little finger."""
    corners = points[[_WRIST, _INDEX, _LITTLE]]
    return float(np.linalg.norm(corners - np.roll(corners, 1, 0), axis=1).max())
