"""The names of landmarks and their connections are those of MediaPipe."""

from __future__ import annotations

import importlib
from dataclasses import asdict
from typing import Any

import pytest

from litegpu.tasks import vision
from litegpu.tasks.components import containers
from litegpu.tasks.vision.core.connections import Connection
from litegpu.tasks.vision.face_landmarker import BLENDSHAPES, Blendshapes
from litegpu.tasks.vision.hand_landmarker import HandLandmark

CLASSES = {
    vision.FaceLandmarksConnections: 478,
    vision.HandLandmarksConnections: 21,
    vision.PoseLandmarksConnections: 33,
}


def lists(owner: Any) -> dict[str, list[Connection]]:
    return {name: value for name, value in vars(owner).items() if isinstance(value, list)}


@pytest.mark.parametrize("owner", CLASSES)
def test_connections_are_between_landmarks(owner: Any) -> None:
    for name, found in lists(owner).items():
        points = [point for each in found for point in (each.start, each.end)]
        assert 0 <= min(points) < max(points) < CLASSES[owner], name
        assert len({(each.start, each.end) for each in found}) == len(found), name
    assert owner.Connection(1, 2) == Connection(start=1, end=2)


def test_the_mesh_of_a_face_has_its_lines() -> None:
    face = lists(vision.FaceLandmarksConnections)
    counts = {name.removeprefix("FACE_LANDMARKS_"): len(each) for name, each in face.items()}
    assert counts == {
        **{"LIPS": 40, "LEFT_EYE": 16, "LEFT_EYEBROW": 8, "LEFT_IRIS": 4, "RIGHT_EYE": 16},
        **{"RIGHT_EYEBROW": 8, "RIGHT_IRIS": 4, "FACE_OVAL": 36, "NOSE": 25, "CONTOURS": 124},
        "TESSELATION": 852 * 3,
    }
    edges = {frozenset(asdict(each).values()) for each in face["FACE_LANDMARKS_TESSELATION"]}
    assert set().union(*edges) == set(range(468))
    assert 468 - len(edges) + 852 == 1 - 3  # Euler: a disk with holes for the eyes and the mouth
    outline = {frozenset(asdict(each).values()) for each in face["FACE_LANDMARKS_FACE_OVAL"]}
    assert outline < edges


def test_all_points_of_a_hand_and_of_a_person_are_connected() -> None:
    hand = lists(vision.HandLandmarksConnections)["HAND_CONNECTIONS"]
    pose = lists(vision.PoseLandmarksConnections)["POSE_LANDMARKS"]
    for found, count in ((hand, 21), (pose, 33)):
        assert {p for each in found for p in (each.start, each.end)} == set(range(count))
    assert (len(hand), len(pose)) == (21, 35)


def test_names_of_landmarks_and_expressions() -> None:
    assert [each.value for each in Blendshapes] == list(range(52))
    spelled = [each.name.replace("_", "").lower() for each in Blendshapes]
    assert spelled == [name.strip("_").lower() for name in BLENDSHAPES]
    assert (len(HandLandmark), HandLandmark.PINKY_TIP) == (21, 20)
    assert (len(vision.PoseLandmark), vision.PoseLandmark.RIGHT_FOOT_INDEX) == (33, 32)


def test_a_container_of_landmarks() -> None:
    rect = containers.NormalizedRect(0.5, 0.5, 1, 1)
    found = containers.LandmarksDetectionResult([], [], None, rect)
    assert found.rect is rect and found.world_landmarks is None


@pytest.mark.parametrize("owner", CLASSES)
def test_mediapipe_has_the_same_connections(owner: Any) -> None:
    pytest.importorskip("mediapipe", reason="a large package that only this comparison needs")
    theirs = getattr(importlib.import_module("mediapipe.tasks.python.vision"), owner.__name__)
    for name, found in lists(theirs).items():
        assert [asdict(each) for each in found] == [asdict(each) for each in lists(owner)[name]]
