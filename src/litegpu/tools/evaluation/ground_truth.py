"""Reads ground truth: TensorFlow Lite's proto, COCO's JSON, or lines of text."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from litegpu.errors import FileError
from litegpu.files.wire import fields, message, repeated
from litegpu.tools.evaluation.average_precision import Detection

_PROTO_START = b"\n"
"""The tag of field 1, the first byte of every non-empty file of the proto."""
_COLUMNS = ("image", "class", "top", "left", "bottom", "right")


@dataclass(frozen=True)
class TruePicture:
    """The true objects of a picture, and the picture's file name."""

    name: str
    image_id: int
    objects: tuple[Detection, ...]


@dataclass(frozen=True)
class GroundTruth:
    """The ground truth of all pictures by name, and the dataset in COCO's JSON format.

    `dataset` also has objects that TensorFlow Lite's evaluation omits: crowds, and boxes that
    exceed the picture. In `dataset`, a picture of unknown size has size 1 x 1.
    """

    pictures: dict[str, TruePicture]
    dataset: dict[str, Any]


def read_ground_truth(path: str, labels: Sequence[str] = ()) -> GroundTruth:
    """Read the ground truth from a file in any of the three formats.

    A line of text is `image,class,top,left,bottom,right`. The class is a number or one of `labels`,
    and the edges are fractions of the picture's size.

    Raises:
        FileError: the file cannot be read, or has an unknown format.
    """
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from error
    try:
        if content.lstrip()[:1] == b"{":
            data = json.loads(content)
            return GroundTruth(_by_name(coco_pictures(data)), data)
        pictures = (
            list(_from_proto(content))
            if content[:1] in (b"", _PROTO_START)
            else _from_text(content.decode(), labels)
        )
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError) as error:
        reason = f"there is no {error}" if isinstance(error, KeyError) else str(error)
        raise _unreadable(path, reason) from error
    return GroundTruth(_by_name(pictures), _as_dataset(pictures))


def _unreadable(path: str, why: str) -> FileError:
    return FileError(
        f"The ground truth '{path}' cannot be read: {why}. Give a binary "
        "ObjectDetectionGroundTruth (litegpu preprocess_coco_minival writes one), COCO's "
        f"instances JSON, or lines of {','.join(_COLUMNS)}."
    )


def _by_name(pictures: Iterable[TruePicture]) -> dict[str, TruePicture]:
    return {each.name: each for each in pictures}


# COCO's JSON


def coco_pictures(data: Any, allowed: Collection[int] | None = None) -> list[TruePicture]:
    """Return the pictures of COCO's instances, in order; only `allowed` ones if specified.

    Boxes that exceed their picture are skipped. A crowd counts as one object.

    Raises: KeyError, TypeError, ValueError: the data are not in COCO's instances format.
    """
    images = {
        int(each["id"]): each for each in data["images"] if allowed is None or each["id"] in allowed
    }
    objects: dict[int, list[Detection]] = {each: [] for each in images}
    for each in data["annotations"]:
        image = images.get(each["image_id"])
        box = image and _relative_box(each["bbox"], image["width"], image["height"])
        if box:
            objects[each["image_id"]].append(Detection(int(each["category_id"]), box))
    return [
        TruePicture(PurePath(image["file_name"]).name, number, tuple(objects[number]))
        for number, image in images.items()
    ]


def _relative_box(
    box: Sequence[float], width: float, height: float
) -> tuple[float, float, float, float] | None:
    """Return top, left, bottom and right as fractions of the picture; None if one is outside."""
    if not (width > 0 and height > 0):
        raise ValueError(f"a picture is {width} x {height} pixels large")
    left, top, across, down = box
    bottom, right = top + down, left + across
    if max(top, bottom) > height or max(left, right) > width:
        return None
    return (top / height, left / width, bottom / height, right / width)


def _as_dataset(pictures: Sequence[TruePicture]) -> dict[str, Any]:
    """Return pictures in COCO's format, with their indices as ids."""
    annotations: list[dict[str, Any]] = []
    for index, picture in enumerate(pictures):
        for each in picture.objects:
            top, left, bottom, right = each.box
            box = [left, top, right - left, bottom - top]
            annotations.append(
                {
                    "id": len(annotations) + 1,
                    "image_id": index,
                    "category_id": each.class_id,
                    "bbox": box,
                    "area": box[2] * box[3],
                    "iscrowd": 0,
                }
            )
    classes = sorted({each["category_id"] for each in annotations})
    return {
        "images": [
            {"id": index, "file_name": each.name, "width": 1, "height": 1}
            for index, each in enumerate(pictures)
        ],
        "annotations": annotations,
        "categories": [{"id": each, "name": str(each)} for each in classes],
    }


# Text


def _from_text(text: str, labels: Sequence[str]) -> list[TruePicture]:
    objects: dict[str, list[Detection]] = {}
    rows = csv.reader(io.StringIO(text))
    for row in rows:
        cells = [cell.strip() for cell in row]
        if not any(cells) or cells[0].startswith("#") or tuple(cells) == _COLUMNS:
            continue
        if len(cells) != len(_COLUMNS):
            raise ValueError(f"line {rows.line_num} has {len(cells)} columns")
        try:
            top, left, bottom, right = map(float, cells[2:])
            each = Detection(_class_number(cells[1], labels), (top, left, bottom, right))
        except ValueError as error:
            raise ValueError(f"line {rows.line_num}: {error}") from error
        objects.setdefault(cells[0], []).append(each)
    return [
        TruePicture(name, index, tuple(found))
        for index, (name, found) in enumerate(objects.items())
    ]


def _class_number(text: str, labels: Sequence[str]) -> int:
    if text in labels:
        return labels.index(text)
    if text.lstrip("-").isdecimal():
        return int(text)
    raise ValueError(f"'{text}' is neither a number nor one of the labels")


# The proto


def _from_proto(content: bytes) -> Iterable[TruePicture]:
    for number, value in fields(content):
        if number == 1:
            yield _picture(_message(value))


def _picture(content: bytes) -> TruePicture:
    objects, name, image_id = [], "", 0
    for number, value in fields(content):
        if number == 1:
            objects.append(_object(_message(value)))
        elif number == 2:
            name = _message(value).decode()
        elif number == 3:
            image_id = int(value)
    return TruePicture(name, image_id, tuple(objects))


def _object(content: bytes) -> Detection:
    values: dict[int, Any] = {1: 0, 2: b"", 3: 1.0, **dict(fields(content))}
    edges: dict[int, Any] = dict(fields(_message(values[2])))
    top, bottom, left, right = (float(edges.get(number, 0.0)) for number in range(1, 5))
    class_id = int(values[1])
    signed = class_id - (1 << 64) if class_id >> 63 else class_id
    return Detection(signed, (top, left, bottom, right), float(values[3]))


def _message(value: int | float | bytes) -> bytes:
    if not isinstance(value, bytes):
        raise ValueError(f"{value} in place of a message or a text")
    return value


def as_proto(pictures: Iterable[TruePicture]) -> bytes:
    """Encode pictures as the message ObjectDetectionGroundTruth."""
    return message(
        *repeated(
            1,
            (
                message(
                    *repeated(1, map(_object_message, each.objects)),
                    (2, each.name),
                    (3, each.image_id),
                )
                for each in pictures
            ),
        )
    )


def _object_message(each: Detection) -> bytes:
    top, left, bottom, right = (np.float32(edge) for edge in each.box)
    return message((1, each.class_id), (2, message((1, top), (2, bottom), (3, left), (4, right))))
