"""Faces: landmarks, blendshapes, poses, and tracking in a video."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from containers import bundle
from face_models import (
    BLENDSHAPES,
    CANONICAL,
    DETECTOR,
    FACE,
    GEOMETRY,
    LANDMARKS,
    MIDDLE,
    blendshapes,
    face_file,
    faces,
    geometry,
    landmarks,
)
from litegpu.errors import ModelError, TaskError
from litegpu.files import wire
from litegpu.tasks import vision
from litegpu.tasks.components.containers import NormalizedRect
from litegpu.tasks.vision.core.face_geometry import FaceGeometry
from litegpu.tasks.vision.core.landmarker import projected
from litegpu.tasks.vision.face_landmarker import face_rect
from seeing_models import saying
from task_models import on_cpu, picture

MODES = vision.RunningMode


def created(content: bytes | None = None, **options: Any) -> vision.FaceLandmarker:
    base = on_cpu(content or face_file())
    return vision.FaceLandmarker(vision.FaceLandmarkerOptions(base_options=base, **options))


def coordinates(face: list[Any]) -> Any:
    return np.array([(each.x, each.y, each.z) for each in face])


def test_a_face_has_landmarks() -> None:
    with created() as task:
        result = task.detect(picture(128, 128))
    assert (result.face_blendshapes, result.facial_transformation_matrixes) == ([], [])
    (face,) = result.face_landmarks
    side = 1.5 * 40 / 128
    rect = NormalizedRect(0.5, 0.5, side, side, 0.0)
    assert coordinates(face) == pytest.approx(
        projected(FACE / np.float32(192), rect, (128, 128)), abs=1e-5
    )
    assert {(each.visibility, each.presence) for each in face} == {(0.0, 0.0)}


def test_without_a_face() -> None:
    for members in ({DETECTOR: faces()}, {LANDMARKS: landmarks(-0.1)}):
        with created(face_file(members)) as task:
            assert task.detect(picture()) == vision.FaceLandmarkerResult([], [], [])
    unsure = face_file({LANDMARKS: landmarks(-0.1)})
    with created(unsure, min_face_presence_confidence=0.4) as task:
        assert len(task.detect(picture()).face_landmarks) == 1
    with created(min_face_detection_confidence=0.97) as task:
        assert task.detect(picture()).face_landmarks == []


def test_the_best_faces() -> None:
    two = face_file({DETECTOR: faces((0, 2.0), (MIDDLE, 3.0))})
    for most, count in ((1, 1), (2, 2), (5, 2)):
        with created(two, num_faces=most) as task:
            assert len(task.detect(picture(200, 200)).face_landmarks) == count


def test_blendshapes_follow_from_landmarks_in_pixels() -> None:
    with created(output_face_blendshapes=True) as task:
        result = task.detect(picture(100, 200))
    (face,), (shapes,) = result.face_landmarks, result.face_blendshapes
    assert len(shapes) == 52
    names = [each.category_name for each in shapes]
    assert names[:3] == ["_neutral", "browDownLeft", "browDownRight"]
    assert (names[25], names[-1]) == ("jawOpen", "noseSneerRight")
    assert [each.index for each in shapes] == list(range(52))
    assert {each.display_name for each in shapes} == {""}
    for place, number in enumerate((0, 1, 4, 5, 6, 7, 8, 10)):
        wanted = coordinates(face)[number, :2] * (200, 100)
        found = [each.score for each in shapes[2 * place : 2 * place + 2]]
        assert found == pytest.approx(wanted, rel=1e-4)


def turned(angle: float, axis: int) -> Any:
    """Return the matrix of a rotation about an axis."""
    one, other = [each for each in range(3) if each != axis]
    found = np.eye(3)
    found[one, one] = found[other, other] = math.cos(angle)
    found[one, other], found[other, one] = -math.sin(angle), math.sin(angle)
    return found


def seen(pose: Any, size: tuple[int, int]) -> Any:
    """Return the landmarks of the canonical face, with a pose, before MediaPipe's camera."""
    points = CANONICAL @ pose[:3, :3].T + pose[:3, 3]
    depth = -points[:, 2]
    height = 2 * math.tan(math.radians(31.5))
    width = height * size[0] / size[1]
    x, y = (points[:, :2] / depth[:, np.newaxis]).T
    return np.column_stack([0.5 + x / width, 0.5 - y / height, depth / depth.mean() / width])


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("angle", "axis", "place"),
    [
        (0.0, 0, (0, 0, -200)),
        (0.4, 0, (5, -8, -150)),
        (-0.5, 1, (-20, 3, -300)),
        (1.2, 2, (0, 0, -400)),
    ],
)
def test_a_pose(angle: float, axis: int, place: tuple[int, ...], packed: bool) -> None:
    pose = np.eye(4)
    pose[:3, :3], pose[:3, 3] = turned(angle, axis), place
    found = FaceGeometry.of(geometry(packed=packed)).pose(seen(pose, (640, 480)), (640, 480))
    assert found is not None
    assert found[:3, :3] == pytest.approx(pose[:3, :3], abs=0.02)
    assert found[:3, 3] == pytest.approx(pose[:3, 3], abs=0.01 * abs(place[2]))
    assert found[3].tolist() == [0, 0, 0, 1]


def test_faces_without_a_pose() -> None:
    known = FaceGeometry.of(geometry())
    assert known.pose(np.full((468, 3), 0.5), (100, 100)) is None
    points = np.full((468, 3), 0.5)
    points[0, 0] = 0.7  # a landmark without a weight: those with weights are one point
    assert known.pose(points, (100, 100)) is None
    assert FaceGeometry(known.canonical * 0, known.weights).pose(points, (100, 100)) is None


def test_matrices_of_a_result() -> None:
    with created(output_facial_transformation_matrixes=True) as task:
        result = task.detect(picture(100, 200))
    (face,), (matrix,) = result.face_landmarks, result.facial_transformation_matrixes
    known = FaceGeometry.of(geometry())
    assert matrix == pytest.approx(known.pose(coordinates(face)[:468], (200, 100)), rel=1e-3)
    assert matrix.shape == (4, 4) and matrix.dtype == np.float64


def count_calls(
    task: vision.FaceLandmarker, monkeypatch: pytest.MonkeyPatch
) -> list[Callable[..., Any]]:
    """Have the detector of a task add each of its calls to the list that is returned."""
    calls: list[Any] = []
    original = task._faces

    def counted(*each: Any) -> Any:
        calls.append(each)
        return original(*each)

    monkeypatch.setattr(task, "_faces", counted)
    return calls


def test_a_face_is_followed_without_the_detector(monkeypatch: pytest.MonkeyPatch) -> None:
    with created(running_mode=MODES.VIDEO) as task:
        calls = count_calls(task, monkeypatch)
        for timestamp in (0, 33):
            assert len(task.detect_for_video(picture(), timestamp).face_landmarks) == 1
        assert len(calls) == len(task.followed) == 1
    with created(running_mode=MODES.VIDEO, num_faces=2) as task:
        calls = count_calls(task, monkeypatch)
        for timestamp in (0, 33):  # one of two is followed, so another one is looked for
            task.detect_for_video(picture(), timestamp)
        assert len(calls) == 2


def test_a_detected_face_replaces_one_that_is_followed() -> None:
    square = NormalizedRect(0.5, 0.5, 0.4, 0.4, 0.3)
    moved, far = NormalizedRect(0.52, 0.5, 0.4, 0.4), NormalizedRect(0.9, 0.5, 0.4, 0.4)
    with created() as task:
        assert task._joined([square, far], [moved]) == [far, moved]


def test_landmarks_of_a_single_face_are_smoothed(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}
    for most in (1, 2):
        with created(running_mode=MODES.VIDEO, num_faces=most) as task:
            task.detect_for_video(picture(96, 96), 33)
            task.followed = (NormalizedRect(0.52, 0.5, 0.4, 0.4),)
            monkeypatch.setattr(task, "_joined", lambda followed, detected: followed)
            found[most] = coordinates(task.detect_for_video(picture(96, 96), 66).face_landmarks[0])
    assert found[1][:, 0] != pytest.approx(found[2][:, 0], abs=1e-4)
    assert found[1][:, 0] == pytest.approx(found[2][:, 0], abs=0.1)


def test_smoothing_starts_again_after_a_frame_without_a_face() -> None:
    with created(running_mode=MODES.VIDEO) as task:
        task.detect_for_video(picture(), 33)
        first = task._smoother
        task._result([], NormalizedRect(0.5, 0.5, 1, 1), (30, 20), 66)
        assert first is not None and task._smoother is None


def test_a_camera() -> None:
    found: list[Any] = []
    mode = MODES.LIVE_STREAM
    with created(running_mode=mode, result_callback=lambda *each: found.append(each)) as task:
        task.detect_async(picture(), 0)
    assert len(found[0][0].face_landmarks) == 1


def test_the_next_rectangle_is_turned_with_the_eyes() -> None:
    points = np.full((478, 3), 0.5, np.float32)
    points[0, :2], points[1, :2] = (0.3, 0.4), (0.7, 0.6)
    points[33, :2], points[263, :2] = (0.4, 0.45), (0.6, 0.45)
    rect = face_rect(points, (200, 100))
    assert (rect.x_center, rect.y_center, rect.rotation) == pytest.approx((0.5, 0.5, 0))
    assert (rect.width, rect.height) == pytest.approx((0.6, 1.2))
    points[263, :2] = 0.4, 0.85  # the other eye is below: the face is turned clockwise
    assert face_rect(points, (200, 100)).rotation == pytest.approx(math.pi / 2)


def test_the_depth_of_a_turned_face() -> None:
    rect = NormalizedRect(0.5, 0.5, 0.2, 0.4, math.pi / 2)
    point = np.array([[0.5, 0.5, 1.0]], np.float32)
    found = projected(point, rect, (200, 100), depth_by_side=True)
    assert found == pytest.approx(np.array([[0.5, 0.5, 0.4]]))


WITH_POSES = {"output_facial_transformation_matrixes": True}


@pytest.mark.parametrize(
    ("content", "options", "error", "message"),
    [
        (None, {"num_faces": 0}, TaskError, "num_faces is 0. Use a positive number"),
        (
            None,
            {"min_face_presence_confidence": 2},
            TaskError,
            "min_face_presence_confidence is 2. Use",
        ),
        (
            bundle({DETECTOR: faces(), LANDMARKS: landmarks()}),
            {"output_face_blendshapes": True},
            ModelError,
            "has no 'face_blendshapes.tflite', but .'face_detector.tflite', ",
        ),
        (
            bundle({DETECTOR: faces(), LANDMARKS: landmarks()}),
            WITH_POSES,
            ModelError,
            f"has no '{GEOMETRY}', but",
        ),
        (
            face_file({LANDMARKS: saying({"points": [[1.0]]}, size=192)}),
            {},
            ModelError,
            r"The landmark model returns \[1\] numbers. It must return 1434 \(landmarks\) and",
        ),
        (
            face_file({BLENDSHAPES: blendshapes(145)}),
            {"output_face_blendshapes": True},
            ModelError,
            r"The blendshape model takes \[290\] and returns \[52\] numbers. It must take 292",
        ),
        (
            face_file({BLENDSHAPES: blendshapes(count=51)}),
            {"output_face_blendshapes": True},
            ModelError,
            r"The blendshape model takes \[292\] and returns \[51\] numbers",
        ),
        *(
            (
                face_file({GEOMETRY: content}),
                WITH_POSES,
                ModelError,
                rf"The metadata of the face's geometry are damaged \(.*{why}.*\). Download",
            )
            for content, why in (
                (geometry(vertices=467), "cannot reshape array"),
                (geometry({4: -1.0}), "the weights or the vertices are not numbers"),
                (geometry({}), "the weights or the vertices are not numbers"),
                (geometry({4: math.inf}), "the weights or the vertices are not numbers"),
                (geometry({500: 1.0}), "out of bounds"),
                (geometry()[:-3], "the data end 3 bytes before"),
                (wire.message((1, 5)), "a number where a message should be"),
                (wire.message((2, wire.message((1, 4)))), "without its number or its weight"),
                (wire.message((2, wire.message((1, b"4"), (2, 1.0)))), "indices"),
            )
        ),
    ],
)
def test_what_does_not_fit(
    content: bytes | None, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        created(content, **options)
