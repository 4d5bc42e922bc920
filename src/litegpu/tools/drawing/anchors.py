"""Detectors without post-processing: each row of their outputs is relative to an anchor.

The anchors are derived from the feature maps that the model concatenates to rows. Two families are
supported: MediaPipe and TensorFlow's SSD. MediaPipe's anchors are points; a row has the center,
size and keypoints of an object in pixels of the input. The SSD's anchors are boxes of several
aspect ratios.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from litegpu.errors import ModelError
from litegpu.pictures.boxes import overlaps
from litegpu.tools.drawing.detections import Detections, detections
from litegpu.tools.drawing.facts import Grid, ModelFacts
from litegpu.tools.drawing.finding import Evidence, Outputs, Scene
from litegpu.tools.drawing.names import object_names

Array = NDArray[Any]
_MIN_ROWS = 32
"""Minimum number of rows of an output whose rows belong to anchors."""
_MIN_IOU = 0.5
"""Minimum overlap (IoU) at which two boxes of one class belong to the same object."""
_MAX_BOXES = 1000
"""Maximum number of boxes before non-maximum suppression, those with the highest scores."""
_MAX_LOGIT = 100.0

_SSD_SCALES = (0.2, 0.95)
_SSD_RATIOS = (1.0, 2.0, 0.5, 3.0, 1 / 3)
_SSD_FIRST_MAP = ((0.1, 1.0), (_SSD_SCALES[0], 2.0), (_SSD_SCALES[0], 0.5))
_SSD_SIZES = np.array((10.0, 10.0, 5.0, 5.0))
"""Divisors of encoded boxes: y, x, height, width."""


class Raw(NamedTuple):
    """The indices of the outputs with encoded boxes and with scores, and the number of rows."""

    codes: int
    scores: int
    rows: int
    values: int
    """Numbers per row of the encoded boxes."""
    classes: int


def evidence(outputs: Outputs, facts: ModelFacts) -> Evidence | None:
    """Return why a model is a detector whose boxes are relative to anchors."""
    raw = find(outputs, facts)
    if raw is None:
        return None
    return Evidence(True, f"two outputs have {raw.rows} rows: encoded boxes, and scores")


def find(outputs: Outputs, facts: ModelFacts) -> Raw | None:
    """Return the outputs with encoded boxes and scores; None if the model has no such outputs."""
    if len(outputs) != 2:
        return None
    shapes = [each.values.shape for each in outputs]
    if any(len(shape) != 3 for shape in shapes) or shapes[0][1] != shapes[1][1]:
        return None
    rows, widths = shapes[0][1], [shape[2] for shape in shapes]
    codes = _codes(widths, facts)
    if rows < _MIN_ROWS or codes is None:
        return None
    return Raw(codes, 1 - codes, rows, widths[codes], widths[1 - codes])


def _codes(widths: Sequence[int], facts: ModelFacts) -> int | None:
    """Return the index of the output with encoded boxes: four numbers, then keypoint pairs.

    Encoded boxes are not probabilities. If both outputs may be encoded boxes, the output with four
    numbers per row is selected.
    """
    may_be = [
        width >= 4 and width % 2 == 0 and not facts.is_probability(index)
        for index, width in enumerate(widths)
    ]
    if not any(may_be):
        return None
    if all(may_be):
        return widths.index(4) if 4 in widths else None
    return may_be.index(True)


def read(outputs: Outputs, scene: Scene) -> Detections:
    """Return the objects with at least the minimum score.

    Raises:
        ModelError: the model has no encoded boxes and scores, or the anchors cannot be derived.
    """
    raw = find(outputs, scene.facts)
    if raw is None:
        raise ModelError(_NO_CODES)
    codes = outputs[raw.codes].values[0].astype(np.float64)
    scores = _probabilities(outputs[raw.scores].values[0], scene.facts, raw.scores)
    grids = scene.facts.grids(raw.codes)
    counts = anchors_in_cells(grids, raw)
    if raw.values == 4:
        corners, points = _ssd_boxes(codes, grids, counts), None
        if raw.classes > 1:
            scores = scores[:, 1:]  # the first class is the background
    else:
        corners, points = _point_boxes(codes, grids, counts, scene.facts.input_size)
    return suppressed(corners, scores, scene, points)


def anchors_in_cells(grids: Sequence[Grid], raw: Raw) -> list[int]:
    """Return the number of anchors per cell of each feature map.

    Raises:
        ModelError: the feature maps are unknown, or do not match the rows.
    """
    counts = [grid.channels // raw.values for grid in grids]
    cells = [grid.height * grid.width for grid in grids]
    total = sum(cell * count for cell, count in zip(cells, counts, strict=True))
    if total != raw.rows:
        raise ModelError(
            f"The {raw.rows} boxes of this model are relative to anchors, but their feature maps "
            f"are unknown: the maps found have {total} anchors. The outputs must be "
            "concatenations of reshaped maps. Use a model that ends in "
            "TFLite_Detection_PostProcess."
        )
    return counts


def _point_boxes(
    codes: Array, grids: Sequence[Grid], counts: Sequence[int], size: tuple[int, int]
) -> tuple[Array, Array]:
    """Decode boxes whose anchors are points: return corners `[N, 4]` and points `[N, K, 2]`.

    A row has x and y of the center, width, height, and x and y of each keypoint, in pixels.
    """
    anchors = np.concatenate(
        [np.repeat(_centres(grid), count, 0) for grid, count in zip(grids, counts, strict=True)]
    )
    pairs = codes.reshape(len(codes), -1, 2) / size
    pairs[:, 0] += anchors
    pairs[:, 2:] += anchors[:, None]
    centre, extent = pairs[:, 0], pairs[:, 1]
    return np.hstack([centre - extent / 2, centre + extent / 2]), pairs[:, 2:]


def _centres(grid: Grid) -> Array:
    """Return x and y of the centers of a feature map's cells, row by row, `[cells, 2]`."""
    y, x = np.mgrid[: grid.height, : grid.width]
    return np.stack([(x + 0.5) / grid.width, (y + 0.5) / grid.height], -1).reshape(-1, 2)


def _ssd_boxes(codes: Array, grids: Sequence[Grid], counts: Sequence[int]) -> Array:
    """Decode boxes whose anchors are TensorFlow's default boxes: return corners `[N, 4]`.

    Raises:
        ModelError: the number of anchors per cell differs from that of the default boxes.
    """
    expected = [len(_SSD_FIRST_MAP), *[len(_SSD_RATIOS) + 1] * (len(grids) - 1)]
    if list(counts) != expected or len(grids) < 2:
        raise ModelError(
            f"The maps of this detector have {', '.join(map(str, counts))} anchors per cell; their "
            f"sizes are known only for {', '.join(map(str, expected))}. Use a model that ends in "
            "TFLite_Detection_PostProcess, which holds its anchors."
        )
    low, high = _SSD_SCALES
    scales = [*np.linspace(low, high, len(grids)), 1.0]
    anchors = []
    for number, grid in enumerate(grids):
        scale, between = scales[number], math.sqrt(scales[number] * scales[number + 1])
        regular = (*((scale, ratio) for ratio in _SSD_RATIOS), (between, 1.0))
        sizes = [
            (size / math.sqrt(ratio), size * math.sqrt(ratio))
            for size, ratio in (regular if number else _SSD_FIRST_MAP)
        ]
        centres = _centres(grid)[:, ::-1]
        anchors.append(
            np.hstack([np.repeat(centres, len(sizes), 0), np.tile(sizes, (len(centres), 1))])
        )
    known = np.concatenate(anchors)
    scaled = codes / _SSD_SIZES
    centre = scaled[:, :2] * known[:, 2:] + known[:, :2]
    half = np.exp(np.minimum(scaled[:, 2:], _MAX_LOGIT)) * known[:, 2:] / 2
    return np.hstack([centre - half, centre + half])[:, [1, 0, 3, 2]]


def _probabilities(values: Array, facts: ModelFacts, output: int) -> Array:
    wide = values.astype(np.float64)
    return wide if facts.is_probability(output) else sigmoid(wide)


def sigmoid(values: Array) -> Array:
    """Return the probabilities of logits."""
    clipped = np.clip(values, -_MAX_LOGIT, _MAX_LOGIT)
    found: Array = 1 / (1 + np.exp(-clipped))
    return found


def suppressed(
    corners: Array, scores: Array, scene: Scene, points: Array | None = None
) -> Detections:
    """Return the objects after non-maximum suppression for each class.

    Args:
        corners: `[N, 4]`: left, top, right and bottom, as fractions (0 to 1) of the input's size.
        scores: `[N, classes]`.
        scene: the scene with the minimum score.
        points: keypoints `[N, K, 2]`, or None.
    """
    classes = scores.argmax(1)
    best = scores.max(1)
    rows = np.flatnonzero(best >= scene.min_score)
    rows = rows[np.argsort(-best[rows], kind="stable")][:_MAX_BOXES]
    remaining: list[int] = []
    for row in rows:
        same = [each for each in remaining if classes[each] == classes[row]]
        if not same or overlaps(corners[row], corners[same]).max() <= _MIN_IOU:
            remaining.append(int(row))
    names = object_names(scene, scores.shape[1]) if scores.shape[1] > 1 or scene.named else ()
    chosen = points[remaining] if points is not None else None
    return detections(corners[remaining], best[remaining], classes[remaining], names, scene, chosen)


_NO_CODES = (
    "The outputs of this model are not those of a detector: boxes, classes and scores, or two of "
    "[1, N, 4 or more] and [1, N, classes]. Choose another --task."
)
