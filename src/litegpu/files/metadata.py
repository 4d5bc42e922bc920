"""The metadata in a .tflite file: scaling of pictures, the meaning of outputs, attached files.

The metadata are a separate FlatBuffer; the constants in this module are field numbers of its
schema.
"""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum

from litegpu.files.flatbuffer import Flatbuffer

NAME = "TFLITE_METADATA"
"""Name of the metadata in a .tflite file."""

Numbers = tuple[float, ...]
"""One number per channel, or one number for all channels."""

_BUFFERS, _ENTRIES = 4, 6
_ENTRY_NAME, _ENTRY_BUFFER = 0, 1
_BUFFER_DATA = 0
_SUBGRAPHS = 3
_INPUTS, _OUTPUTS, _CUSTOM = 2, 3, 9
_CUSTOM_NAME, _CUSTOM_DATA = 0, 1
_TENSOR_NAME, _CONTENT, _UNITS, _FILES = 0, 3, 4, 6
_CONTENT_KIND, _CONTENT_PROPERTIES = 0, 1
_BOXES, _AUDIO = 3, 4
_RATE, _CHANNELS = 0, 1
_BOX_ORDER, _BOX_FORM, _BOX_UNIT = 0, 1, 2
_UNIT_KIND, _UNIT_OPTIONS = 0, 1
_NORMALIZATION, _CALIBRATION, _THRESHOLD = 1, 2, 3
_MEAN, _STD = 0, 1
_TRANSFORMATION, _DEFAULT_SCORE = 0, 1
_FILE_NAME, _FILE_KIND, _FILE_LOCALE = 0, 2, 3
_MAX_BYTES = 1 << 20
"""Maximum size of an attached file in bytes, because an archive may unpack to gigabytes."""


class FileKind(IntEnum):
    """The contents of an attached file, by the schema's numbers."""

    AXIS_LABELS = 2
    VALUE_LABELS = 3
    SCORE_CALIBRATION = 4


@dataclass(frozen=True)
class AttachedFile:
    """A file in the ZIP archive at the end of a model. `kind` is a FileKind or another number."""

    name: str
    kind: int
    locale: str = ""


@dataclass(frozen=True)
class Calibration:
    """The calibration of scores; an attached file has the parameters of each class.

    The score transformation is 0 (none), 1 (logarithm) or 2 (inverse logistic).
    """

    transformation: int
    default_score: float


@dataclass(frozen=True)
class TensorNotes:
    """The metadata of an input or output; a field is empty if the metadata do not specify it."""

    name: str = ""
    mean: Numbers = ()
    std: Numbers = ()
    files: tuple[AttachedFile, ...] = ()
    is_boxes: bool = False
    box_order: tuple[int, ...] = ()
    """Indices of left, top, right and bottom in a box, if the metadata specify them."""
    box_form: int = 0
    """The box format: 1: corners, 2: corner and size, 3: center and size, 0: unspecified."""
    in_pixels: bool = False
    score_threshold: float | None = None
    calibration: Calibration | None = None
    sample_rate: int = 0
    """Samples per second of sound; 0 if the tensor is no sound."""
    channels: int = 0
    """The number of channels of sound."""

    @property
    def label_files(self) -> tuple[str, ...]:
        """The names of the attached labels files, for an axis or for values."""
        kinds = (FileKind.AXIS_LABELS, FileKind.VALUE_LABELS)
        return tuple(each.name for each in self.files if each.kind in kinds)

    def file(self, kind: FileKind, locale: str = "") -> str:
        """Return the name of the first attached file of a kind and, if specified, a language."""
        for each in self.files:
            if each.kind == kind and locale in ("", each.locale):
                return each.name
        return ""


@dataclass(frozen=True)
class Metadata:
    """The metadata of a model's first graph."""

    inputs: tuple[TensorNotes, ...] = ()
    outputs: tuple[TensorNotes, ...] = ()
    custom: Mapping[str, bytes] = field(default_factory=dict)
    """Further metadata by name."""


def read(content: bytes) -> Metadata:
    """Parse a FlatBuffer of metadata; the result is empty if the FlatBuffer is empty or damaged."""
    if not content:
        return Metadata()
    try:
        return _Reader(Flatbuffer(content)).metadata()
    except (struct.error, IndexError, MemoryError):
        return Metadata()


def read_model(model: bytes) -> Metadata:
    """Return the metadata of a .tflite file; the result is empty if they are missing or damaged."""
    try:
        return read(_entry(Flatbuffer(model), NAME))
    except (struct.error, IndexError):
        return Metadata()


def attached_file(model: bytes, name: str) -> bytes | None:
    """Return a file in the ZIP archive at the end of a model; None if the file cannot be read."""
    content = io.BytesIO(model)
    try:
        with zipfile.ZipFile(content) as archive:
            if archive.getinfo(name).file_size > _MAX_BYTES:
                return None
            return archive.read(name)
    except Exception:  # a damaged archive may make zipfile raise anything
        return None


def _entry(data: Flatbuffer, name: str) -> bytes:
    """Return the bytes of the metadata entry with this name; empty if the model has none."""
    root = data.target(0)
    entries, buffers = data.field(root, _ENTRIES), data.field(root, _BUFFERS)
    for index in range(data.count(entries)):
        entry = data.entry(entries, index)
        if data.text(entry, _ENTRY_NAME) == name:
            buffer = data.entry(buffers, data.scalar(entry, _ENTRY_BUFFER, "<I"))
            return _bytes(data, data.field(buffer, _BUFFER_DATA))
    return b""


def _bytes(data: Flatbuffer, vector: int) -> bytes:
    size = data.number(vector) if vector else 0
    if vector + 4 + size > len(data.data):
        raise IndexError(size)
    return bytes(data.data[vector + 4 : vector + 4 + size])


@dataclass(frozen=True)
class _Reader:
    data: Flatbuffer

    def metadata(self) -> Metadata:
        graph = next(self._tables(self.data.target(0), _SUBGRAPHS), 0)
        if not graph:
            return Metadata()
        inputs, outputs = (
            tuple(self._tensor(each) for each in self._tables(graph, number))
            for number in (_INPUTS, _OUTPUTS)
        )
        custom = {
            self.data.text(each, _CUSTOM_NAME): _bytes(
                self.data, self.data.field(each, _CUSTOM_DATA)
            )
            for each in self._tables(graph, _CUSTOM)
        }
        return Metadata(inputs, outputs, custom)

    def _tensor(self, table: int) -> TensorNotes:
        boxes, sound = (self._content(table, each) for each in (_BOXES, _AUDIO))
        mean, std = self._scaling(table)
        return TensorNotes(
            name=self.data.text(table, _TENSOR_NAME),
            mean=mean,
            std=std,
            files=tuple(map(self._file, self._tables(table, _FILES))),
            is_boxes=bool(boxes),
            box_order=self.data.numbers(boxes, _BOX_ORDER) if boxes else (),
            box_form=self.data.scalar(boxes, _BOX_FORM, "<B") if boxes else 0,
            in_pixels=bool(boxes and self.data.scalar(boxes, _BOX_UNIT, "<B")),
            score_threshold=self._threshold(table),
            calibration=self._calibration(table),
            sample_rate=self.data.scalar(sound, _RATE, "<I") if sound else 0,
            channels=self.data.scalar(sound, _CHANNELS, "<I") if sound else 0,
        )

    def _content(self, table: int, kind: int) -> int:
        """Return the properties of a tensor's content if it is of this kind, else 0."""
        content = self.data.field(table, _CONTENT)
        if content and self.data.scalar(content, _CONTENT_KIND, "<B") == kind:
            return self.data.field(content, _CONTENT_PROPERTIES)
        return 0

    def _file(self, table: int) -> AttachedFile:
        name, locale = (self.data.text(table, each) for each in (_FILE_NAME, _FILE_LOCALE))
        return AttachedFile(name, self.data.scalar(table, _FILE_KIND, "<B"), locale)

    def _scaling(self, table: int) -> tuple[Numbers, Numbers]:
        """Return mean and standard deviation of pixels, one number per channel or one for all."""
        for options in self._units(table, _NORMALIZATION):
            mean, std = (self._floats(options, each) for each in (_MEAN, _STD))
            if mean and len(mean) == len(std) and all(std):
                return mean, std
        return (), ()

    def _threshold(self, table: int) -> float | None:
        for options in self._units(table, _THRESHOLD):
            return float(self.data.scalar(options, 0, "<f"))
        return None

    def _calibration(self, table: int) -> Calibration | None:
        for options in self._units(table, _CALIBRATION):
            return Calibration(
                self.data.scalar(options, _TRANSFORMATION, "<B"),
                float(self.data.scalar(options, _DEFAULT_SCORE, "<f")),
            )
        return None

    def _units(self, table: int, kind: int) -> Iterator[int]:
        """Yield the options of a tensor's process units that have this type."""
        for unit in self._tables(table, _UNITS):
            options = self.data.field(unit, _UNIT_OPTIONS)
            if options and self.data.scalar(unit, _UNIT_KIND, "<B") == kind:
                yield options

    def _floats(self, table: int, number: int) -> Numbers:
        vector = self.data.field(table, number)
        count = self.data.count(vector)
        return struct.unpack_from(f"<{count}f", self.data.data, vector + 4) if count else ()

    def _tables(self, table: int, number: int) -> Iterator[int]:
        vector = self.data.field(table, number)
        for index in range(self.data.count(vector)):
            yield self.data.entry(vector, index)
