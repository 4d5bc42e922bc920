"""The connections between the landmarks of faces, hands and persons, as in MediaPipe."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from litegpu.tasks.vision.core.face_tesselation import TRIANGLES


@dataclass
class Connection:
    """A line between two landmarks, which are numbers."""

    start: int
    end: int


def _chains(*chains: tuple[int, ...]) -> list[Connection]:
    """Return the connections of consecutive landmarks."""
    return [Connection(*pair) for chain in chains for pair in pairwise(chain)]


# fmt: off
class FaceLandmarksConnections:
    """The lines of a face, of its features, and of a mesh of triangles."""

    Connection = Connection
    FACE_LANDMARKS_LIPS = _chains(
        (61, 146, 91, 181, 84, 17, 314, 405, 321, 375, 291),
        (61, 185, 40, 39, 37, 0, 267, 269, 270, 409, 291),
        (78, 95, 88, 178, 87, 14, 317, 402, 318, 324, 308),
        (78, 191, 80, 81, 82, 13, 312, 311, 310, 415, 308),
    )
    FACE_LANDMARKS_LEFT_EYE = _chains(
        (263, 249, 390, 373, 374, 380, 381, 382, 362),
        (263, 466, 388, 387, 386, 385, 384, 398, 362),
    )
    FACE_LANDMARKS_LEFT_EYEBROW = _chains(
        (276, 283, 282, 295, 285),
        (300, 293, 334, 296, 336),
    )
    FACE_LANDMARKS_LEFT_IRIS = _chains(
        (474, 475, 476, 477, 474),
    )
    FACE_LANDMARKS_RIGHT_EYE = _chains(
        (33, 7, 163, 144, 145, 153, 154, 155, 133),
        (33, 246, 161, 160, 159, 158, 157, 173, 133),
    )
    FACE_LANDMARKS_RIGHT_EYEBROW = _chains(
        (46, 53, 52, 65, 55),
        (70, 63, 105, 66, 107),
    )
    FACE_LANDMARKS_RIGHT_IRIS = _chains(
        (469, 470, 471, 472, 469),
    )
    FACE_LANDMARKS_FACE_OVAL = _chains(
        (10, 338, 297, 332, 284, 251, 389, 356, 454, 323, 361, 288, 397, 365, 379, 378, 400,
        377, 152, 148, 176, 149, 150, 136, 172, 58, 132, 93, 234, 127, 162, 21, 54, 103, 67,
        109, 10),
    )
    FACE_LANDMARKS_NOSE = _chains(
        (168, 6, 197, 195, 5, 4, 1, 19, 94, 2),
        (98, 97, 2, 326, 327, 294, 278, 344, 440, 275, 4, 45, 220, 115, 48, 64, 98),
    )
    FACE_LANDMARKS_CONTOURS = (
        FACE_LANDMARKS_LIPS + FACE_LANDMARKS_LEFT_EYE + FACE_LANDMARKS_LEFT_EYEBROW
        + FACE_LANDMARKS_RIGHT_EYE + FACE_LANDMARKS_RIGHT_EYEBROW + FACE_LANDMARKS_FACE_OVAL
    )
    FACE_LANDMARKS_TESSELATION = _chains(*((a, b, c, a) for a, b, c in TRIANGLES))


class HandLandmarksConnections:
    """The lines of a hand, of its palm and of its fingers."""

    Connection = Connection
    HAND_PALM_CONNECTIONS = _chains((0, 1, 5), (9, 13, 17), (5, 9), (0, 17))
    HAND_THUMB_CONNECTIONS = _chains((1, 2, 3, 4))
    HAND_INDEX_FINGER_CONNECTIONS = _chains((5, 6, 7, 8))
    HAND_MIDDLE_FINGER_CONNECTIONS = _chains((9, 10, 11, 12))
    HAND_RING_FINGER_CONNECTIONS = _chains((13, 14, 15, 16))
    HAND_PINKY_FINGER_CONNECTIONS = _chains((17, 18, 19, 20))
    HAND_CONNECTIONS = (
        HAND_PALM_CONNECTIONS + HAND_THUMB_CONNECTIONS + HAND_INDEX_FINGER_CONNECTIONS
        + HAND_MIDDLE_FINGER_CONNECTIONS + HAND_RING_FINGER_CONNECTIONS
        + HAND_PINKY_FINGER_CONNECTIONS
    )


class PoseLandmarksConnections:
    """The lines of a person."""

    Connection = Connection
    POSE_LANDMARKS = _chains(
        (0, 1, 2, 3, 7), (0, 4, 5, 6, 8), (9, 10), (11, 12), (11, 13, 15, 17), (15, 19), (15,
        21), (17, 19), (12, 14, 16, 18), (16, 20), (16, 22), (18, 20), (11, 23), (12, 24), (23,
        24), (23, 25), (24, 26), (25, 27), (26, 28), (27, 29), (28, 30), (29, 31), (30, 32),
        (27, 31), (28, 32),
    )
# fmt: on
