"""Persons, their landmarks and masks, and tracking with smoothing in a video."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from containers import bundle
from litegpu.errors import ModelError, TaskError
from litegpu.tasks import ImageFormat, vision
from litegpu.tasks.components.containers import NormalizedRect
from litegpu.tasks.vision.core.landmarker import projected
from litegpu.tasks.vision.core.regions import Region, sampled
from litegpu.tasks.vision.core.smoothing import OneEuroFilter
from litegpu.tasks.vision.pose_landmarker import on_picture, pose_rect, refined
from seeing_models import saying
from task_models import on_cpu, picture

RANDOM = np.random.default_rng(0)
VALUES = np.concatenate([RANDOM.uniform(20, 230, (39, 3)), RANDOM.normal(0, 2, (39, 2))], 1).astype(
    np.float32
)
VALUES[33:35, :2] = (128, 128), (128, 30)  # the center, and a point above it
WORLD = RANDOM.normal(0, 0.5, (39, 3)).astype(np.float32)
MASK = RANDOM.normal(0, 4, (16, 16)).astype(np.float32)
DETECTOR, LANDMARKS = "pose_detector.tflite", "pose_landmarks_detector.tflite"
MIDDLE = 2 * (14 * 28 + 14)
"""The first anchor of the cell right of and below the middle, at 116 of 224 pixels."""


def persons(*rows: tuple[int, float]) -> bytes:
    """Return a detector that sees persons: the anchor and the logit of each.

    The center is in the middle, and the head 56 pixels above it.
    """
    codes, logits = np.zeros((1, 2254, 12)), np.full((1, 2254, 1), -200.0)
    for row, logit in rows:
        codes[0, row, :8] = -4, -4, 40, 40, -4, -4, -4, -60
        logits[0, row] = logit
    return saying({"codes": codes, "logits": logits}, size=224)


def landmarks(presence: float = 0.9, **changed: Any) -> bytes:
    """Return a landmark model that sees the same person in each rectangle, without a map."""
    answers: dict[str, Any] = {
        "landmarks": VALUES.reshape(1, 195),
        "presence": [[presence]],
        "mask": MASK[np.newaxis, :, :, np.newaxis],
        "heat": np.full((1, 8, 8, 39), -9.0),
        "world": WORLD.reshape(1, 117),
    }
    return saying({**answers, **changed}, size=256)


def task_file(detector: bytes | None = None, model: bytes | None = None) -> bytes:
    members = {DETECTOR: detector or persons((MIDDLE, 3.0)), LANDMARKS: model or landmarks()}
    return bundle(members)


def created(content: bytes | None = None, **options: Any) -> vision.PoseLandmarker:
    base = on_cpu(content or task_file())
    return vision.PoseLandmarker(vision.PoseLandmarkerOptions(base_options=base, **options))


def xyz(points: list[Any]) -> np.ndarray:
    return np.array([(each.x, each.y, each.z) for each in points])


def test_a_person_has_landmarks() -> None:
    with created() as task:
        result = task.detect(picture(112, 112))
    assert result.segmentation_masks is None
    # The circle around the person has half of the picture as its radius.
    rect = NormalizedRect(0.5, 0.5, 1.25 * 0.5, 1.25 * 0.5, 0.0)
    wanted = projected(VALUES[:33, :3] / np.float32(256), rect, (112, 112))
    (points,) = result.pose_landmarks
    assert xyz(points) == pytest.approx(wanted, abs=1e-4)
    (world,) = result.pose_world_landmarks
    assert xyz(world) == pytest.approx(WORLD[:33], abs=1e-5)
    sure = 1 / (1 + np.exp(-VALUES[:33, 3:]))
    for found in (points, world):
        assert np.array([(e.visibility, e.presence) for e in found]) == pytest.approx(sure)


def test_without_a_person() -> None:
    for content in (task_file(persons()), task_file(None, landmarks(presence=0.4))):
        with created(content) as task:
            assert task.detect(picture()) == vision.PoseLandmarkerResult([], [])
    with created(task_file(None, landmarks(0.4)), min_pose_presence_confidence=0.3) as task:
        assert len(task.detect(picture()).pose_landmarks) == 1


def test_masks_are_those_of_the_picture() -> None:
    with created(output_segmentation_masks=True) as task:
        masks = task.detect(picture(40, 60)).segmentation_masks
    assert masks is not None
    (mask,) = masks
    assert (mask.image_format, mask.width, mask.height) == (ImageFormat.VEC32F1, 60, 40)
    assert mask.numpy_view().shape == (40, 60)
    plane = RANDOM.integers(0, 256, (16, 16)).astype(np.float32)
    rect = NormalizedRect(0.5, 0.5, 0.4, 0.6, 0.5)
    found = on_picture(plane, rect, (60, 40))
    # Pixels inside of the rectangle are those that the model sees there.
    pixels = np.repeat(found[:, :, np.newaxis], 3, 2).astype(np.uint8)
    again = sampled(pixels, Region.of(rect, (60, 40)), (16, 16))
    assert np.corrcoef(again[1:-1, 1:-1, 0].ravel(), plane[1:-1, 1:-1].ravel())[0, 1] > 0.8
    assert found[0, 0] == found[-1, -1] == 0
    whole = on_picture(plane, NormalizedRect(0.5, 0.5, 1.0, 1.0), (16, 16))
    np.testing.assert_array_equal(whole, plane)


def test_landmarks_are_refined_by_a_map() -> None:
    points = np.array([[0.5, 0.5, 0.1], [0.5, 0.5, 0.1], [-0.5, 0.5, 0.1]], np.float32)
    heat = np.full((20, 10, 3), -50.0, np.float32)
    heat[11, 6, 0] = heat[11, 6, 2] = 3.0
    heat[18, 9, 1] = 3.0  # too far
    heat[11, 6, 1] = -0.5  # too small
    found = refined(points, heat)
    assert found[0] == pytest.approx([0.6, 0.55, 0.1])
    np.testing.assert_array_equal(found[1:], points[1:])


def test_the_square_around_a_person() -> None:
    rect = pose_rect(np.array([0.5, 0.5]), np.array([0.5, 0.25]), (200, 100))
    assert (rect.x_center, rect.y_center, rect.rotation) == pytest.approx((0.5, 0.5, 0))
    assert (rect.width, rect.height) == pytest.approx((1.25 * 0.25, 1.25 * 0.5))
    rect = pose_rect(np.array([0.5, 0.5]), np.array([0.75, 0.5]), (200, 100))
    assert rect.rotation == pytest.approx(math.pi / 2)


def test_a_person_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    mode = vision.RunningMode.VIDEO
    for most, count in ((1, 1), (2, 3)):
        calls: list[object] = []
        with created(running_mode=mode, num_poses=most) as task:
            original = task._persons

            def counted(*each: Any, calls: list[object] = calls, call: Any = original) -> Any:
                calls.append(each)
                return call(*each)

            monkeypatch.setattr(task, "_persons", counted)
            for timestamp in (10, 20, 30):
                assert len(task.detect_for_video(picture(), timestamp).pose_landmarks) == 1
        assert len(calls) == count


def test_a_detected_person_replaces_one_that_is_followed() -> None:
    square = NormalizedRect(0.5, 0.5, 0.4, 0.4, 0.3)
    moved = NormalizedRect(0.52, 0.5, 0.4, 0.4, 0.0)
    far = NormalizedRect(0.9, 0.5, 0.2, 0.4, 0.0)
    with created() as task:
        assert task._joined([square, far], [moved]) == [far, moved]


def test_one_person_is_smoothed_in_a_video() -> None:
    mode = vision.RunningMode.VIDEO
    with created() as task:
        single = task.detect(picture())
    with created(running_mode=mode) as task:
        first = task.detect_for_video(picture(), 33)
        assert xyz(first.pose_landmarks[0]) == pytest.approx(xyz(single.pose_landmarks[0]))
        second = task.detect_for_video(picture(), 66)
        raw = projected(VALUES[:33, :3] / np.float32(256), task.followed[0], (30, 20))
        smooth, before = xyz(second.pose_landmarks[0]), xyz(first.pose_landmarks[0])
        assert not np.allclose(smooth, raw, atol=1e-4)
        assert np.abs(smooth - before).max() < np.abs(raw - before).max()
        task._persons = lambda *_: pytest.fail("the person is followed")  # type: ignore[assignment]
        task.followed = (NormalizedRect(0.5, 0.5, 0.5, 0.5, 0.0),)
        task._least = 1.0
        assert task.detect_for_video(picture(), 99).pose_landmarks == []
        assert task._smoother is None


def test_smoothing_follows_fast_values() -> None:
    """The filter of a value that is at rest, that jumps, and that is at rest again."""
    still = OneEuroFilter(0.05, 0.0)
    fast = OneEuroFilter(0.05, 80.0)
    zero, one = np.zeros(1), np.ones(1)
    for each in (still, fast):
        assert each(zero, 0.1, 1.0) == 0
    weight = 1 / (1 + 10 / (2 * math.pi * 0.05))
    assert still(one, 0.2, 1.0) == pytest.approx(weight)
    speed = 10 / (1 + 10 / (2 * math.pi))
    weight = 1 / (1 + 10 / (2 * math.pi * (0.05 + 80 * speed)))
    assert fast(one, 0.2, 1.0) == pytest.approx(weight)
    # Speeds are relative to the size of the object.
    slow = OneEuroFilter(0.05, 80.0)
    slow(zero, 0.1, 0.001)
    assert slow(one, 0.2, 0.001) < 0.5 < weight


def test_a_camera() -> None:
    found: list[Any] = []
    mode = vision.RunningMode.LIVE_STREAM
    with created(running_mode=mode, result_callback=lambda *each: found.append(each)) as task:
        task.detect_async(picture(), 5)
    assert len(found[0][0].pose_landmarks) == 1


@pytest.mark.parametrize(
    ("content", "options", "error", "message"),
    [
        (None, {"num_poses": 0}, TaskError, "num_poses is 0. Use a positive number"),
        (None, {"min_pose_presence_confidence": 2}, TaskError, "presence_confidence is 2. Use a n"),
        (
            task_file(None, landmarks(world=[[1.0]])),
            {},
            ModelError,
            r"The landmark model returns \[195, 1, 256, 2496, 1\] numbers. It must return 195",
        ),
        (
            task_file(None, saying({"a": [[1.0]]}, size=256)),
            {},
            ModelError,
            r"The landmark model returns \[1\] numbers",
        ),
    ],
)
def test_what_does_not_fit(
    content: bytes | None, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        created(content, **options)
