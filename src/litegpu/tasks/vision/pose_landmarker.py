"""The landmarks of persons."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from litegpu.errors import ModelError, TaskError
from litegpu.tasks.components.containers.landmark import Landmark, NormalizedLandmark
from litegpu.tasks.components.containers.rect import NormalizedRect
from litegpu.tasks.core.activations import sigmoid
from litegpu.tasks.core.assets import members_of
from litegpu.tasks.vision.core.base_vision_task_api import VisionTaskOptions
from litegpu.tasks.vision.core.connections import PoseLandmarksConnections
from litegpu.tasks.vision.core.detect_task import DetectTask, check_confidence
from litegpu.tasks.vision.core.image import Image, ImageFormat
from litegpu.tasks.vision.core.landmark_names import PoseLandmark
from litegpu.tasks.vision.core.landmarker import LandmarkTask, Seen, projected, turned_by
from litegpu.tasks.vision.core.point_detector import PointDetector
from litegpu.tasks.vision.core.rects import expanded, merged, rotation
from litegpu.tasks.vision.core.regions import Bytes, Region, Size, sampled
from litegpu.tasks.vision.core.smoothing import LowPassFilter, OneEuroFilter
from litegpu.tasks.vision.core.vision_task_running_mode import (
    VisionTaskRunningMode as RunningMode,
)

__all__ = [
    "PoseLandmark",
    "PoseLandmarker",
    "PoseLandmarkerOptions",
    "PoseLandmarkerResult",
    "PoseLandmarksConnections",
]

Floats = NDArray[np.float32]
_MODELS = ("pose_detector.tflite", "pose_landmarks_detector.tflite")
_GRIDS = ((8, 2), (16, 2), (32, 6))
_DETECTED_POINTS = 4
_MAX_OVERLAP = 0.5
_SCALE = 1.25

_ALL, _POINTS, _VALUES = 39, 33, 5
"""Number of landmarks with auxiliary ones, number without them, and values per landmark."""
_AROUND = slice(33, 35)
"""The auxiliary landmarks: the center of a person, and a point on the circle around the person."""
_KERNEL, _MIN_CONFIDENCE = 7, 0.5
_VISIBILITY_WEIGHT = 0.1
_MASK_STEPS = 32


@dataclass
class PoseLandmarkerResult:
    """The detected persons: 33 landmarks in the picture and in meters, and an optional mask.

    A mask is a VEC32F1 image with the probability that each pixel belongs to the person.
    """

    pose_landmarks: list[list[NormalizedLandmark]]
    pose_world_landmarks: list[list[Landmark]]
    segmentation_masks: list[Image] | None = None


@dataclass
class PoseLandmarkerOptions(VisionTaskOptions[PoseLandmarkerResult]):
    """The options of a PoseLandmarker: see VisionTaskOptions.

    Args:
        num_poses: the maximum number of persons. With 1, landmarks are smoothed over the frames of
            a video.
        min_pose_detection_confidence: the minimum probability of a person, from 0 to 1.
        min_pose_presence_confidence: the minimum probability that a searched rectangle contains a
            person.
        min_tracking_confidence: the overlap (IoU) above which two rectangles belong to the same
            person.
        output_segmentation_masks: whether to return segmentation masks.
    """

    num_poses: int = 1
    min_pose_detection_confidence: float = 0.5
    min_pose_presence_confidence: float = 0.5
    min_tracking_confidence: float = 0.5
    output_segmentation_masks: bool = False


@dataclass(frozen=True)
class _Pose(Seen):
    world: Floats
    sure: Floats
    """[33, 2]: the probabilities that a landmark is visible, and that it is inside the picture."""
    mask: Image | None


class PoseLandmarker(
    LandmarkTask[PoseLandmarkerOptions, PoseLandmarkerResult, _Pose],
    DetectTask[PoseLandmarkerOptions, PoseLandmarkerResult],
):
    """Detects persons and 33 landmarks of each person.

    The model file is a bundle with `pose_detector.tflite` and `pose_landmarks_detector.tflite`.
    """

    options_type = PoseLandmarkerOptions

    def _open(self, options: PoseLandmarkerOptions) -> None:
        check_confidence(
            options,
            *("min_pose_detection_confidence", "min_pose_presence_confidence"),
            "min_tracking_confidence",
        )
        if options.num_poses < 1:
            raise TaskError(f"num_poses is {options.num_poses}. Use a positive number.")
        base, self.most = options.base_options, options.num_poses
        self._least = options.min_pose_presence_confidence
        self._same = options.min_tracking_confidence
        self._masks = options.output_segmentation_masks
        detector, landmarks = members_of(base, _MODELS).values()
        self._persons = PointDetector(
            *(self._compiled(detector, base), _GRIDS, _DETECTED_POINTS),
            *(options.min_pose_detection_confidence, _MAX_OVERLAP),
        )
        self._landmarks = self._compiled(landmarks, base, (0.0, 255.0))
        shapes = self._landmarks.shapes
        sizes = [int(np.prod(each)) for each in shapes]
        wanted = [_ALL * _VALUES, 1, None, None, _ALL * 3]
        fit = [size == want or want is None for size, want in zip(sizes, wanted, strict=False)]
        if len(sizes) != len(wanted) or not all(fit) or len(shapes[3]) != 4:
            raise ModelError(
                f"The landmark model returns {sizes} numbers. It must return 195 (landmarks), 1 "
                "(presence), a mask, a map of 39 channels and 117 (landmarks in meters): use "
                "MediaPipe's."
            )
        self._smoother: _Smoother | None = None

    def _detected(self, pixels: Bytes, rect: NormalizedRect) -> list[NormalizedRect]:
        picture = (pixels.shape[1], pixels.shape[0])
        boxes, _ = self._persons(pixels, rect)
        return [pose_rect(points[0], points[1], picture) for points in boxes.points]

    def _joined(
        self, followed: list[NormalizedRect], detected: list[NormalizedRect]
    ) -> list[NormalizedRect]:
        return merged((*followed, *detected), self._same)

    def _look(self, pixels: Bytes, rect: NormalizedRect) -> _Pose | None:
        picture = (pixels.shape[1], pixels.shape[0])
        part = sampled(pixels, Region.of(rect, picture), self._landmarks.size)
        raw, presence, mask, heat, world = self._landmarks(part)
        if not presence.ravel()[0] > self._least:
            return None
        values = raw.reshape(_ALL, _VALUES)
        width, height = self._landmarks.size
        fractions: Any = values[:, :3] / np.array([width, height, width], np.float32)
        points = projected(refined(fractions, heat[0]), rect, picture)
        center, around = points[_AROUND, :2]
        return _Pose(
            points[:_POINTS],
            pose_rect(center, around, picture),
            turned_by(world.reshape(_ALL, 3)[:_POINTS], rect.rotation or 0.0),
            sigmoid(values[:_POINTS, 3:]),
            self._mask(mask, rect, picture) if self._masks else None,
        )

    def _mask(self, scores: Floats, rect: NormalizedRect, picture: Size) -> Image:
        plane = sigmoid(scores.reshape(scores.shape[1:3]))
        compute = partial(on_picture, plane, rect, picture)
        return Image.computed(ImageFormat.VEC32F1, picture, compute)

    def _result(
        self, found: list[_Pose], rect: NormalizedRect, picture: Size, timestamp_ms: int
    ) -> PoseLandmarkerResult:
        if self._mode != RunningMode.IMAGE and self.most == 1:
            self._smoother = (self._smoother or _Smoother()) if found else None
            if self._smoother is not None:
                found = [self._smoother(found[0], picture, timestamp_ms / 1000)]
        result = PoseLandmarkerResult(
            [
                [
                    NormalizedLandmark(*point, *sure)
                    for point, sure in zip(each.points.tolist(), each.sure.tolist(), strict=True)
                ]
                for each in found
            ],
            [
                [
                    Landmark(*point, *sure)
                    for point, sure in zip(each.world.tolist(), each.sure.tolist(), strict=True)
                ]
                for each in found
            ],
        )
        if self._masks:
            result.segmentation_masks = [each.mask for each in found if each.mask is not None]
        return result


class _Smoother:
    """Smooths the landmarks of a person over the frames of a video."""

    def __init__(self) -> None:
        self._points, self._world = OneEuroFilter(0.05, 80.0), OneEuroFilter(0.1, 40.0)
        self._visibility = LowPassFilter()

    def __call__(self, pose: _Pose, picture: Size, seconds: float) -> _Pose:
        width, height = picture
        pixels = np.array([width, height, width], np.float64)
        rect = pose.next_rect
        size = (rect.width * width + rect.height * height) / 2
        sure = pose.sure.copy()
        sure[:, 0] = self._visibility(sure[:, 0], _VISIBILITY_WEIGHT)
        return replace(
            pose,
            points=(self._points(pose.points * pixels, seconds, 1 / size) / pixels).astype(
                np.float32
            ),
            world=self._world(pose.world.astype(np.float64), seconds, 1.0),
            sure=sure,
        )


def pose_rect(center: NDArray[Any], around: NDArray[Any], picture: Size) -> NormalizedRect:
    """Return the rotated square around a person, in which the person is upright.

    `center` is the person's center. `around` is a point above it on the circle around the person.
    """
    side = 2 * float(np.hypot(*((around - center) * picture)))
    angle = rotation(center, around, math.pi / 2, picture)
    x, y = map(float, center)
    rect = NormalizedRect(x, y, side / picture[0], side / picture[1], angle)
    return expanded(rect, picture, _SCALE, 0.0)


def refined(points: Floats, heat: Floats) -> Floats:
    """Return points `[N, 3]`, with x and y refined by the weighted mean of a heatmap around them.

    Args:
        points: the landmarks, with coordinates from 0 to 1.
        heat: the heatmap `[height, width, N]`: logits of each landmark's position.
    """
    height, width, _ = heat.shape
    found = points.copy()
    reach = _KERNEL // 2
    for number, (x, y) in enumerate(points[:, :2] * (width, height)):
        column, row = int(x), int(y)
        if not (0 <= column < width and 0 <= row < height):
            continue
        left, top = max(0, column - reach), max(0, row - reach)
        part = heat[top : row + reach + 1, left : column + reach + 1, number]
        weights = sigmoid(part)
        if weights.max() < _MIN_CONFIDENCE:
            continue
        rows, columns = np.mgrid[top : top + part.shape[0], left : left + part.shape[1]]
        total = weights.sum()
        found[number, 0] = (weights * columns).sum() / total / width
        found[number, 1] = (weights * rows).sum() / total / height
    return found


def on_picture(plane: Floats, rect: NormalizedRect, picture: Size) -> Floats:
    """Return a rectangle's values resampled at the picture's pixels; pixels outside of it are 0."""
    height, width = plane.shape
    matrix = np.vstack([Region.of(rect, picture).matrix(), [0, 0, 1]])
    inverse = np.linalg.inv(matrix)[:2] * np.array([[width], [height]])
    columns, rows = np.arange(picture[0]), np.arange(picture[1])[:, np.newaxis]
    positions = (each[0] * columns + each[1] * rows + each[2] for each in inverse)
    x, y = (np.rint(each * _MASK_STEPS) / _MASK_STEPS for each in positions)
    padded = np.pad(plane, 1)
    left, top = np.floor(x), np.floor(y)
    tx, ty = (x - left).astype(np.float32), (y - top).astype(np.float32)
    columns, rows = (
        np.clip(first + 1, 0, size).astype(np.intp)
        for first, size in ((left, width), (top, height))
    )
    inside = (left >= -1) & (left < width) & (top >= -1) & (top < height)
    upper = padded[rows, columns] * (1 - tx) + padded[rows, columns + 1] * tx
    lower = padded[rows + 1, columns] * (1 - tx) + padded[rows + 1, columns + 1] * tx
    found: Floats = np.where(inside, upper * (1 - ty) + lower * ty, 0).astype(np.float32)
    return found
