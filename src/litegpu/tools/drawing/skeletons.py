"""The connections between the points of bodies, hands and faces, by the number of points."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

Edges = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Skeleton:
    """The points of a figure: names, connections, and the number of drawn points."""

    what: str
    names: tuple[str, ...] = ()
    edges: Edges = ()
    drawn: int | None = None
    """Number of drawn points; None for all. Further points only serve for cropping."""


def _chains(*chains: tuple[int, ...]) -> Edges:
    return tuple(pair for chain in chains for pair in pairwise(chain))


# fmt: off
BODY_17 = Skeleton("body", (
    "nose", "left eye", "right eye", "left ear", "right ear", "left shoulder", "right shoulder",
    "left elbow", "right elbow", "left wrist", "right wrist", "left hip", "right hip",
    "left knee", "right knee", "left ankle", "right ankle",
), _chains((3, 1, 0, 2, 4), (9, 7, 5, 6, 8, 10), (5, 11, 13, 15), (6, 12, 14, 16), (11, 12)))
_BODY_33_NAMES = (
    "nose", "left eye inner", "left eye", "left eye outer", "right eye inner", "right eye",
    "right eye outer", "left ear", "right ear", "mouth left", "mouth right", "left shoulder",
    "right shoulder", "left elbow", "right elbow", "left wrist", "right wrist", "left pinky",
    "right pinky", "left index", "right index", "left thumb", "right thumb", "left hip",
    "right hip", "left knee", "right knee", "left ankle", "right ankle", "left heel",
    "right heel", "left foot index", "right foot index",
)
_BODY_33_EDGES = _chains(
    (8, 6, 5, 4, 0, 1, 2, 3, 7), (9, 10), (15, 13, 11, 12, 14, 16), (11, 23, 24, 12),
    (15, 21), (15, 17, 19, 15), (16, 22), (16, 18, 20, 16), (23, 25, 27, 29, 31, 27),
    (24, 26, 28, 30, 32, 28),
)
BODY_33 = Skeleton("body", _BODY_33_NAMES, _BODY_33_EDGES)
BODY_39 = Skeleton("body", _BODY_33_NAMES, _BODY_33_EDGES, drawn=33)
HAND_21 = Skeleton("hand", (
    "wrist", *(f"{finger} {joint}" for finger, joints in (
        ("thumb", ("cmc", "mcp", "ip", "tip")),
        *((each, ("mcp", "pip", "dip", "tip")) for each in ("index", "middle", "ring", "pinky")),
    ) for joint in joints),
), _chains((0, 1, 2, 3, 4), (0, 5, 6, 7, 8), (5, 9, 10, 11, 12), (9, 13, 14, 15, 16),
           (13, 17, 18, 19, 20), (0, 17)))
_FACE_EDGES = _chains(
    # The outline, the lips from outside to inside, the eyes, the brows.
    (10, 338, 297, 332, 284, 251, 389, 356, 454, 323, 361, 288, 397, 365, 379, 378, 400, 377, 152,
     148, 176, 149, 150, 136, 172, 58, 132, 93, 234, 127, 162, 21, 54, 103, 67, 109, 10),
    (61, 146, 91, 181, 84, 17, 314, 405, 321, 375, 291),
    (61, 185, 40, 39, 37, 0, 267, 269, 270, 409, 291),
    (78, 95, 88, 178, 87, 14, 317, 402, 318, 324, 308),
    (78, 191, 80, 81, 82, 13, 312, 311, 310, 415, 308),
    (263, 249, 390, 373, 374, 380, 381, 382, 362), (263, 466, 388, 387, 386, 385, 384, 398, 362),
    (33, 7, 163, 144, 145, 153, 154, 155, 133), (33, 246, 161, 160, 159, 158, 157, 173, 133),
    (276, 283, 282, 295, 285), (300, 293, 334, 296, 336),
    (46, 53, 52, 65, 55), (70, 63, 105, 66, 107),
)
FACE_468 = Skeleton("face", edges=_FACE_EDGES)
FACE_478 = Skeleton("face", edges=_FACE_EDGES + _chains(
    (469, 470, 471, 472, 469), (474, 475, 476, 477, 474),  # the irises
))
FACE_68 = Skeleton("face", edges=_chains(
    tuple(range(17)), tuple(range(17, 22)), tuple(range(22, 27)), tuple(range(27, 31)),
    tuple(range(31, 36)), (*range(36, 42), 36), (*range(42, 48), 42), (*range(48, 60), 48),
    (*range(60, 68), 60),
))
# fmt: on
SKELETONS = {
    17: BODY_17,
    21: HAND_21,
    33: BODY_33,
    39: BODY_39,
    68: FACE_68,
    468: FACE_468,
    478: FACE_478,
}
