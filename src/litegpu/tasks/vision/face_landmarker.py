"""The landmarks of faces."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from litegpu.errors import ModelError, TaskError
from litegpu.tasks.components.containers.category import Category
from litegpu.tasks.components.containers.landmark import NormalizedLandmark
from litegpu.tasks.components.containers.rect import NormalizedRect
from litegpu.tasks.core.activations import sigmoid
from litegpu.tasks.core.assets import members_of
from litegpu.tasks.vision.core.base_vision_task_api import VisionTaskOptions
from litegpu.tasks.vision.core.connections import FaceLandmarksConnections
from litegpu.tasks.vision.core.detect_task import DetectTask, check_confidence
from litegpu.tasks.vision.core.face_geometry import POINTS as _WITHOUT_IRISES
from litegpu.tasks.vision.core.face_geometry import FaceGeometry
from litegpu.tasks.vision.core.landmark_names import Blendshapes
from litegpu.tasks.vision.core.landmarker import Floats, LandmarkTask, Seen, projected
from litegpu.tasks.vision.core.rects import expanded, merged, rect_of_box, rotation
from litegpu.tasks.vision.core.regions import Bytes, Region, Size, sampled
from litegpu.tasks.vision.core.smoothing import OneEuroFilter
from litegpu.tasks.vision.core.vision_task_running_mode import (
    VisionTaskRunningMode as RunningMode,
)
from litegpu.tasks.vision.face_detector import face_detector

__all__ = [
    "BLENDSHAPES",
    "Blendshapes",
    "FaceLandmarker",
    "FaceLandmarkerOptions",
    "FaceLandmarkerResult",
    "FaceLandmarksConnections",
]
_MODELS = ("face_detector.tflite", "face_landmarks_detector.tflite")
_BLENDSHAPES, _GEOMETRY = (
    "face_blendshapes.tflite",
    "geometry_pipeline_metadata_landmarks.binarypb",
)
_POINTS = 478
_MAX_OVERLAP = 0.5
_SCALE = 1.5
_EYES, _EYE_CORNERS = (0, 1), (33, 263)
"""The keypoints of the detector, and the landmarks, whose line is horizontal in a rectangle."""
# fmt: off
_FOR_BLENDSHAPES = (
    0, 1, 4, 5, 6, 7, 8, 10, 13, 14, 17, 21, 33, 37, 39, 40, 46, 52, 53, 54, 55, 58, 61, 63, 65,
    66, 67, 70, 78, 80, 81, 82, 84, 87, 88, 91, 93, 95, 103, 105, 107, 109, 127, 132, 133, 136,
    144, 145, 146, 148, 149, 150, 152, 153, 154, 155, 157, 158, 159, 160, 161, 162, 163, 168, 172,
    173, 176, 178, 181, 185, 191, 195, 197, 234, 246, 249, 251, 263, 267, 269, 270, 276, 282, 283,
    284, 285, 288, 291, 293, 295, 296, 297, 300, 308, 310, 311, 312, 314, 317, 318, 321, 323, 324,
    332, 334, 336, 338, 356, 361, 362, 365, 373, 374, 375, 377, 378, 379, 380, 381, 382, 384, 385,
    386, 387, 388, 389, 390, 397, 398, 400, 402, 405, 409, 415, 454, 466, 468, 469, 470, 471, 472,
    473, 474, 475, 476, 477,
)
"""The landmarks that the blendshape model gets."""
BLENDSHAPES = (
    "_neutral", "browDownLeft", "browDownRight", "browInnerUp", "browOuterUpLeft",
    "browOuterUpRight", "cheekPuff", "cheekSquintLeft", "cheekSquintRight", "eyeBlinkLeft",
    "eyeBlinkRight", "eyeLookDownLeft", "eyeLookDownRight", "eyeLookInLeft", "eyeLookInRight",
    "eyeLookOutLeft", "eyeLookOutRight", "eyeLookUpLeft", "eyeLookUpRight", "eyeSquintLeft",
    "eyeSquintRight", "eyeWideLeft", "eyeWideRight", "jawForward", "jawLeft", "jawOpen", "jawRight",
    "mouthClose", "mouthDimpleLeft", "mouthDimpleRight", "mouthFrownLeft", "mouthFrownRight",
    "mouthFunnel", "mouthLeft", "mouthLowerDownLeft", "mouthLowerDownRight", "mouthPressLeft",
    "mouthPressRight", "mouthPucker", "mouthRight", "mouthRollLower", "mouthRollUpper",
    "mouthShrugLower", "mouthShrugUpper", "mouthSmileLeft", "mouthSmileRight", "mouthStretchLeft",
    "mouthStretchRight", "mouthUpperUpLeft", "mouthUpperUpRight", "noseSneerLeft", "noseSneerRight",
)
# fmt: on
"""The names of the blendshapes, which are those of ARKit, and a neutral one."""


@dataclass
class FaceLandmarkerResult:
    """The detected faces: 478 landmarks each, and what the options add.

    The fields `face_blendshapes` and `facial_transformation_matrixes` are empty without their
    options. A matrix, 4 x 4 floats, maps the canonical face to the face in front of a camera with a
    vertical field of view of 63 degrees, in centimeters. Faces that are points have no matrix.
    """

    face_landmarks: list[list[NormalizedLandmark]]
    face_blendshapes: list[list[Category]]
    facial_transformation_matrixes: list[NDArray[np.float64]]


@dataclass
class FaceLandmarkerOptions(VisionTaskOptions[FaceLandmarkerResult]):
    """The options of a FaceLandmarker: see VisionTaskOptions.

    Args:
        num_faces: the maximum number of faces. With 1, landmarks are smoothed over the frames of a
            video.
        min_face_detection_confidence: the minimum probability of a face, from 0 to 1.
        min_face_presence_confidence: the minimum probability that a searched rectangle contains a
            face.
        min_tracking_confidence: the overlap (IoU) above which two rectangles belong to the same
            face.
        output_face_blendshapes: whether to return the coefficients of 52 facial expressions.
        output_facial_transformation_matrixes: whether to return the pose of each face.
    """

    num_faces: int = 1
    min_face_detection_confidence: float = 0.5
    min_face_presence_confidence: float = 0.5
    min_tracking_confidence: float = 0.5
    output_face_blendshapes: bool = False
    output_facial_transformation_matrixes: bool = False


class FaceLandmarker(
    LandmarkTask[FaceLandmarkerOptions, FaceLandmarkerResult, Seen],
    DetectTask[FaceLandmarkerOptions, FaceLandmarkerResult],
):
    """Detects faces and 478 landmarks of each face.

    The model file is a bundle with `face_detector.tflite` and `face_landmarks_detector.tflite`. The
    options need `face_blendshapes.tflite`, a small model that runs on the CPU, and
    `geometry_pipeline_metadata_landmarks.binarypb`.
    """

    options_type = FaceLandmarkerOptions

    def _open(self, options: FaceLandmarkerOptions) -> None:
        check_confidence(
            options,
            *("min_face_detection_confidence", "min_face_presence_confidence"),
            "min_tracking_confidence",
        )
        if options.num_faces < 1:
            raise TaskError(f"num_faces is {options.num_faces}. Use a positive number.")
        base, self.most = options.base_options, options.num_faces
        self._least = options.min_face_presence_confidence
        self._same = options.min_tracking_confidence
        wanted = {
            _BLENDSHAPES: options.output_face_blendshapes,
            _GEOMETRY: options.output_facial_transformation_matrixes,
        }
        found = members_of(base, (*_MODELS, *(name for name, needed in wanted.items() if needed)))
        detector, landmarks = (found[each] for each in _MODELS)
        self._faces = face_detector(
            self._compiled(detector, base), options.min_face_detection_confidence, _MAX_OVERLAP
        )
        self._landmarks = self._compiled(landmarks, base, (0.0, 255.0))
        sizes = [int(np.prod(each)) for each in self._landmarks.shapes]
        if sizes[:2] != [3 * _POINTS, 1]:
            raise ModelError(
                f"The landmark model returns {sizes} numbers. It must return 1434 (landmarks) and "
                "1 (presence): use MediaPipe's."
            )
        self._blendshapes = self._small(found[_BLENDSHAPES]) if _BLENDSHAPES in found else None
        if self._blendshapes is not None:
            shapes = self._blendshapes.inputs, self._blendshapes.shapes
            counts = [[int(np.prod(each)) for each in side] for side in shapes]
            if counts[0] != [2 * len(_FOR_BLENDSHAPES)] or counts[1][:1] != [len(BLENDSHAPES)]:
                raise ModelError(
                    f"The blendshape model takes {counts[0]} and returns {counts[1]} numbers. It "
                    "must take 292 (landmarks) and return 52: use MediaPipe's."
                )
        self._geometry = FaceGeometry.of(found[_GEOMETRY]) if _GEOMETRY in found else None
        self._smoother: OneEuroFilter | None = None

    def _detected(self, pixels: Bytes, rect: NormalizedRect) -> list[NormalizedRect]:
        picture = (pixels.shape[1], pixels.shape[0])
        boxes, _ = self._faces(pixels, rect)
        found = []
        for corners, points in zip(boxes.corners, boxes.points, strict=True):
            start, end = points[list(_EYES)]
            box = rect_of_box(corners, rotation(start, end, 0.0, picture))
            found.append(replace(box, width=box.width * _SCALE, height=box.height * _SCALE))
        return found

    def _joined(
        self, followed: list[NormalizedRect], detected: list[NormalizedRect]
    ) -> list[NormalizedRect]:
        return merged((*followed, *detected), self._same)

    def _look(self, pixels: Bytes, rect: NormalizedRect) -> Seen | None:
        picture = (pixels.shape[1], pixels.shape[0])
        part = sampled(pixels, Region.of(rect, picture), self._landmarks.size)
        raw, presence, *_ = self._landmarks(part)
        if not sigmoid(presence).ravel()[0] > self._least:
            return None
        width, height = self._landmarks.size
        fractions: Any = raw.reshape(_POINTS, 3) / np.array([width, height, width], np.float32)
        points = projected(fractions, rect, picture, depth_by_side=True)
        return Seen(points, face_rect(points, picture))

    def _result(
        self, found: list[Seen], rect: NormalizedRect, picture: Size, timestamp_ms: int
    ) -> FaceLandmarkerResult:
        faces = [each.points for each in found]
        if self._mode != RunningMode.IMAGE and self.most == 1:
            self._smoother = (self._smoother or OneEuroFilter(0.05, 80.0)) if faces else None
            if self._smoother is not None:
                faces = [self._smoothed(self._smoother, faces[0], picture, timestamp_ms / 1000)]
        poses = [] if self._geometry is None else [self._pose(each, picture) for each in faces]
        return FaceLandmarkerResult(
            [
                [NormalizedLandmark(x, y, z, 0.0, 0.0) for x, y, z in each.tolist()]
                for each in faces
            ],
            [] if self._blendshapes is None else [self._shape(each, picture) for each in faces],
            [each for each in poses if each is not None],
        )

    @staticmethod
    def _smoothed(smoother: OneEuroFilter, points: Floats, picture: Size, seconds: float) -> Floats:
        width, height = picture
        pixels = points * np.array([width, height, width], np.float64)
        size = np.ptp(pixels[:, :2], axis=0).mean()
        smooth = smoother(pixels, seconds, 1 / size) / (width, height, width)
        found: Floats = smooth.astype(np.float32)
        return found

    def _shape(self, points: Floats, picture: Size) -> list[Category]:
        """Return the blendshapes of a face."""
        assert self._blendshapes is not None
        chosen = points[list(_FOR_BLENDSHAPES), :2] * np.array(picture, np.float32)
        scores = self._blendshapes(chosen)[0].ravel().tolist()
        pairs = enumerate(zip(scores, BLENDSHAPES, strict=True))
        return [Category(index, score, "", name) for index, (score, name) in pairs]

    def _pose(self, points: Floats, picture: Size) -> NDArray[np.float64] | None:
        assert self._geometry is not None
        return self._geometry.pose(points[:_WITHOUT_IRISES], picture)


def face_rect(points: Floats, picture: Size) -> NormalizedRect:
    """Return the square that the landmark model searches for this face in the next frame.

    The line between the outer corners of the eyes is horizontal in it.
    """
    flat = points[:, :2]
    start, end = flat[list(_EYE_CORNERS)]
    box = np.concatenate([flat.min(0), flat.max(0)])
    return expanded(rect_of_box(box, rotation(start, end, 0.0, picture)), picture, _SCALE, 0.0)
