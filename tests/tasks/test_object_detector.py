"""Detection of objects: boxes and classes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from litegpu.errors import ModelError, TaskError
from litegpu.files.metadata import AttachedFile, Calibration, FileKind
from litegpu.tasks import BaseOptions, Image, vision
from litegpu.tasks.components.containers import BoundingBox, Detection, NormalizedKeypoint, Rect
from litegpu.tasks.vision.core.boxes import BoxCoding, Boxes, blended
from litegpu.tools.picture_flag import default_picture
from model_metadata import Noted, Written, detector_metadata
from real_models import find
from seeing_models import detector, saying
from task_models import CPU, on_cpu, picture

BOXES = [[0.1, 0.2, 0.5, 0.6], [0.5, 0.5, 1.0, 0.9], [0.0, 0.0, 0.25, 0.25]]
SCORES = [[0.0, 0.9, 0.1], [0.0, 0.2, 0.7], [0.0, 0.4, 0.3]]
SEEN = detector(BOXES, SCORES)
NAMES = (AttachedFile("labels.txt", FileKind.VALUE_LABELS),)
OUTPUTS = [
    Noted("location", box_order=(1, 0, 3, 2)),
    Noted("category", files=NAMES),
    Noted("score"),
    Noted("number of detections"),
]


def detected(model: bytes, image: Image | None = None, **options: Any) -> list[Detection]:
    settings = vision.ObjectDetectorOptions(base_options=on_cpu(model), **options)
    with vision.ObjectDetector.create_from_options(settings) as task:
        return task.detect(image or picture(100, 200)).detections


def named(model: bytes = SEEN, outputs: list[Noted] = OUTPUTS, **files: str) -> bytes:
    return Written([Noted()], outputs, files={"labels.txt": "cat\ndog\n", **files}).on(model)


def sides(found: Detection) -> tuple[int, int, int, int]:
    box = found.bounding_box
    return box.origin_x, box.origin_y, box.width, box.height


def about(*box: int) -> Any:
    """Return what equals a box; its sides are truncated, and may be one less."""
    return pytest.approx(box, abs=1)


def summary(found: list[Detection]) -> list[tuple[int | None, float]]:
    return [(c.index, round(c.score or 0, 3)) for each in found for c in each.categories]


def test_boxes_are_in_pixels() -> None:
    found = detected(SEEN, score_threshold=0.5)
    assert sides(found[0]) == about(40, 10, 80, 40)
    assert sides(found[1]) == about(100, 50, 80, 50)
    assert summary(found) == [(0, 0.9), (1, 0.7)]
    assert [each.keypoints for each in found] == [[], []]


def test_classes_have_names() -> None:
    found = detected(named())
    assert [each.categories[0].category_name for each in found][:2] == ["cat", "dog"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"max_results": 1}, [(0, 0.9)]),
        ({"score_threshold": 0.3}, [(0, 0.9), (1, 0.7), (0, 0.4)]),
        ({"score_threshold": 0.3, "category_allowlist": ["dog"]}, [(1, 0.7)]),
        ({"score_threshold": 0.3, "category_denylist": ["dog"]}, [(0, 0.9), (0, 0.4)]),
    ],
)
def test_options_select_objects(options: dict[str, Any], expected: list[tuple[int, float]]) -> None:
    assert summary(detected(named(), **options)) == expected


def test_the_order_of_sides_and_outputs_is_that_of_the_metadata() -> None:
    order = (3, 2, 1, 0)
    model = detector(BOXES, SCORES, order=order)
    outputs = [OUTPUTS[each] for each in order]
    found = detected(named(model, outputs), score_threshold=0.5)
    assert sides(found[0]) == about(40, 10, 80, 40)
    default = [Noted("location", box_order=()), *OUTPUTS[1:]]
    assert sides(detected(named(SEEN, default))[0]) == about(40, 10, 80, 40)
    swapped = [Noted("location", box_order=(0, 1, 2, 3)), *OUTPUTS[1:]]
    assert sides(detected(named(SEEN, swapped))[0]) == about(20, 20, 80, 40)


def test_scores_are_calibrated_by_their_class() -> None:
    files = (AttachedFile("curves.txt", FileKind.SCORE_CALIBRATION),)
    score = Noted("score", calibration=Calibration(0, 0.125), files=files, threshold=0.2)
    model = named(SEEN, [*OUTPUTS[:2], score, OUTPUTS[3]], **{"curves.txt": "1,1,0\n\n"})
    calibrated = [round(float(1 / (1 + np.exp(-each))), 3) for each in (0.9, 0.4)]
    assert summary(detected(model)) == [(0, calibrated[0]), (0, calibrated[1])]


def test_a_picture_may_lie_on_its_side() -> None:
    settings = vision.ObjectDetectorOptions(on_cpu(SEEN), max_results=1)
    turned = vision.ImageProcessingOptions(rotation_degrees=90)
    part = vision.ImageProcessingOptions(Rect(0, 0, 0.5, 0.5))
    with vision.ObjectDetector(settings) as task:
        (found,) = task.detect(picture(100, 200), turned).detections
        with pytest.raises(TaskError, match=r"This task takes no region_of_interest"):
            task.detect(picture(), part)
    assert sides(found) == about(20, 40, 80, 40)


def test_boxes_at_the_same_place_are_one_object() -> None:
    twice = detector([BOXES[0], [0.8, 0.8, 0.9, 0.9]], [[0, 0.9, 0.8], [0, 0.1, 0.2]])
    (first, *_) = detected(twice, picture(1, 1))
    assert len(first.categories) == 2 and first.bounding_box == BoundingBox(0, 0, 0, 0)


def test_a_frame_and_a_camera() -> None:
    modes, found = vision.RunningMode, []
    settings = vision.ObjectDetectorOptions(on_cpu(SEEN), running_mode=modes.VIDEO)
    with vision.ObjectDetector(settings) as task:
        assert len(task.detect_for_video(picture(), 0).detections) == 3
    settings = vision.ObjectDetectorOptions(
        on_cpu(SEEN),
        running_mode=modes.LIVE_STREAM,
        result_callback=lambda *each: found.append(each),
    )
    with vision.ObjectDetector(settings) as task:
        task.detect_async(picture(), 0)
    assert len(found[0][0].detections) == 3


# Codes of boxes


ANCHORS = [[0.25, 0.25, 0.5, 0.5], [0.75, 0.5, 0.5, 1.0], [0.25, 0.25, 0.5, 0.5]]
CODES = [[0.0, 0.0, 10.0, 10.0, 1.0, 2.0], [1.0, 0.0, 5.0, 10.0, 0.0, 0.0], [0.1, 0, 10, 10, 0, 0]]
LOGITS = [[2.0, -1.0], [0.0, 1.0], [1.0, -1.0]]


def raw(**options: Any) -> bytes:
    """Return a model that sees codes relative to anchors, divided by 10, and logits."""
    model = saying({"codes": [CODES], "logits": [LOGITS]})
    custom = {"DETECTOR_METADATA": detector_metadata(ANCHORS, 10.0, points=1, **options)}
    files = (AttachedFile("labels.txt", FileKind.AXIS_LABELS),)
    outputs = [Noted("location", box_order=(0, 1, 2, 3)), Noted("score", files=files)]
    return Written([Noted()], outputs, custom, {"labels.txt": "cat\ndog\n"}).on(model)


def test_codes_are_decoded_and_boxes_that_overlap_are_suppressed() -> None:
    found = detected(raw())
    assert summary(found) == [(0, 0.881), (1, 0.731)]
    # y precedes x, and height width.
    assert sides(found[0]) == about(0, 0, 100, 50)
    assert sides(found[1]) == about(100, 35, 100, 50)
    assert found[0].keypoints is not None
    (point,) = found[0].keypoints
    assert (point.x, point.y) == pytest.approx((0.35, 0.3))
    assert isinstance(point, NormalizedKeypoint)


def test_the_best_class_that_counts_is_that_of_a_box() -> None:
    assert summary(detected(raw(), category_denylist=["cat"])) == [(1, 0.731), (1, 0.269)]
    assert summary(detected(raw(), max_results=1)) == [(0, 0.881)]


def test_sizes_may_be_logarithms() -> None:
    coding = BoxCoding((10.0, 10.0, 5.0, 5.0), exponential=True)
    rows = np.array([[0.0, 0.0, 5.0, -5.0]], np.float32)
    found = coding.decode(rows, np.array([[0.5, 0.5, 0.1, 0.2]], np.float32))
    half = np.array([0.05 * np.e, 0.1 / np.e])
    assert found.corners[0] == pytest.approx([*(0.5 - half), *(0.5 + half)])


def test_boxes_that_overlap_are_blended_by_their_scores() -> None:
    corners = np.array([[0, 0, 1, 1], [0.5, 0.5, 0.6, 0.6], [0.1, 0, 1, 1]], np.float32)
    points = corners[:, np.newaxis, :2]
    found, scores = blended(Boxes(corners, points), np.array([0.6, 0.5, 0.2], np.float32), 0.3)
    assert found.corners[0] == pytest.approx([0.025, 0, 1, 1])
    assert found.points[0, 0] == pytest.approx([0.025, 0])
    assert found.corners[1] == pytest.approx(corners[1])
    assert scores == pytest.approx([0.6, 0.5])
    empty, scores = blended(Boxes(corners[:0], points[:0]), np.zeros(0, np.float32), 0.3)
    assert empty.corners.shape == (0, 4) and empty.points.shape == (0, 1, 2) and not scores.size


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (saying({"a": [[1.0]]}), "The model has 1 outputs. A detector has 4"),
        (saying({"a": [CODES], "b": [LOGITS]}), "they have no DETECTOR_METADATA, or it is damage"),
        (
            Written(
                [Noted()],
                [Noted(), Noted()],
                {"DETECTOR_METADATA": detector_metadata(ANCHORS[:2], 10.0)},
            ).on(saying({"a": [CODES], "b": [LOGITS]})),
            "The metadata have 2 anchors, and the model returns 3 boxes",
        ),
        (
            named(SEEN, [Noted("location", box_order=(0, 1, 2, 3), in_pixels=True), *OUTPUTS[1:]]),
            "describe boxes that are not the sides of a box from 0 to 1",
        ),
        (
            named(SEEN, [Noted("location", box_order=(0, 1, 2, 2)), *OUTPUTS[1:]]),
            r"give \[0, 1, 2, 2\] as the positions of left, top, right and bottom",
        ),
    ],
)
def test_models_that_do_not_detect(model: bytes, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        detected(model)


@pytest.mark.real_model
def test_results_are_those_of_mediapipe() -> None:
    """Recorded from MediaPipe 0.10.21 with the same model and picture."""
    base = BaseOptions(find("ssd_mobilenet_v1_coco_float32"), delegate=CPU)
    image = Image.create_from_file(default_picture())
    with vision.ObjectDetector(vision.ObjectDetectorOptions(base, max_results=3)) as task:
        found = task.detect(image).detections
    wanted = [(1, 25, 505, 566), (224, 427, 65, 111), (9, 1, 118, 412)]
    for each, box in zip(found, wanted, strict=True):
        assert sides(each) == pytest.approx(box, abs=3)
    scores = [each.categories[0].score for each in found]
    assert scores == pytest.approx([0.7089, 0.6577, 0.5422], abs=0.02)
