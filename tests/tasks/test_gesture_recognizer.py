"""Gestures of hands: the inputs of the models, and the choice between two classifiers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from containers import bundle
from hand_models import (
    CANNED,
    CUSTOM,
    MIDDLE,
    WORLD,
    classifier,
    embedder,
    gesture_file,
    palms,
    task_file,
)
from litegpu.errors import ModelError, TaskError
from litegpu.tasks import vision
from litegpu.tasks.components.processors import ClassifierOptions
from litegpu.tasks.vision.core.landmarker import turned_by
from litegpu.tasks.vision.gesture_recognizer import of_unit_size
from seeing_models import saying
from task_models import on_cpu, picture


def created(content: bytes | None = None, **options: Any) -> vision.GestureRecognizer:
    base = on_cpu(content or gesture_file())
    options_ = vision.GestureRecognizerOptions(base_options=base, **options)
    return vision.GestureRecognizer.create_from_options(options_)


def gesture(content: bytes, **options: Any) -> tuple[Any, ...]:
    with created(content, **options) as task:
        ((found,),) = task.recognize(picture()).gestures
    return (found.index, found.category_name, found.display_name, pytest.approx(found.score))


def test_a_hand_has_a_gesture() -> None:
    content = gesture_file()
    assert gesture(content) == (-1, "Victory", "", 0.5)
    landmarks = vision.HandLandmarkerOptions(base_options=on_cpu(task_file()))
    with created(content) as task, vision.HandLandmarker(landmarks) as hands_alone:
        found, wanted = task.recognize(picture()), hands_alone.detect(picture())
    assert (found.handedness, found.hand_landmarks, found.hand_world_landmarks) == (
        *(wanted.handedness, wanted.hand_landmarks, wanted.hand_world_landmarks),
    )


def test_without_a_hand() -> None:
    with created(gesture_file(hand_file=task_file(palms()))) as task:
        found = task.recognize(picture())
    assert found == vision.GestureRecognizerResult([], [], [], [])


@pytest.mark.parametrize(
    ("custom", "wanted"),
    [
        ([0.1, 0.15], (-1, "rock", "", 0.15)),
        ([0.9, 0.1], (-1, "Victory", "", 0.5)),
    ],
)
def test_custom_gestures_precede(custom: list[float], wanted: tuple[Any, ...]) -> None:
    assert gesture(gesture_file(custom=classifier(CUSTOM, custom))) == wanted


def test_no_gesture_of_either_classifier() -> None:
    content = gesture_file(classifier(CANNED, [0.7, 0.2, 0.1]), classifier(CUSTOM, [0.9, 0.1]))
    assert gesture(content) == (-1, "None", "", 0.9)


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"max_results": 1}, "Victory"),
        ({"category_denylist": ["Victory"]}, "Open_Palm"),
        ({"category_allowlist": ["None"]}, "None"),
        ({"score_threshold": 0.4}, "Victory"),
    ],
)
def test_options_of_the_canned_gestures(options: dict[str, Any], wanted: str) -> None:
    settings = {"canned_gesture_classifier_options": ClassifierOptions(**options)}
    assert gesture(gesture_file(), **settings)[1] == wanted


def test_options_of_the_custom_gestures() -> None:
    content = gesture_file(custom=classifier(CUSTOM, [0.1, 0.9]))
    settings = {"custom_gesture_classifier_options": ClassifierOptions(score_threshold=0.95)}
    assert gesture(content, **settings)[1] == "Victory"


def test_a_hand_whose_gestures_are_not_allowed() -> None:
    settings = ClassifierOptions(score_threshold=0.8)
    with created(canned_gesture_classifier_options=settings) as task:
        found = task.recognize(picture())
    assert found.gestures == [[]]
    assert len(found.handedness) == len(found.hand_landmarks) == 1


@pytest.mark.parametrize("degrees", [0, 90])
def test_the_embedder_gets_landmarks_relative_to_the_wrist(
    degrees: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []
    with created() as task:
        original = task._embedder

        def recorded(*each: Any) -> Any:
            given.extend(each)
            return original(*each)

        monkeypatch.setattr(task, "_embedder", recorded)
        options = vision.ImageProcessingOptions(rotation_degrees=degrees)
        result = task.recognize(picture(100, 200), options)
    (marks,), (world,) = result.hand_landmarks, result.hand_world_landmarks
    points = np.array([(each.x, each.y, each.z) for each in marks], np.float32) * (1, 0.5, 1)
    meters = np.array([(each.x, each.y, each.z) for each in world], np.float32)
    angle = math.radians(degrees)  # against the rotation of the picture
    for numbers, each in ((given[0], points), (given[2], meters)):
        turned = turned_by(each - each[0], angle)
        extent = np.ptp(turned[:, :2], axis=0).max()
        assert numbers == pytest.approx(turned / extent, abs=1e-3)
        assert numbers.dtype == np.float32
    assert given[1] == pytest.approx(0.8)


def test_points_without_extent_stay_finite() -> None:
    assert of_unit_size(np.ones((21, 3), np.float32)).tolist() == np.zeros((21, 3)).tolist()
    assert of_unit_size(WORLD)[0].tolist() == [0, 0, 0]


def test_a_video_and_a_camera() -> None:
    modes, found = vision.RunningMode, []
    two = gesture_file(hand_file=task_file(palms((0, 2.0), (MIDDLE, 3.0))))
    with created(two, running_mode=modes.VIDEO, num_hands=2) as task:
        for timestamp in (0, 33):
            assert len(task.recognize_for_video(picture(200, 200), timestamp).gestures) == 2
        assert len(task.followed) == 2

    def show(*each: Any) -> None:
        found.append(each)

    with created(running_mode=modes.LIVE_STREAM, result_callback=show) as task:
        task.recognize_async(picture(), 5)
    assert found[0][0].gestures[0][0].category_name == "Victory" and found[0][2] == 5


@pytest.mark.parametrize(
    ("content", "options", "error", "message"),
    [
        (
            task_file(),
            {},
            ModelError,
            "has no 'hand_landmarker.task:hand_detector.tflite', but .'hand_detector.tflite', ",
        ),
        (
            gesture_file(classifier(CANNED, [0.2, 0.3, 0.5], size=4)),
            {},
            ModelError,
            r"A gesture classifier takes \[4\] numbers, and the embedder returns \[127\]. Use",
        ),
        (
            gesture_file(custom=saying({"scores": [[0.5, 0.5]]}, size=3)),
            {},
            ModelError,
            r"A gesture classifier takes \[27\] numbers",
        ),
        (
            bundle(
                {
                    "hand_landmarker.task": task_file(),
                    "hand_gesture_recognizer.task": bundle(
                        {
                            "gesture_embedder.tflite": embedder([(1, 21, 3)]),
                            "canned_gesture_classifier.tflite": classifier(CANNED, [1, 0, 0]),
                        }
                    ),
                }
            ),
            {},
            ModelError,
            r"The gesture embedder takes \[63\] numbers. It must take 63 \(landmarks\), 1",
        ),
        (
            None,
            {"canned_gesture_classifier_options": ClassifierOptions(max_results=0)},
            TaskError,
            "max_results is 0. Use a positive number",
        ),
        (
            None,
            {"custom_gesture_classifier_options": ClassifierOptions(max_results=0)},
            TaskError,
            "max_results is 0. Use a positive number",
        ),
        (None, {"num_hands": 0}, TaskError, "num_hands is 0. Use a positive number"),
    ],
)
def test_what_does_not_fit(
    content: bytes | None, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        created(content, **options)
