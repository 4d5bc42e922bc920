"""Detection of faces and their keypoints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from litegpu.errors import ModelError, TaskError
from litegpu.tasks import BaseOptions, Image, vision
from litegpu.tasks.components.containers import Detection, DetectionResult
from litegpu.tasks.vision.core.point_detector import point_anchors
from litegpu.tools.picture_flag import default_picture
from real_models import find
from seeing_models import saying
from task_models import CPU, on_cpu, picture


def seeing(*faces: tuple[int, float, Sequence[float]], size: int = 128, rows: int = 896) -> bytes:
    """Return a model that sees faces: the anchor, the logit, and the codes in pixels."""
    codes, logits = np.zeros((1, rows, 16)), np.full((1, rows, 1), -200.0)
    for row, logit, values in faces:
        codes[0, row, : len(values)], logits[0, row] = values, logit
    return saying({"regressors": codes, "classificators": logits}, size=size)


def detected(model: bytes, image: Image | None = None, **options: Any) -> list[Detection]:
    settings = vision.FaceDetectorOptions(base_options=on_cpu(model), **options)
    with vision.FaceDetector.create_from_options(settings) as task:
        return task.detect(image or picture(64, 128)).detections


def box(found: Detection) -> tuple[int, int, int, int]:
    b = found.bounding_box
    return b.origin_x, b.origin_y, b.width, b.height


MIDDLE = 2 * (8 * 16 + 8)
"""The first anchor of the cell right of and below the middle, at 68 of 128 pixels."""


def test_anchors_are_the_centers_of_cells() -> None:
    short = point_anchors((128, 128), ((8, 2), (16, 6)))
    assert short.shape == (896, 4)
    assert short[MIDDLE].tolist() == short[MIDDLE + 1].tolist() == [0.53125, 0.53125, 1, 1]
    assert short[512].tolist() == [0.0625, 0.0625, 1, 1]
    assert point_anchors((192, 192), ((4, 1),)).shape == (2304, 4)


def test_a_face_has_a_box_and_points() -> None:
    # The picture is half as high as wide: the input has 32 empty rows above it.
    face = (MIDDLE, 3.0, [-4.0, -4.0, 32.0, 16.0, -8.0, 0.0])
    (found,) = detected(seeing(face))
    assert box(found) == (48, 24, 32, 16)
    (category,) = found.categories
    assert (category.index, category.category_name) == (0, None)
    assert category.score == pytest.approx(1 / (1 + np.exp(-3)))
    assert found.keypoints is not None and len(found.keypoints) == 6
    first = found.keypoints[0]
    assert (first.x, first.y) == pytest.approx((60 / 128, 36 / 64))
    assert (first.label, first.score) == ("", 0.0)


def test_boxes_of_the_same_face_are_blended() -> None:
    one, other = (MIDDLE, 2.0, [0, 0, 40, 40]), (MIDDLE + 1, 1.0, [4.0, 0, 40, 40])
    far = (0, 1.5, [0, 30, 4, 4])
    found = detected(seeing(one, other, far))
    assert len(found) == 2
    weights = 1 / (1 + np.exp([-2.0, -1.0]))
    left = 48 + 4 * weights[1] / weights.sum()
    assert box(found[0])[0] == int(left)
    assert len(detected(seeing(one, other, far), min_suppression_threshold=0.95)) == 3


def test_options_have_a_least_probability() -> None:
    model = seeing((MIDDLE, 1.0, [0, 0, 40, 40]))
    assert len(detected(model, min_detection_confidence=0.7)) == 1
    assert detected(model, min_detection_confidence=0.75) == []
    # A box without a size is none.
    assert detected(seeing((MIDDLE, 1.0, [0, 0, -40, 40]))) == []


def test_the_model_of_full_range() -> None:
    face = (48 * 24 + 24, 3.0, [-2.0, -2.0, 48.0, 48.0])
    (found,) = detected(seeing(face, size=192, rows=2304), picture(192, 192))
    assert box(found) == (72, 72, 48, 48)


def test_a_frame_and_a_camera() -> None:
    modes, found = vision.RunningMode, []
    base = on_cpu(seeing((MIDDLE, 3.0, [0, 0, 40, 40])))
    settings = vision.FaceDetectorOptions(base_options=base, running_mode=modes.VIDEO)
    with vision.FaceDetector(settings) as task:
        assert isinstance(task.detect_for_video(picture(), 0), DetectionResult)
    settings = vision.FaceDetectorOptions(
        base_options=base,
        running_mode=modes.LIVE_STREAM,
        result_callback=lambda *each: found.append(each),
    )
    with vision.FaceDetector(settings) as task:
        task.detect_async(picture(), 0)
    assert len(found[0][0].detections) == 1


@pytest.mark.parametrize(
    ("model", "options", "error", "message"),
    [
        (seeing(), {"min_detection_confidence": 1.5}, TaskError, "confidence is 1.5. Use a number"),
        (seeing(), {"min_suppression_threshold": -1}, TaskError, "min_suppression_threshold is -1"),
        (saying({"a": [[1.0]]}), {}, ModelError, "is 64×64. A detector of faces takes 128×128 or"),
        (
            saying({"a": [[1.0]]}, size=128),
            {},
            ModelError,
            r"The detector returns \[1, 1\]. It must return \[1, 896, 16\] and \[1, 896, 1\]",
        ),
    ],
)
def test_what_does_not_fit(
    model: bytes, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        detected(model, **options)


@pytest.mark.real_model
def test_results_are_those_of_mediapipe() -> None:
    """Recorded from MediaPipe 0.10.21 with the same model and picture."""
    base = BaseOptions(find("face_detection_short_range_float16"), delegate=CPU)
    with vision.FaceDetector(vision.FaceDetectorOptions(base_options=base)) as task:
        (found,) = task.detect(Image.create_from_file(default_picture())).detections
    assert box(found) == pytest.approx((171, 147, 193, 193), abs=2)
    assert found.categories[0].score == pytest.approx(0.9353, abs=0.005)
    points = [(each.x, each.y) for each in found.keypoints or ()]
    wanted = [(0.433, 0.3244), (0.6009, 0.3083), (0.5237, 0.3759)]
    assert np.array(points[:3]) == pytest.approx(np.array(wanted), abs=0.003)
