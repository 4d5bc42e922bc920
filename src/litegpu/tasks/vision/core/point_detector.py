"""Detectors whose anchors are points: for faces, palms and persons with keypoints."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from litegpu.errors import ModelError
from litegpu.tasks.components.containers.rect import NormalizedRect
from litegpu.tasks.core.activations import sigmoid
from litegpu.tasks.core.model import PictureModel
from litegpu.tasks.vision.core.boxes import BoxCoding, Boxes, blended
from litegpu.tasks.vision.core.regions import Bytes, Region, Size, sampled

Floats = NDArray[np.float32]


class PointDetector:
    """Detects objects and their keypoints."""

    def __init__(
        self,
        model: PictureModel,
        grids: Sequence[tuple[int, int]],
        points: int,
        least_score: float,
        most_overlap: float,
    ) -> None:
        """Check the model's outputs: encoded boxes `[1, N, 4 + 2 points]` and logits `[1, N, 1]`.

        Args:
            model: the model.
            grids: for each feature map, the stride in pixels and the number of anchors per cell.
            points: the number of keypoints per object.
            least_score: the minimum probability of an object.
            most_overlap: the overlap (IoU) above which two boxes belong to the same object.

        Raises:
            ModelError: the outputs have other shapes.
        """
        self._model, self._least, self._most = model, least_score, most_overlap
        self._anchors = point_anchors(model.size, grids)
        width, height = map(float, model.size)
        self._coding = BoxCoding((width, height, width, height), points)
        wanted = [(1, len(self._anchors), 4 + 2 * points), (1, len(self._anchors), 1)]
        if sorted(model.shapes) != sorted(wanted):
            shapes = " and ".join(str(list(each)) for each in model.shapes)
            raise ModelError(
                f"The detector returns {shapes}. It must return {list(wanted[0])} and "
                f"{list(wanted[1])}. Use MediaPipe's model for this task."
            )
        self._codes = model.shapes.index(wanted[0])

    def __call__(self, pixels: Bytes, rect: NormalizedRect) -> tuple[Boxes, Floats]:
        """Return the boxes relative to the picture and their scores, the highest first."""
        picture: Size = (pixels.shape[1], pixels.shape[0])
        region = Region.of(rect, picture).padded(self._model.size)
        outputs = self._model(sampled(pixels, region, self._model.size, zeros=True))
        scores = sigmoid(outputs[1 - self._codes].ravel())
        rows = np.flatnonzero(scores >= self._least)
        boxes = self._coding.decode(outputs[self._codes][0][rows], self._anchors[rows])
        found, best = blended(boxes[boxes.valid], scores[rows][boxes.valid], self._most)
        return found.on_picture(region, picture), best


def point_anchors(size: Size, grids: Sequence[tuple[int, int]]) -> Floats:
    """Return anchors `[N, 4]`: the centers of the feature maps' cells, and the size 1.

    Each item of `grids` is the stride of a feature map in pixels and its number of anchors per
    cell.
    """
    parts = []
    for stride, count in grids:
        columns, rows = (-(-side // stride) for side in size)
        y, x = np.mgrid[:rows, :columns]
        centers = np.stack([(x + 0.5) / columns, (y + 0.5) / rows], -1).reshape(-1, 2)
        parts.append(np.repeat(centers, count, 0))
    found = np.concatenate(parts)
    return np.hstack([found, np.ones_like(found)]).astype(np.float32)
