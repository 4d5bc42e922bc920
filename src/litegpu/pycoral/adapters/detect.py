"""Results of object detectors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from numpy.typing import NDArray

from litegpu.errors import ModelError
from litegpu.pycoral.adapters import common

_OUTPUTS = 4
"""The number of outputs of a detector."""


class BBox(NamedTuple):
    """A box: its left, upper, right and lower edges."""

    xmin: float
    ymin: float
    xmax: float
    ymax: float

    @property
    def width(self) -> float:
        """The width of the box; negative if the right edge is left of the left edge."""
        return self.xmax - self.xmin

    @property
    def height(self) -> float:
        """The height of the box; negative if the lower edge is above the upper edge."""
        return self.ymax - self.ymin

    @property
    def area(self) -> float:
        """The product of width and height."""
        return self.width * self.height

    @property
    def valid(self) -> bool:
        """Whether neither width nor height is negative."""
        return min(self.width, self.height) >= 0

    def scale(self, sx: float, sy: float) -> BBox:
        """Return the box with x multiplied by `sx`, and y by `sy`."""
        return BBox(self.xmin * sx, self.ymin * sy, self.xmax * sx, self.ymax * sy)

    def translate(self, dx: float, dy: float) -> BBox:
        """Return the box, moved by `dx` to the right and by `dy` down."""
        return BBox(self.xmin + dx, self.ymin + dy, self.xmax + dx, self.ymax + dy)

    def map(self, f: Callable[[float], float]) -> BBox:
        """Return a box of the results of `f` for each edge."""
        return BBox(*(f(edge) for edge in self))

    @staticmethod
    def intersect(a: BBox, b: BBox) -> BBox:
        """Return the intersection of two boxes, which is not valid if there is none."""
        left, top = max(a.xmin, b.xmin), max(a.ymin, b.ymin)
        return BBox(left, top, min(a.xmax, b.xmax), min(a.ymax, b.ymax))

    @staticmethod
    def union(a: BBox, b: BBox) -> BBox:
        """Return the smallest box that contains both boxes."""
        left, top = min(a.xmin, b.xmin), min(a.ymin, b.ymin)
        return BBox(left, top, max(a.xmax, b.xmax), max(a.ymax, b.ymax))

    @staticmethod
    def iou(a: BBox, b: BBox) -> float:
        """Return the area of the intersection divided by the area that either box covers."""
        common_part = BBox.intersect(a, b)
        if not common_part.valid:
            return 0.0
        return common_part.area / (a.area + b.area - common_part.area)


class Object(NamedTuple):
    """A detected object: the number of its class, its score, and its box."""

    id: int
    score: float
    bbox: BBox


def get_objects(
    interpreter: Any,
    score_threshold: float = -float("inf"),
    image_scale: tuple[float, float] = (1.0, 1.0),
) -> list[Object]:
    """Return the objects of a detector with a score of at least `score_threshold`.

    The model ends in TFLite_Detection_PostProcess. Its outputs are boxes, classes, scores and their
    number. Outputs in the order of TensorFlow 2's detectors are accepted, too. Boxes are in whole
    pixels of the model's input, divided by `image_scale`, the scale that
    `common.set_resized_input` returns.

    Raises ModelError if the model has several signatures or fewer than four outputs.
    """
    boxes, classes, scores = _outputs(interpreter)
    width, height = common.input_size(interpreter)
    sx, sy = width / image_scale[0], height / image_scale[1]
    found = []
    for (top, left, bottom, right), number, score in zip(boxes, classes, scores, strict=True):
        if score >= score_threshold:
            box = BBox(left, top, right, bottom).scale(sx, sy).map(int)
            found.append(Object(int(number), float(score), box))
    return found


def _outputs(interpreter: Any) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return boxes, classes and scores of the first picture."""
    signatures = interpreter._get_full_signature_list()
    if len(signatures) > 1:
        raise ModelError("The model has several signatures. Use a detector with a single one.")
    count = len(interpreter.get_output_details())
    if count < _OUTPUTS:
        raise ModelError(
            f"The model has {count} output(s), and a detector has four: boxes, classes, scores and "
            "their number. Use a model that ends in TFLite_Detection_PostProcess."
        )
    if signatures:
        (signature,) = signatures.values()
        indices = [signature["outputs"][f"output_{number}"] for number in (3, 2, 1)]
        boxes, classes, scores = (interpreter.tensor(index)()[0] for index in indices)
    else:
        single = common.output_tensor(interpreter, 3).size == 1
        order = (0, 1, 2) if single else (1, 3, 0)
        boxes, classes, scores = (common.output_tensor(interpreter, i)[0] for i in order)
    return boxes, classes, scores
