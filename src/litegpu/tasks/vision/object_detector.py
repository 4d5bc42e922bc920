"""The object detection task."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from litegpu.errors import ModelError
from litegpu.files.flatbuffer import Flatbuffer
from litegpu.files.metadata import FileKind
from litegpu.ops.common.flexbuffers import read_map
from litegpu.tasks.components.containers.category import Category
from litegpu.tasks.components.containers.detections import Detection, DetectionResult
from litegpu.tasks.components.containers.keypoint import NormalizedKeypoint
from litegpu.tasks.components.containers.rect import NormalizedRect
from litegpu.tasks.components.processors.classifier_options import ClassifierOptions
from litegpu.tasks.core.activations import sigmoid
from litegpu.tasks.core.assets import model_of
from litegpu.tasks.core.classes import ScoreCalibration, classes_of
from litegpu.tasks.core.model import Floats, PictureModel
from litegpu.tasks.vision.core.base_vision_task_api import VisionTaskOptions
from litegpu.tasks.vision.core.boxes import BoxCoding, Boxes, suppressed
from litegpu.tasks.vision.core.detect_task import DetectTask
from litegpu.tasks.vision.core.image import Image
from litegpu.tasks.vision.core.regions import Region, Size, rgb, sampled
from litegpu.zoo.cuts import CuttableModel

ObjectDetectorResult = DetectionResult
_POST_PROCESS = "TFLite_Detection_PostProcess"
_IN_MODEL = ("location", "category", "score", "number of detections")
_RAW = ("location", "score")
_LEFT_TOP_RIGHT_BOTTOM = (0, 1, 2, 3)
_TOP_LEFT_BOTTOM_RIGHT = (1, 0, 3, 2)
"""The default positions of left, top, right and bottom in a box."""
_CORNERS = 1
"""The metadata's number of the box format left, top, right, bottom."""
_MAX_OVERLAP = 0.3
"""The overlap (IoU) above which two boxes belong to the same object."""
_DECODING = "DETECTOR_METADATA"
"""The name of the metadata of detectors that have no non-maximum suppression in the model."""


@dataclass
class ObjectDetectorOptions(ClassifierOptions, VisionTaskOptions[DetectionResult]):
    """The options of an ObjectDetector: see VisionTaskOptions and ClassifierOptions."""


class _Found(NamedTuple):
    """The boxes in a picture, with the classes and scores of each box."""

    boxes: Boxes
    classes: NDArray[np.int64]
    """[N, classes of a box]"""
    scores: Floats


class _PostProcessed:
    """Reads the outputs of a model with non-maximum suppression: boxes, classes, scores, count."""

    def __init__(self, model: PictureModel, options: ClassifierOptions) -> None:
        self._places = _places(model, _IN_MODEL)
        notes = [model.note(place) for place in self._places]
        self._order = _sides(model, self._places[0])
        self.classes = classes_of(model.content, options, notes[1], notes[2], FileKind.VALUE_LABELS)
        self._calibration = ScoreCalibration.of(model.content, notes[2])
        self._most, self._each = options.most, _classes_per_box(model.content)

    def __call__(self, outputs: Sequence[Floats]) -> _Found:
        corners, classes, scores, number = (outputs[place] for place in self._places)
        count = min(int(number.ravel()[0]), corners.shape[1] // self._each)
        rows = np.arange(count) * self._each
        numbers = classes.ravel()[: count * self._each].astype(np.int64)
        values = scores.ravel()[: len(numbers)]
        if self._calibration is not None:
            values = self._calibration(values, numbers)
        boxes = Boxes(corners[0][rows][:, self._order], np.zeros((count, 0, 2), np.float32))
        return _Found(boxes, numbers.reshape(count, -1), values.reshape(count, -1))

    def results(self, found: _Found, counts: NDArray[np.bool_]) -> list[int]:
        """Return the rows whose class is allowed and whose score is high enough."""
        rows = np.flatnonzero(counts.any(1) & found.boxes.valid).tolist()
        return rows[: self._most]


class _Decoded:
    """Decodes the outputs of a model without non-maximum suppression, and suppresses boxes."""

    def __init__(self, model: PictureModel, options: ClassifierOptions) -> None:
        self._places = _places(model, _RAW)
        note = model.note(self._places[1])
        self.classes = classes_of(model.content, options, note, note, FileKind.AXIS_LABELS)
        content = model.notes.custom.get(_DECODING, b"")
        try:
            self._coding, self._anchors, self._sigmoid = _decoding(content)
        except (struct.error, IndexError) as error:
            raise ModelError(
                "The model returns codes of boxes, and its metadata do not say how to decode them: "
                f"they have no {_DECODING}, or it is damaged. Use a model that ends in "
                f"{_POST_PROCESS}, or add the metadata."
            ) from error
        shape = model.shapes[self._places[0]]
        if len(self._anchors) != shape[1]:
            raise ModelError(
                f"The metadata have {len(self._anchors)} anchors, and the model returns "
                f"{shape[1]} boxes. Write its metadata again."
            )
        self._most = options.most

    def __call__(self, outputs: Sequence[Floats]) -> _Found:
        codes, scores = (outputs[place][0] for place in self._places)
        if self._sigmoid:
            scores = sigmoid(scores)
        scores = scores.copy()
        scores[:, [each for each in self.classes.ignored if each < scores.shape[1]]] = -np.inf
        best = scores.argmax(1)
        return _Found(
            self._coding.decode(codes, self._anchors),
            best[:, np.newaxis],
            np.take_along_axis(scores, best[:, np.newaxis], 1),
        )

    def results(self, found: _Found, counts: NDArray[np.bool_]) -> list[int]:
        """Return the rows that belong to the results, the highest score first."""
        rows = np.flatnonzero(counts[:, 0] & found.boxes.valid)
        remaining = suppressed(found.boxes[rows], found.scores[rows, 0], _MAX_OVERLAP)
        found_rows: list[int] = rows[remaining].tolist()
        return found_rows[: self._most]


class ObjectDetector(DetectTask[ObjectDetectorOptions, DetectionResult]):
    """Detects objects: the box, the classes and the scores of each object.

    The model ends in TFLite_Detection_PostProcess, or its metadata describe how to decode boxes.
    """

    options_type = ObjectDetectorOptions

    def _open(self, options: ObjectDetectorOptions) -> None:
        options.check()
        self._model = self._compiled(model_of(options.base_options), options.base_options)
        count = len(self._model.shapes)
        if count not in (len(_RAW), len(_IN_MODEL)):
            raise ModelError(
                f"The model has {count} outputs. A detector has 4 (boxes, classes, scores and "
                "their number) or 2 (codes of boxes, and scores)."
            )
        self._read = (_Decoded if count == len(_RAW) else _PostProcessed)(self._model, options)

    def _run(self, image: Image, rect: NormalizedRect, timestamp_ms: int) -> DetectionResult:
        picture = (image.width, image.height)
        region = Region.of(rect, picture)
        found = self._read(self._model(sampled(rgb(image), region, self._model.size)))
        classes = self._read.classes
        listed = [
            [classes.counts(*each) for each in zip(*pair, strict=True)]
            for pair in zip(found.classes.tolist(), found.scores.tolist(), strict=True)
        ]
        counts = np.array(listed, bool).reshape(found.scores.shape)
        rows = self._read.results(found, counts)
        boxes = found.boxes[rows].on_picture(region, picture)
        return DetectionResult(self._detections(rows, found, counts, boxes, picture))

    def _detections(
        self,
        rows: list[int],
        found: _Found,
        counts: NDArray[np.bool_],
        boxes: Boxes,
        picture: Size,
    ) -> list[Detection]:
        """Return the objects; equal boxes are one object with several classes."""
        merged: dict[tuple[int, int, int, int], Detection] = {}
        for row, box, points in zip(rows, boxes.pixels(picture), boxes.points, strict=True):
            categories = self._categories(found, row, counts[row])
            place = (box.origin_x, box.origin_y, box.width, box.height)
            if place in merged:
                merged[place].categories.extend(categories)
            else:
                listed = [NormalizedKeypoint(x, y, "", 0.0) for x, y in points.tolist()]
                merged[place] = Detection(box, categories, listed)
        return list(merged.values())

    def _categories(self, found: _Found, row: int, counts: NDArray[np.bool_]) -> list[Category]:
        pairs = zip(found.classes[row][counts], found.scores[row][counts], strict=True)
        return [self._read.classes.category(int(each), float(score)) for each, score in pairs]


def _places(model: PictureModel, names: Sequence[str]) -> list[int]:
    """Return the indices of outputs by their names in the metadata, or else in their order."""
    found = [model.note(index).name for index in range(len(model.shapes))]
    if set(names) <= set(found):
        return [found.index(name) for name in names]
    return list(range(len(names)))


def _sides(model: PictureModel, place: int) -> list[int]:
    """Return the positions of left, top, right and bottom in a box.

    Raises:
        ModelError: the metadata specify another box format.
    """
    note = model.note(place)
    if not note.is_boxes:
        return list(_TOP_LEFT_BOTTOM_RIGHT)
    if note.box_form != _CORNERS or note.in_pixels:
        raise ModelError(
            "The metadata describe boxes that are not the sides of a box from 0 to 1. Use a model "
            f"that ends in {_POST_PROCESS}."
        )
    order = note.box_order or _LEFT_TOP_RIGHT_BOTTOM
    if sorted(order) != [0, 1, 2, 3]:
        raise ModelError(
            f"The metadata give {list(order)} as the positions of left, top, right and bottom. "
            "They must be 0, 1, 2 and 3 in some order."
        )
    return list(order)


def _classes_per_box(content: bytes) -> int:
    """Return the number of classes that the model returns for each box."""
    model = CuttableModel(content)
    for node, op in enumerate(model.ops):
        if op == _POST_PROCESS:
            found = read_map(model.custom_options(node)).get("max_classes_per_detection", 1)
            return max(1, int(found))
    return 1


# Field numbers of the schema of detectors' metadata.
_ANCHORS, _TENSORS = 1, 2
_FIXED, _LIST = 0, 0
_POINT_OFFSET, _POINTS = 3, 4
_SCALES = (6, 7, 8, 9)
_EXPONENTIAL, _SIGMOID = 10, 11


def _decoding(content: bytes) -> tuple[BoxCoding, Floats, bool]:
    """Return the box coding, the anchors, and whether scores are logits, from the metadata.

    Raises struct.error or IndexError if the metadata are damaged.
    """
    data = Flatbuffer(content)
    root = data.target(0)
    tensors = data.field(root, _TENSORS)
    anchors = data.field(data.field(data.field(root, _ANCHORS), _FIXED), _LIST)
    listed = [
        [data.scalar(data.entry(anchors, index), number, "<f") for number in range(4)]
        for index in range(data.count(anchors))
    ]
    x, y, width, height = (data.scalar(tensors, number, "<f") for number in _SCALES)
    coding = BoxCoding(
        (x, y, width, height),
        data.scalar(tensors, _POINTS, "<i"),
        data.scalar(tensors, _POINT_OFFSET, "<i"),
        exponential=bool(data.scalar(tensors, _EXPONENTIAL, "<B")),
        y_first=True,
    )
    return coding, np.array(listed, np.float32), bool(data.scalar(tensors, _SIGMOID, "<B"))
