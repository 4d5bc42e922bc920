"""YOLO-like detectors: one output has a box and scores for each cell of several feature maps.

A row has x and y of the center, width, height, and the score of each class. Detectors with three
anchors per cell have an objectness score before the class scores.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from litegpu.errors import ModelError
from litegpu.tools.drawing.anchors import suppressed
from litegpu.tools.drawing.detections import Detections
from litegpu.tools.drawing.facts import ModelFacts
from litegpu.tools.drawing.finding import Evidence, Outputs, Scene
from litegpu.tools.drawing.names import COCO_USED

Array = NDArray[Any]
_STRIDES = ((8, 16, 32), (8, 16, 32, 64))
"""Strides, in pixels of the input, of a detector's feature maps."""
_ANCHORS = 3
_BOX, _OBJECT = 4, 1
_PIXELS = 2.0
"""Coordinates above this value are pixels of the input, not fractions."""


class Layout(NamedTuple):
    """The layout of the output: the axis of the rows, and whether there is an objectness score."""

    rows: int
    has_object: bool


def evidence(outputs: Outputs, facts: ModelFacts) -> Evidence | None:
    """Return why a model is a YOLO-like detector: the numbers of rows and cells are equal."""
    layout = find(outputs, facts)
    if layout is None:
        return None
    rows = outputs[0].values.shape[layout.rows]
    return Evidence(
        True, f"the output has {rows} boxes, the number of cells of the feature maps for that input"
    )


def find(outputs: Outputs, facts: ModelFacts) -> Layout | None:
    """Return the layout of the output; None if the model is not a YOLO-like detector."""
    shape = outputs[0].values.shape if len(outputs) == 1 else ()
    if len(shape) != 3 or shape[0] != 1:
        return None
    width, height = facts.input_size
    for strides in _STRIDES:
        cells = sum(-(-width // step) * -(-height // step) for step in strides)
        for rows, numbers in ((1, shape[2]), (2, shape[1])):
            if shape[rows] == cells and numbers > _BOX:
                # Without anchors there mostly is no such score; COCO's number of classes shows it.
                return Layout(rows, numbers == _BOX + _OBJECT + len(COCO_USED))
            if shape[rows] == _ANCHORS * cells and numbers > _BOX + _OBJECT:
                return Layout(rows, has_object=True)
    return None


def read(outputs: Outputs, scene: Scene) -> Detections:
    """Return the objects with at least the minimum score.

    Raises:
        ModelError: the output does not have one row per cell.
    """
    layout = find(outputs, scene.facts)
    if layout is None:
        raise ModelError(
            "The output of this model is not one box for each cell of maps: [1, N, 4 + classes] "
            "or [1, 4 + classes, N]. Choose another --task."
        )
    values = outputs[0].values[0].astype(np.float64)
    rows = values if layout.rows == 1 else values.T
    boxes, scores = rows[:, :_BOX], rows[:, _BOX + _OBJECT * layout.has_object :]
    if layout.has_object:
        scores = scores * rows[:, _BOX : _BOX + _OBJECT]
    if boxes.max() > _PIXELS:
        boxes = boxes / (scene.facts.input_size * 2)
    centre, half = boxes[:, :2], boxes[:, 2:] / 2
    return suppressed(np.hstack([centre - half, centre + half]), scores, scene)
