"""Writes the metadata of .tflite files: names, scaling, labels and calibration of tensors."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import flatbuffers

from litegpu.files import metadata
from litegpu.files.metadata import AttachedFile, Calibration
from litegpu.zoo import objects, schema


@dataclass(frozen=True)
class Noted:
    """The metadata of a tensor."""

    name: str = ""
    mean: Sequence[float] = ()
    std: Sequence[float] = ()
    files: Sequence[AttachedFile] = ()
    threshold: float | None = None
    calibration: Calibration | None = None
    box_order: Sequence[int] = ()
    box_form: int = 1
    in_pixels: bool = False
    sound: tuple[int, int] | None = None
    """The sample rate and the number of channels."""


@dataclass(frozen=True)
class Written:
    """The metadata of a model, and the files that are attached to it."""

    inputs: Sequence[Noted] = ()
    outputs: Sequence[Noted] = ()
    custom: Mapping[str, bytes] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)

    def content(self) -> bytes:
        """Return the FlatBuffer."""
        b = _Builder()
        sides = [b.tables([b.tensor(each) for each in s]) for s in (self.inputs, self.outputs)]
        custom = [
            b.table((0, "ref", b.text(name)), (1, "ref", b.bytes(data)))
            for name, data in self.custom.items()
        ]
        graph = b.table((2, "ref", sides[0]), (3, "ref", sides[1]), (9, "ref", b.tables(custom)))
        return b.finish(b.table((3, "ref", b.tables([graph]))), b"M001")

    def on(self, model: bytes) -> bytes:
        """Return a model with these metadata."""
        parsed = objects.parse(model)
        tables = schema.tables()
        buffer, entry = tables.BufferT(), tables.MetadataT()
        buffer.data, buffer.offset, buffer.size = list(self.content()), 0, 0
        entry.name, entry.buffer = metadata.NAME, len(parsed.buffers)
        parsed.buffers = [*parsed.buffers, buffer]
        parsed.metadata = [*(parsed.metadata or ()), entry]
        target = io.BytesIO(objects.pack(parsed))
        if self.files:
            with zipfile.ZipFile(target, "a") as archive:
                for name, text in self.files.items():
                    archive.writestr(name, text)
        return target.getvalue()


def segmenter_metadata(activation: int) -> bytes:
    """Return the custom metadata of a segmenter: 0 none, 1 sigmoid, 2 softmax."""
    b = _Builder()
    return b.finish(b.table((0, "Uint8", activation)), b"V001")


def detector_metadata(
    anchors: Sequence[Sequence[float]], scale: float, points: int = 0, *, exponential: bool = False
) -> bytes:
    """Return the custom metadata of a detector whose scores are logits.

    Anchors are x and y of the center, width and height.
    """
    b = _Builder()
    rows = [b.table(*((n, "Float32", v) for n, v in enumerate(row))) for row in anchors]
    fixed = b.table((0, "ref", b.tables(rows)))
    listed = b.table((0, "ref", fixed))
    decoding = b.table(
        *((3, "Int32", 4), (4, "Int32", points)),
        *((number, "Float32", scale) for number in (6, 7, 8, 9)),
        *((10, "Bool", exponential), (11, "Bool", True)),
    )
    return b.finish(b.table((1, "ref", listed), (2, "ref", decoding)), b"V001")


class _Builder:
    def __init__(self) -> None:
        self._b = flatbuffers.Builder(256)

    def finish(self, root: int, identifier: bytes) -> bytes:
        self._b.Finish(root, file_identifier=identifier)
        return bytes(self._b.Output())

    def text(self, text: str) -> int:
        return int(self._b.CreateString(text))

    def bytes(self, data: bytes) -> int:
        return int(self._b.CreateByteVector(data))

    def table(self, *fields: tuple[int, str, Any]) -> int:
        """Write a table; `ref` is an offset, 0 for none."""
        self._b.StartObject(12)
        for number, kind, value in fields:
            slot = "UOffsetTRelative" if kind == "ref" else kind
            getattr(self._b, f"Prepend{slot}Slot")(number, value, 0)
        return int(self._b.EndObject())

    def tables(self, offsets: Sequence[int]) -> int:
        return self.vector("UOffsetTRelative", offsets)

    def vector(self, kind: str, values: Sequence[Any]) -> int:
        if not values:
            return 0
        self._b.StartVector(4, len(values), 4)
        for value in reversed(values):
            getattr(self._b, f"Prepend{kind}")(value)
        return int(self._b.EndVector())

    def tensor(self, noted: Noted) -> int:
        name = self.text(noted.name) if noted.name else 0
        content = 0
        if noted.box_order:
            order = self.vector("Uint32", noted.box_order)
            boxes = self.table(
                (0, "ref", order), (1, "Uint8", noted.box_form), (2, "Uint8", noted.in_pixels)
            )
            content = self.table((0, "Uint8", 3), (1, "ref", boxes))
        if noted.sound is not None:
            rate, channels = noted.sound
            sound = self.table((0, "Uint32", rate), (1, "Uint32", channels))
            content = self.table((0, "Uint8", 4), (1, "ref", sound))
        units = self.tables(self._units(noted))
        files = self.tables([self._file(each) for each in noted.files])
        return self.table(
            *((0, "ref", name), (3, "ref", content), (4, "ref", units), (6, "ref", files))
        )

    def _units(self, noted: Noted) -> list[int]:
        options = []
        if noted.mean:
            scales = (self.vector("Float32", each) for each in (noted.mean, noted.std))
            options.append((1, self.table(*((n, "ref", at) for n, at in enumerate(scales)))))
        if noted.calibration is not None:
            kind, score = noted.calibration.transformation, noted.calibration.default_score
            options.append((2, self.table((0, "Uint8", kind), (1, "Float32", score))))
        if noted.threshold is not None:
            options.append((3, self.table((0, "Float32", noted.threshold))))
        return [self.table((0, "Uint8", kind), (1, "ref", at)) for kind, at in options]

    def _file(self, file: AttachedFile) -> int:
        name, locale = self.text(file.name), self.text(file.locale) if file.locale else 0
        return self.table((0, "ref", name), (2, "Uint8", file.kind), (3, "ref", locale))
