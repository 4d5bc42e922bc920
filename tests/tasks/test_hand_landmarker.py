"""Hands, their landmarks, and tracking in a video."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from containers import bundle
from hand_models import DETECTOR, HAND, MIDDLE, WORLD, hands, palms, task_file
from litegpu.errors import ModelError, TaskError
from litegpu.tasks import BaseOptions, vision
from litegpu.tasks.components.containers import NormalizedRect
from litegpu.tasks.vision.core.hands import Hand, hand_rect
from litegpu.tasks.vision.core.landmarker import projected
from litegpu.tasks.vision.core.rects import expanded, is_new, rotation
from seeing_models import saying
from task_models import CPU, on_cpu, picture


def created(content: bytes | None = None, **options: Any) -> vision.HandLandmarker:
    base = on_cpu(content or task_file())
    return vision.HandLandmarker(vision.HandLandmarkerOptions(base_options=base, **options))


def test_a_hand_has_landmarks_and_a_side() -> None:
    with created() as task:
        result = task.detect(picture(96, 96))
    ((side,),) = result.handedness
    assert (side.index, side.category_name, side.display_name) == (0, "Right", "Right")
    assert side.score == pytest.approx(0.8)
    angle = (90 - math.pi / 2 + math.pi) % (2 * math.pi) - math.pi
    # The palm has a fifth of the picture, and the rectangle is moved toward the fingers.
    shift = 0.5 * 20 / 96
    x, y = 0.5 + shift * math.sin(angle), 0.5 - shift * math.cos(angle)
    rect = NormalizedRect(x, y, 2.6 * 20 / 96, 2.6 * 20 / 96, angle)
    wanted = projected(HAND / (224, 224, 224 * 0.4), rect, (96, 96))
    (landmarks,) = result.hand_landmarks
    assert np.array([(e.x, e.y, e.z) for e in landmarks]) == pytest.approx(wanted, abs=1e-4)
    assert {(each.visibility, each.presence) for each in landmarks} == {(0.0, 0.0)}
    (world,) = result.hand_world_landmarks
    found = np.array([(each.x, each.y, each.z) for each in world])
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    assert found[:, :2] == pytest.approx(WORLD[:, :2] @ turn.T, abs=1e-5)
    assert found[:, 2] == pytest.approx(WORLD[:, 2], abs=1e-6)


def test_a_left_hand() -> None:
    with created(task_file(None, hands(right=0.3))) as task:
        ((side,),) = task.detect(picture()).handedness
    assert (side.index, side.category_name) == (1, "Left")
    assert side.score == pytest.approx(0.7)


def test_without_a_hand() -> None:
    for content in (task_file(palms()), task_file(None, hands(presence=0.4))):
        with created(content) as task:
            result = task.detect(picture())
        assert result == vision.HandLandmarkerResult([], [], [])
    with created(task_file(None, hands(0.4)), min_hand_presence_confidence=0.3) as task:
        assert len(task.detect(picture()).handedness) == 1
    with created(task_file(palms((MIDDLE, 3.0))), min_hand_detection_confidence=0.97) as task:
        assert task.detect(picture()).handedness == []


def test_the_best_hands_are_looked_at_and_each_is_returned_once() -> None:
    two = palms((0, 2.0), (MIDDLE, 3.0))
    for most, count in ((1, 1), (2, 2), (5, 2)):
        with created(task_file(two), num_hands=most) as task:
            assert len(task.detect(picture(200, 200)).hand_landmarks) == count


@pytest.mark.parametrize(("moved", "count"), [(0.0, 1), (0.05, 1), (0.2, 2), (0.9, 2)])
def test_landmarks_that_are_near_are_those_of_one_hand(moved: float, count: int) -> None:
    points = HAND / np.float32(224)
    rect = NormalizedRect(0.5, 0.5, 1.0, 1.0)
    found = [Hand(each, rect, WORLD, 0.5) for each in (points, points + np.float32(moved))]
    with created() as task:
        assert len(task._distinct(found, (100, 100))) == count


def count_calls(
    task: vision.HandLandmarker, calls: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Have the detector of a task add each of its calls to a list."""
    original = task._palms

    def counted(*each: Any) -> Any:
        calls.append(each)
        return original(*each)

    monkeypatch.setattr(task, "_palms", counted)


def test_a_hand_is_followed_without_the_detector(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[object] = []
    modes = vision.RunningMode
    with created(running_mode=modes.VIDEO) as task:
        count_calls(task, calls, monkeypatch)
        task.detect_for_video(picture(), 0)
        assert len(calls) == 1 and len(task.followed) == 1
        second = task.detect_for_video(picture(), 33)
        assert len(calls) == 1 and len(second.hand_landmarks) == 1
    with created(num_hands=2, running_mode=modes.VIDEO) as task:
        count_calls(task, calls, monkeypatch)
        for timestamp in (0, 33):  # one of two is followed, so another one is looked for
            task.detect_for_video(picture(), timestamp)
        assert len(calls) == 3
    with created() as task:
        count_calls(task, calls, monkeypatch)
        task.detect(picture())
        task.detect(picture())
        assert len(calls) == 5


def test_a_detected_hand_that_is_followed_is_not_looked_at_twice() -> None:
    square = NormalizedRect(0.5, 0.5, 0.4, 0.4, 0.3)
    with created(min_tracking_confidence=0.5) as task:
        moved = NormalizedRect(0.52, 0.5, 0.4, 0.4, 0.0)
        far = NormalizedRect(0.8, 0.5, 0.4, 0.4, 0.0)
        assert task._joined([square], [moved, far, far]) == [square, far]
    assert is_new(square, [], 0.5)


def test_a_camera() -> None:
    found: list[Any] = []
    mode = vision.RunningMode.LIVE_STREAM
    with created(running_mode=mode, result_callback=lambda *each: found.append(each)) as task:
        task.detect_async(picture(), 0)
    assert len(found[0][0].hand_landmarks) == 1


def test_the_next_rectangle_is_turned_with_the_hand() -> None:
    """Fingers that point upward give an upright square; a turned hand a turned one."""
    points = np.zeros((21, 3), np.float32)
    points[:, 0], points[:, 1] = 0.5, np.linspace(0.8, 0.3, 21)
    points[[1, 17], 0] = 0.4, 0.6
    rect = hand_rect(points, (100, 100))
    assert rect.rotation == pytest.approx(0, abs=1e-6)
    assert rect.x_center == pytest.approx(0.5)
    low, high = points[18, 1], points[0, 1]
    assert rect.y_center == pytest.approx((low + high) / 2 - 0.1 * (high - low))
    assert (rect.width, rect.height) == pytest.approx((2 * (high - low),) * 2)
    turned = points.copy()
    turned[:, 0], turned[:, 1] = 1 - points[:, 1], points[:, 0]
    side = hand_rect(turned, (100, 100))
    assert side.rotation == pytest.approx(math.pi / 2)
    assert (side.x_center, side.y_center) == pytest.approx((1 - rect.y_center, rect.x_center))
    # Rectangles are square in pixels.
    wide = hand_rect(points, (200, 100))
    assert wide.width * 2 == pytest.approx(wide.height)


def test_rotation_and_size_are_those_of_pixels() -> None:
    start, end = np.array([0.5, 0.5]), np.array([0.6, 0.3])
    assert rotation(start, end, math.pi / 2, (200, 100)) == pytest.approx(math.pi / 4)
    rect = expanded(NormalizedRect(0.5, 0.5, 0.1, 0.4, 0.0), (200, 100), 2.0, 0.5)
    assert (rect.x_center, rect.y_center) == pytest.approx((0.5, 0.7))
    assert (rect.width, rect.height) == pytest.approx((0.4, 0.8))


def test_depth_is_relative_to_the_width_of_the_picture() -> None:
    rect = NormalizedRect(0.5, 0.5, 0.2, 0.4, math.pi / 2)
    found = projected(np.array([[0.5, 0.5, 1.0], [1.0, 0.5, 0.0]], np.float32), rect, (200, 100))
    assert found == pytest.approx(np.array([[0.5, 0.5, 0.2], [0.5, 0.7, 0.0]]))


def test_a_bundle_in_a_file(tmp_path: Path) -> None:
    path = tmp_path / "hand.task"
    path.write_bytes(task_file())
    base = BaseOptions(path, delegate=CPU)
    with vision.HandLandmarker(vision.HandLandmarkerOptions(base_options=base)) as task:
        assert len(task.detect(picture()).handedness) == 1


@pytest.mark.parametrize(
    ("content", "options", "error", "message"),
    [
        (None, {"num_hands": 0}, TaskError, "num_hands is 0. Use a positive number"),
        (
            None,
            {"min_tracking_confidence": 2},
            TaskError,
            "min_tracking_confidence is 2. Use",
        ),
        (hands(), {}, ModelError, "'model_asset_buffer' is not a bundle of models. Give a bundle"),
        (
            bundle({DETECTOR: palms()}),
            {},
            ModelError,
            "has no 'hand_landmarks_detector.tflite', but .'hand_detector.tflite'.. Give a bundle",
        ),
        (
            task_file(None, saying({"a": [[1.0]]}, size=224)),
            {},
            ModelError,
            r"The landmark model returns \[1\] numbers. It must return 63",
        ),
    ],
)
def test_what_does_not_fit(
    content: bytes | None, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        created(content, **options)


def test_a_bundle_that_is_missing() -> None:
    options = vision.HandLandmarkerOptions(base_options=BaseOptions("absent.task"))
    with pytest.raises(ModelError, match=r"'absent.task' cannot be read: No such file or"):
        vision.HandLandmarker(options)
