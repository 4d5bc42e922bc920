"""The pose of a face: the rotation, size and position of the canonical face before a camera."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from litegpu.errors import ModelError
from litegpu.files import wire
from litegpu.tasks.vision.core.regions import Size

Doubles = NDArray[np.float64]
POINTS = 468
"""The number of landmarks of the canonical face, which has no irises."""
_MESH, _BASIS = 1, 2
_VERTICES = 3
_ID, _WEIGHT = 1, 2
"""Numbers of fields: of the metadata, of the mesh, and of a weighted landmark."""
_VERTEX_SIZE = 5
"""The numbers of a vertex: x, y and z in centimeters, and a position in a texture."""
_FIELD_OF_VIEW = math.radians(63.0)
"""The vertical field of view of the assumed camera; its near plane is at 1 cm."""
_MIN_EXTENT, _LEAST = 1e-3, 1e-9


@dataclass(frozen=True)
class FaceGeometry:
    """The canonical face, `[468, 3]` in centimeters, and the weight of each landmark, `[468]`."""

    canonical: Doubles
    weights: Doubles

    @staticmethod
    def of(content: bytes) -> FaceGeometry:
        """Return the geometry in a bundle's metadata. Raises ModelError if they are damaged."""
        try:
            vertices: list[float] = []
            weights = np.zeros(POINTS)
            for number, value in wire.fields(content):
                if number == _MESH:
                    vertices += _floats(_message(value), _VERTICES)
                elif number == _BASIS:
                    entry: dict[int, Any] = dict(wire.fields(_message(value)))
                    if _ID not in entry or _WEIGHT not in entry:
                        raise ValueError("a landmark without its number or its weight")
                    weights[entry[_ID]] = entry[_WEIGHT]
            mesh = np.array(vertices).reshape(POINTS, _VERTEX_SIZE)[:, :3]
            if not (weights.min() >= 0 < weights.sum() < np.inf and np.isfinite(mesh).all()):
                raise ValueError("the weights or the vertices are not numbers that can be used")
        except (ValueError, TypeError, IndexError) as error:
            raise ModelError(
                f"The metadata of the face's geometry are damaged ({error}). Download the bundle "
                "again."
            ) from error
        return FaceGeometry(mesh, weights)

    def pose(self, points: NDArray[np.floating], picture: Size) -> Doubles | None:
        """Return the 4 x 4 matrix from the canonical face to a face in front of the camera.

        `points`, `[468, 3]`, are landmarks relative to the picture. Lengths are in centimeters; x
        points right, y up and z to the camera. The result is None for a face that is a point.
        """
        flat = points[:, :2].astype(np.float64)
        if np.hypot(*(flat - flat.mean(0)).T).max() <= _MIN_EXTENT:
            return None
        height = 2 * math.tan(_FIELD_OF_VIEW / 2)
        width = height * picture[0] / picture[1]
        x, y = (flat[:, 0] - 0.5) * width, (0.5 - flat[:, 1]) * height
        z = points[:, 2] * width
        near = z - z.mean() + 1
        pose = self._fitted(np.column_stack([x, y, -z]))
        scale = 1.0
        for _ in range(2):  # depths are known only up to the scale of the face
            if pose is None:
                return None
            scale *= float(np.linalg.norm(pose[:3, 0]))
            depth = near / scale
            pose = self._fitted(np.column_stack([x * depth, y * depth, -depth]))
        return pose

    def _fitted(self, targets: Doubles) -> Doubles | None:
        """Return the similarity that maps the canonical face to targets with the least squares.

        The result is None if the targets determine none.
        """
        total = self.weights.sum()
        center, wanted = (self.weights @ each / total for each in (self.canonical, targets))
        source, target = self.canonical - center, targets - wanted
        product = (target * self.weights[:, np.newaxis]).T @ source
        if not np.linalg.norm(product) > _LEAST:
            return None
        left, sizes, right = np.linalg.svd(product)
        signs = np.array([1, 1, np.sign(np.linalg.det(left) * np.linalg.det(right))])
        scale = (sizes * signs).sum() / (self.weights @ (source * source).sum(1))
        if not scale > _LEAST:
            return None
        found = np.eye(4)
        found[:3, :3] = scale * (left * signs) @ right
        found[:3, 3] = wanted - found[:3, :3] @ center
        return found


def _floats(content: bytes, wanted: int) -> list[float]:
    """Return the floats of a repeated field, which may be packed."""
    found: list[float] = []
    for number, value in wire.fields(content):
        if number == wanted:
            found += (
                np.frombuffer(value, "<f4").tolist() if isinstance(value, bytes) else [float(value)]
            )
    return found


def _message(value: float | bytes) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError("a number where a message should be")
    return value
