"""The detector of faces."""

from __future__ import annotations

from dataclasses import dataclass

from litegpu.errors import ModelError
from litegpu.tasks.components.containers.category import Category
from litegpu.tasks.components.containers.detections import Detection, DetectionResult
from litegpu.tasks.components.containers.keypoint import NormalizedKeypoint
from litegpu.tasks.components.containers.rect import NormalizedRect
from litegpu.tasks.core.assets import model_of
from litegpu.tasks.core.model import PictureModel
from litegpu.tasks.vision.core.base_vision_task_api import VisionTaskOptions
from litegpu.tasks.vision.core.detect_task import DetectTask, check_confidence
from litegpu.tasks.vision.core.image import Image
from litegpu.tasks.vision.core.point_detector import PointDetector
from litegpu.tasks.vision.core.regions import rgb

FaceDetectorResult = DetectionResult
POINTS = 6
"""The number of keypoints: eyes, nose tip, mouth and ear tragions; right precedes left."""
_GRIDS = {128: ((8, 2), (16, 6)), 192: ((4, 1),)}
"""The feature maps of the short-range and full-range models, by the width of the input."""


@dataclass
class FaceDetectorOptions(VisionTaskOptions[DetectionResult]):
    """The options of a FaceDetector: see VisionTaskOptions.

    Args:
        min_detection_confidence: the minimum probability of a face, from 0 to 1.
        min_suppression_threshold: the overlap (IoU), from 0 to 1, above which two boxes belong to
            the same face.
    """

    min_detection_confidence: float = 0.5
    min_suppression_threshold: float = 0.3


class FaceDetector(DetectTask[FaceDetectorOptions, DetectionResult]):
    """Detects faces: a box and six keypoints (eyes, nose, mouth and ears) for each face.

    The model is MediaPipe's short-range (128 x 128) or full-range (192 x 192) BlazeFace.
    """

    options_type = FaceDetectorOptions

    def _open(self, options: FaceDetectorOptions) -> None:
        check_confidence(options, "min_detection_confidence", "min_suppression_threshold")
        model = self._compiled(model_of(options.base_options), options.base_options)
        self._detector = face_detector(
            model, options.min_detection_confidence, options.min_suppression_threshold
        )

    def _run(self, image: Image, rect: NormalizedRect, timestamp_ms: int) -> DetectionResult:
        boxes, scores = self._detector(rgb(image), rect)
        found = zip(
            boxes.pixels((image.width, image.height)),
            scores.tolist(),
            boxes.points.tolist(),
            strict=True,
        )
        return DetectionResult(
            [
                Detection(
                    box,
                    [Category(0, score, None, None)],
                    [NormalizedKeypoint(x, y, "", 0.0) for x, y in points],
                )
                for box, score, points in found
            ]
        )


def face_detector(model: PictureModel, least_score: float, most_overlap: float) -> PointDetector:
    """Return the detector of a model.

    Raises:
        ModelError: the model is not a face detector.
    """
    if model.size[0] not in _GRIDS:
        width, height = model.size
        raise ModelError(
            f"The input of the model is {width}×{height}. A detector of faces takes 128×128 or "
            "192×192: use MediaPipe's BlazeFace."
        )
    return PointDetector(model, _GRIDS[model.size[0]], POINTS, least_score, most_overlap)
