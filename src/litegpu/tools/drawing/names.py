"""Class names of common datasets, for models that contain no names."""

from __future__ import annotations

from litegpu.errors import FileError
from litegpu.tools.drawing.finding import Scene
from litegpu.tools.labels import attached_labels

# fmt: off
COCO = (
    "person", "bicycle", "car", "motorcycle", "airplane", "bus", "train", "truck", "boat",
    "traffic light", "fire hydrant", "", "stop sign", "parking meter", "bench", "bird", "cat",
    "dog", "horse", "sheep", "cow", "elephant", "bear", "zebra", "giraffe", "", "backpack",
    "umbrella", "", "", "handbag", "tie", "suitcase", "frisbee", "skis", "snowboard",
    "sports ball", "kite", "baseball bat", "baseball glove", "skateboard", "surfboard",
    "tennis racket", "bottle", "", "wine glass", "cup", "fork", "knife", "spoon", "bowl",
    "banana", "apple", "sandwich", "orange", "broccoli", "carrot", "hot dog", "pizza", "donut",
    "cake", "chair", "couch", "potted plant", "bed", "", "dining table", "", "", "toilet", "",
    "tv", "laptop", "mouse", "remote", "keyboard", "cell phone", "microwave", "oven", "toaster",
    "sink", "refrigerator", "", "book", "clock", "vase", "scissors", "teddy bear", "hair drier",
    "toothbrush",
)
"""COCO's class names by category id, from 1; ten ids are unused and have empty names."""
PASCAL_VOC = (
    "background", "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair",
    "cow", "dining table", "dog", "horse", "motorbike", "person", "potted plant", "sheep", "sofa",
    "train", "TV monitor",
)
# fmt: on
COCO_USED = tuple(name for name in COCO if name)
"""COCO's class names without unused ids."""
_KNOWN = {len(COCO): COCO, len(COCO_USED): COCO_USED}
_NAMELESS = {"???", ""}
_NO_OBJECT = {*_NAMELESS, "background", "__background__", "unlabeled", "unlabelled"}
"""Names of a first line in a labels file that is not a class of objects."""


def object_names(scene: Scene, classes: int) -> tuple[str, ...]:
    """Return the names of a detector's classes; index 0 is the first class of objects.

    The names come from the user's file, from a labels file in the model, or from COCO if the number
    of classes is equal. `classes` is 0 if the number of classes is unknown.

    Raises:
        FileError: the number of lines of the user's file differs from the number of classes.
    """
    return scene.remembered("object_names", classes, lambda: _object_names(scene, classes))


def _object_names(scene: Scene, classes: int) -> tuple[str, ...]:
    given = (
        scene.named.lines
        if scene.named
        else attached_labels(scene.content, scene.facts.label_files)
    )
    lines = tuple(line.strip() for line in given)
    background = bool(lines) and lines[0].lower() in _NO_OBJECT
    if lines and classes in (0, len(lines) - background):
        return lines[background:]
    if lines and classes == len(lines):
        return lines
    if lines and classes == len(lines) - 1:
        return lines[1:]
    if scene.named:
        raise FileError(
            f"The labels file '{scene.named.file}' has {len(lines)} lines but the model has "
            f"{classes} classes of objects. Give a file with one class a line; a first "
            "line '???' stands for the background."
        )
    return _KNOWN.get(classes, ())


def pixel_names(scene: Scene, classes: int) -> tuple[str, ...]:
    """Return the names of a segmenter's classes; index 0 is usually the background.

    The names come from the user's file, from a labels file in the model, or from PASCAL VOC if the
    number of classes is equal. Two classes are called background and foreground. `classes` is 0 if
    the number of classes is unknown.

    Raises:
        FileError: the number of lines of the user's file differs from the number of classes.
    """
    return scene.remembered("pixel_names", classes, lambda: _pixel_names(scene, classes))


def _pixel_names(scene: Scene, classes: int) -> tuple[str, ...]:
    lines = tuple(
        scene.named.lines
        if scene.named
        else attached_labels(scene.content, scene.facts.label_files)
    )
    if lines and classes in (0, len(lines)):
        return lines
    if scene.named:
        raise FileError(
            f"The labels file '{scene.named.file}' has {len(lines)} lines but the model has "
            f"{classes} classes of pixels. Give a file with one class a line, the "
            "background among them."
        )
    if classes in (1, 2):
        return ("background", "foreground")
    return PASCAL_VOC if classes == len(PASCAL_VOC) else ()


def name_of(names: tuple[str, ...], number: int) -> str:
    """Return the name of a class, or its index if the class has no name."""
    name = names[number] if 0 <= number < len(names) else ""
    return f"class {number}" if name in _NAMELESS else name


def has_background(names: tuple[str, ...]) -> bool:
    """Return whether class 0 is the background, which it is by name or if there are no names."""
    return not names or names[0].strip().lower() in _NO_OBJECT
