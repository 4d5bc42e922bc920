"""Objects found by a detector: boxes, classes, scores, and optional keypoints."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from litegpu.errors import ModelError
from litegpu.tools.drawing.facts import ModelFacts
from litegpu.tools.drawing.finding import Evidence, Outputs, Scene
from litegpu.tools.drawing.ink import Ink, colour
from litegpu.tools.drawing.names import name_of, object_names
from litegpu.wording import counted

if TYPE_CHECKING:
    from PIL import Image

Array = NDArray[Any]
BOXES, CLASSES, SCORES, COUNT = range(4)
"""The outputs of a detector, in the order of the post-processing op."""
_ROLES = {
    BOXES: ("location", "box"),
    CLASSES: ("category", "class"),
    SCORES: ("score",),
    COUNT: ("number", "count", "num_"),
}
"""Words in the metadata's output names that identify each role."""
_CORNERS = (1, 0, 3, 2)
"""The default positions of left, top, right and bottom in a box."""


@dataclass(frozen=True)
class Detection:
    """A detected object; coordinates are in pixels of the picture."""

    name: str
    number: int
    score: float
    box: tuple[float, float, float, float]
    """Left, top, right, bottom."""
    points: tuple[tuple[float, float], ...] = ()


@dataclass(frozen=True)
class Detections:
    """The objects detected in a picture, the highest score first."""

    found: tuple[Detection, ...]

    def draw(self, picture: Image.Image) -> Image.Image:
        """Return the picture with a box, a name and a score for each object."""
        drawn = picture.copy()
        ink = Ink(drawn)
        for each in reversed(self.found):  # the highest scores are drawn on top
            ink.box(each.box, colour(each.number))
            for point in each.points:
                ink.dot(point, colour(each.number))
        for each in self.found:
            text = f"{each.name} {each.score:.0%}".strip()
            ink.label(each.box, text, colour(each.number))
        return drawn

    def table(self) -> tuple[Sequence[str], list[Sequence[str]]]:
        """Return the headings, and a row for each object."""
        headings = ("object", ">score", ">left", ">top", ">right", ">bottom")
        return headings, [
            (each.name or "object", f"{each.score:.4f}", *(f"{edge:.1f}" for edge in each.box))
            for each in self.found
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return the objects for JSON; a box has left, top, right and bottom."""
        return {
            "objects": [
                {
                    "name": each.name,
                    "class": each.number,
                    "score": each.score,
                    "box": list(each.box),
                    "points": [list(point) for point in each.points],
                }
                for each in self.found
            ]
        }

    def brief(self) -> str:
        """Return the number of objects and their names."""
        names = Counter(each.name or "object" for each in self.found)
        listed = ", ".join(
            f"{name} ×{count}" if count > 1 else name for name, count in names.items()
        )
        return f"{counted(len(self.found), 'object')}{': ' * bool(listed)}{listed}"


def evidence(outputs: Outputs, facts: ModelFacts) -> Evidence | None:
    """Return why a model is a detector whose outputs are boxes, classes and scores."""
    if facts.place_in_post_process(0) is not None:
        return Evidence(True, "the model ends in TFLite_Detection_PostProcess")
    if not _looks_like_boxes(outputs):
        return None
    return Evidence(True, "the outputs have the shapes of boxes, classes and scores")


def read(outputs: Outputs, scene: Scene) -> Detections:
    """Return the objects with at least the minimum score.

    Raises:
        ModelError: the outputs are not boxes, classes and scores, or are ambiguous.
    """
    positions = roles(outputs, scene.facts)
    boxes = outputs[positions[BOXES]].values.reshape(-1, 4).astype(np.float64)
    classes, scores = (outputs[positions[role]].values.reshape(-1) for role in (CLASSES, SCORES))
    rows = min(len(boxes), len(classes), len(scores))
    if COUNT in positions:
        rows = min(rows, max(int(outputs[positions[COUNT]].values.reshape(-1)[0]), 0))
    corners = _corners(boxes[:rows], scene.facts, positions[BOXES])
    options = scene.facts.post_process_options()
    names = object_names(scene, int(options.get("num_classes", 0)) if options else 0)
    return detections(corners, scores[:rows], classes[:rows], names, scene)


def detections(
    corners: Array,
    scores: Array,
    classes: Array,
    names: tuple[str, ...],
    scene: Scene,
    points: Array | None = None,
) -> Detections:
    """Return the objects with at least the minimum score, the highest first.

    Args:
        corners: `[N, 4]`: left, top, right and bottom, as fractions (0 to 1) of the input's size.
        scores: `[N]`.
        classes: `[N]`.
        names: the class names; may be empty.
        scene: the scene, which maps the input to the picture.
        points: `[N, K, 2]`: x and y of each object's keypoints, as fractions of the input's size.
    """
    order = np.argsort(-scores, kind="stable")
    remaining = [i for i in order if scores[i] >= scene.min_score and np.isfinite(corners[i]).all()]
    found = []
    for i in remaining:
        first, last = scene.frame.positions(corners[i].reshape(2, 2)).tolist()
        spots = scene.frame.positions(points[i]).tolist() if points is not None else []
        box = _within((*first, *last), scene.frame.picture)
        number = int(classes[i])
        name = name_of(names, number) if names or classes.any() else ""
        found.append(
            Detection(name, number, float(scores[i]), box, tuple((x, y) for x, y in spots))
        )
    return Detections(tuple(found))


def roles(outputs: Outputs, facts: ModelFacts) -> dict[int, int]:
    """Return the role of each output, from the post-processing op, metadata, or shapes and values.

    Raises:
        ModelError: the roles of the outputs are ambiguous.
    """
    by_operation = [facts.place_in_post_process(index) for index in range(len(outputs))]
    if None not in by_operation:
        return {role: index for index, role in enumerate(by_operation) if role is not None}
    named = _by_names([facts.note(index).name.lower() for index in range(len(outputs))])
    if {BOXES, CLASSES, SCORES} <= named.keys():
        return named
    found = _by_values(outputs)
    if found is None:
        shapes = ", ".join(str(list(each.values.shape)) for each in outputs)
        raise ModelError(
            f"The outputs of this model, of shapes {shapes}, are not the boxes, classes and scores "
            "of a detector ([1, N, 4], [1, N], [1, N] and optionally the number of them). Choose "
            "another --task."
        )
    return found


def _by_names(names: Sequence[str]) -> dict[int, int]:
    found: dict[int, int] = {}
    for index, name in enumerate(names):
        for role, words in _ROLES.items():
            if any(word in name for word in words):
                found.setdefault(role, index)
                break
    return found


def _looks_like_boxes(outputs: Outputs) -> bool:
    shapes = [each.values.shape for each in outputs]
    boxes = [shape for shape in shapes if len(shape) == 3 and shape[-1] == 4]
    if len(outputs) not in (3, 4) or len(boxes) != 1:
        return False
    rows = boxes[0][1]
    lists = [each for each in outputs if each.values.size == rows and each.values.ndim == 2]
    return len(lists) == 2 and all(
        each.values.size == 1 for each in outputs if each.values.ndim < 2 or each.values.size < rows
    )


def _by_values(outputs: Outputs) -> dict[int, int] | None:
    """Return the roles of outputs by shape; of two vectors, the integers are the classes."""
    if not _looks_like_boxes(outputs):
        return None
    boxes = next(p for p, each in enumerate(outputs) if each.values.ndim == 3)
    rows = outputs[boxes].values.shape[1]
    lists = [p for p, each in enumerate(outputs) if each.values.shape[-1:] == (rows,)]
    lists = [p for p in lists if outputs[p].values.ndim == 2]
    whole = [bool(np.all(outputs[p].values % 1 == 0)) for p in lists]
    ranked = [bool(np.all(np.diff(outputs[p].values.reshape(-1)) <= 0)) for p in lists]
    # Scores are sorted, and hardly ever integers; if both are, as without objects, they come last.
    classes = (
        1 if whole == [False, True] or (whole[0] == whole[1] and ranked == [True, False]) else 0
    )
    found = {BOXES: boxes, CLASSES: lists[classes], SCORES: lists[1 - classes]}
    counts = [
        p for p, each in enumerate(outputs) if p not in found.values() and each.values.size == 1
    ]
    return found | ({COUNT: counts[0]} if counts else {})


def _corners(boxes: Array, facts: ModelFacts, output: int) -> Array:
    """Convert boxes from the metadata's format to left, top, right and bottom, from 0 to 1."""
    note = facts.note(output)
    order = note.box_order if sorted(note.box_order) == [0, 1, 2, 3] else _CORNERS
    # With two corners the metadata's order is that of left, top, right, bottom; otherwise of the
    # corner's or center's x and y, and width and height.
    ordered = boxes[:, order]
    if note.in_pixels:
        ordered = ordered / np.array([*facts.input_size, *facts.input_size])
    if note.box_form == _CORNER_AND_SIZE:
        ordered[:, 2:] += ordered[:, :2]
    elif note.box_form == _CENTRE_AND_SIZE:
        ordered[:, :2] -= ordered[:, 2:] / 2
        ordered[:, 2:] += ordered[:, :2]
    return ordered


_CORNER_AND_SIZE, _CENTRE_AND_SIZE = 2, 3


def _within(box: tuple[float, ...], picture: tuple[int, int]) -> tuple[float, float, float, float]:
    """Return a box with sorted corners, clipped to the picture."""
    width, height = picture
    left, right = sorted(min(max(x, 0.0), float(width)) for x in (box[0], box[2]))
    top, bottom = sorted(min(max(y, 0.0), float(height)) for y in (box[1], box[3]))
    return left, top, right, bottom
