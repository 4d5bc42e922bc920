"""The metadata in a .tflite file: scaling of pictures, and the meaning of outputs.

They are a separate FlatBuffer. The numbers below are field numbers of its schema.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from litegpu.zoo import schema

NAME = "TFLITE_METADATA"
"""Name of the metadata in a .tflite file."""

Numbers = tuple[float, ...]
"""One number for each channel, or one for all."""

_SUBGRAPHS = 4
_INPUTS, _OUTPUTS = 2, 3
_TENSOR_NAME, _CONTENT, _UNITS, _FILES = 0, 3, 4, 6
_CONTENT_KIND, _CONTENT_PROPERTIES = 0, 1
_BOXES = 3
_BOX_ORDER, _BOX_FORM, _BOX_UNIT = 0, 1, 2
_UNIT_KIND, _UNIT_OPTIONS = 0, 1
_NORMALIZATION = 1
_MEAN, _STD = 0, 1
_FILE_NAME, _FILE_KIND = 0, 2
_LABEL_FILES = (2, 3)
"""Kinds of associated files: the labels of an axis, or of values."""


@dataclass(frozen=True)
class TensorNotes:
    """The metadata of an input or output; empty fields are not specified."""

    name: str = ""
    mean: Numbers = ()
    std: Numbers = ()
    label_files: tuple[str, ...] = ()
    is_boxes: bool = False
    box_order: tuple[int, ...] = ()
    """Positions of left, top, right and bottom in a box, if specified."""
    box_form: int = 0
    """1: left, top, right, bottom. 2: corner and size. 3: center and size. 0: not specified."""
    in_pixels: bool = False


@dataclass(frozen=True)
class Metadata:
    """The metadata of a model's first graph."""

    inputs: tuple[TensorNotes, ...] = ()
    outputs: tuple[TensorNotes, ...] = ()


@dataclass(frozen=True)
class _Table:
    """A table in a FlatBuffer, whose fields are read by number."""

    table: Any
    numbers: Any = field(repr=False)

    def at(self, number: int) -> int:
        """Return the position of a field, 0 if it is missing."""
        offset = self.table.Offset(4 + 2 * number)
        return int(offset + self.table.Pos) if offset else 0

    def child(self, number: int) -> _Table | None:
        """Return the table in a field."""
        position = self.at(number)
        return self._table(self.table.Indirect(position)) if position else None

    def children(self, number: int) -> Iterator[_Table]:
        """Yield the tables in a vector."""
        for position in self._elements(number, 4):
            yield self._table(self.table.Indirect(position))

    def text(self, number: int) -> str:
        """Return a text, empty if there is none."""
        position = self.at(number)
        return self.table.String(position).decode(errors="replace") if position else ""

    def byte(self, number: int) -> int:
        """Return a one-byte number, 0 if there is none."""
        position = self.at(number)
        return int(self.table.Get(self.numbers.Uint8Flags, position)) if position else 0

    def vector(self, number: int, kind: str) -> tuple[Any, ...]:
        """Return a vector of four-byte numbers: "Float32Flags" or "Uint32Flags"."""
        flags = getattr(self.numbers, kind)
        return tuple(self.table.Get(flags, position) for position in self._elements(number, 4))

    def _elements(self, number: int, size: int) -> range:
        position = self.at(number)
        if not position:
            return range(0)
        field_at = position - self.table.Pos
        count = self.table.VectorLen(field_at)
        if not 0 <= count <= len(self.table.Bytes) // size:
            raise ValueError(f"a vector of {count} elements")
        start = self.table.Vector(field_at)
        return range(start, start + size * count, size)

    def _table(self, position: int) -> _Table:
        if not 0 <= position < len(self.table.Bytes):
            raise ValueError(f"a table at {position}")
        return _Table(type(self.table)(self.table.Bytes, position), self.numbers)


def read(content: bytes) -> Metadata:
    """Return the metadata; nothing if they are empty or damaged.

    Raises:
        MissingDependencyError: flatbuffers is not installed.
    """
    if not content:
        return Metadata()
    tables = schema.require("flatbuffers.table", "flatbuffers")
    numbers = schema.require("flatbuffers.number_types", "flatbuffers")
    try:
        root = _Table(tables.Table(content, int.from_bytes(content[:4], "little")), numbers)
        graph = next(root.children(_SUBGRAPHS), None)
        if graph is None:
            return Metadata()
        inputs, outputs = (
            tuple(_tensor(each) for each in graph.children(number))
            for number in (_INPUTS, _OUTPUTS)
        )
        return Metadata(inputs, outputs)
    except Exception:  # damaged bytes may raise anything; then there are no metadata
        return Metadata()


def _tensor(table: _Table) -> TensorNotes:
    mean, std = _scaling(table)
    content = table.child(_CONTENT)
    boxes = None
    if content and content.byte(_CONTENT_KIND) == _BOXES:
        boxes = content.child(_CONTENT_PROPERTIES)
    return TensorNotes(
        name=table.text(_TENSOR_NAME),
        mean=mean,
        std=std,
        label_files=tuple(
            each.text(_FILE_NAME)
            for each in table.children(_FILES)
            if each.byte(_FILE_KIND) in _LABEL_FILES
        ),
        is_boxes=boxes is not None,
        box_order=tuple(map(int, boxes.vector(_BOX_ORDER, "Uint32Flags"))) if boxes else (),
        box_form=boxes.byte(_BOX_FORM) if boxes else 0,
        in_pixels=bool(boxes and boxes.byte(_BOX_UNIT)),
    )


def _scaling(table: _Table) -> tuple[Numbers, Numbers]:
    """Return mean and standard deviation of pixels, one number per channel or one for all."""
    for unit in table.children(_UNITS):
        options = unit.child(_UNIT_OPTIONS)
        if unit.byte(_UNIT_KIND) == _NORMALIZATION and options:
            mean, std = (options.vector(each, "Float32Flags") for each in (_MEAN, _STD))
            if mean and len(mean) == len(std) and all(std):
                return mean, std
    return (), ()
