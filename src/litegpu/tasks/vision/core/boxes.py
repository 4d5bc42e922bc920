"""The boxes and points of detectors: decoded from anchors, filtered, and projected to pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from litegpu.pictures.boxes import overlaps
from litegpu.tasks.components.containers.bounding_box import BoundingBox
from litegpu.tasks.vision.core.regions import Region, Size

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class BoxCoding:
    """How a row of a detector's output encodes a box relative to an anchor.

    A row has a center, a size and then keypoints. Decoding divides them by `scales` (x, y, width,
    height) and multiplies them by the size of the anchor.
    """

    scales: tuple[float, float, float, float]
    points: int = 0
    first_point: int = 4
    exponential: bool = False
    """Whether the encoded sizes are logarithms."""
    y_first: bool = False
    """Whether y precedes x, and height precedes width, in a row."""

    def decode(self, rows: Floats, anchors: Floats) -> Boxes:
        """Return the boxes decoded from rows `[N, values]`.

        The columns of `anchors`, `[N, 4]`, are x, y, width and height.
        """
        order = [1, 0, 3, 2] if self.y_first else [0, 1, 2, 3]
        scales = np.array(self.scales, np.float32)
        codes = rows[:, order] / scales
        center = codes[:, :2] * anchors[:, 2:] + anchors[:, :2]
        sizes = np.exp(codes[:, 2:]) if self.exponential else codes[:, 2:]
        half = sizes * anchors[:, 2:] / 2
        listed = rows[:, self.first_point : self.first_point + 2 * self.points]
        points = listed.reshape(len(rows), self.points, 2)[:, :, order[:2]] / scales[:2]
        points = points * anchors[:, np.newaxis, 2:] + anchors[:, np.newaxis, :2]
        return Boxes(np.hstack([center - half, center + half]), points)


@dataclass(frozen=True)
class Boxes:
    """Boxes and their keypoints, in fractions (0 to 1) of the model input's size.

    `corners` is `[N, 4]`: left, top, right, bottom; `points` is `[N, points, 2]`.
    """

    corners: Floats
    points: Floats

    def __getitem__(self, rows: NDArray[Any] | Sequence[int]) -> Boxes:
        """Return the boxes at these indices."""
        return Boxes(self.corners[rows], self.points[rows])

    @property
    def valid(self) -> NDArray[np.bool_]:
        """A mask `[N]` of the boxes with nonnegative width and height."""
        found: NDArray[np.bool_] = np.all(self.corners[:, 2:] >= self.corners[:, :2], axis=1)
        return found

    def on_picture(self, region: Region, picture: Size) -> Boxes:
        """Return the boxes relative to the picture; the model input showed a region of the picture.

        A box in a rotated region becomes its axis-aligned bounding box in the picture.
        """
        matrix = region.matrix() / np.array(picture)[:, np.newaxis]
        edges = self.corners[:, [0, 1, 2, 1, 2, 3, 0, 3]].reshape(-1, 4, 2)
        edges = edges @ matrix[:, :2].T + matrix[:, 2]
        points = self.points @ matrix[:, :2].T + matrix[:, 2]
        corners = np.hstack([edges.min(1), edges.max(1)])
        return Boxes(corners.astype(np.float32), points.astype(np.float32))

    def pixels(self, picture: Size) -> list[BoundingBox]:
        """Return boxes relative to the picture as pixel coordinates, clipped to the picture."""
        width, height = picture
        limits = np.array([width, height, width, height])
        sizes = self.corners[:, 2:] - self.corners[:, :2]
        values = np.hstack([self.corners[:, :2], sizes]) * limits.astype(np.float32)
        rows = np.clip(np.trunc(values), 0, limits).astype(int).tolist()
        return [BoundingBox(*row) for row in rows]


def suppressed(boxes: Boxes, scores: Floats, most_overlap: float) -> list[int]:
    """Return the rows that non-maximum suppression selects, the highest score first."""
    rest = np.argsort(-scores, kind="stable")
    found = []
    while rest.size:
        found.append(int(rest[0]))
        shared = overlaps(boxes.corners[rest[0]], boxes.corners[rest])
        shared[0] = np.inf
        rest = rest[shared <= most_overlap]
    return found


def blended(boxes: Boxes, scores: Floats, most_overlap: float) -> tuple[Boxes, Floats]:
    """Return the score-weighted means of overlapping boxes, and the scores.

    The score of a mean is the highest score of its boxes; the results are sorted by descending
    score.
    """
    rest = np.argsort(-scores, kind="stable")
    corners, points, best = [], [], []
    while rest.size:
        shared = overlaps(boxes.corners[rest[0]], boxes.corners[rest])
        near = shared > most_overlap
        same = rest[near] if near.any() else rest[:1]
        weights = scores[same] / scores[same].sum()
        corners.append(weights @ boxes.corners[same])
        points.append(np.einsum("n,nkd->kd", weights, boxes.points[same]))
        best.append(scores[rest[0]])
        if not near.any():
            break
        rest = rest[~near]
    found = Boxes(
        np.array(corners, np.float32).reshape(-1, 4),
        np.array(points, np.float32).reshape(-1, *boxes.points.shape[1:]),
    )
    return found, np.array(best, np.float32)
