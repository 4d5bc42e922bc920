"""Writes the files of language models (.litertlm)."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from litegpu.files.members import LITERTLM_IDENTIFIER
from litegpu.zoo import schema

BLOCK = 16384
"""Sections begin at multiples of this number of bytes."""


class Section(NamedTuple):
    """A section of a .litertlm file; `begin` and `end` override its actual position."""

    content: bytes
    kind: int = 3
    model_type: str = "tf_lite_prefill_decode"
    begin: int | None = None
    end: int | None = None


def litertlm(sections: Sequence[Section], version: Sequence[int] = (1, 7, 0)) -> bytes:
    """Return a .litertlm file whose sections begin at multiples of 16 KiB."""
    places, at = [], BLOCK
    for each in sections:
        begin = at if each.begin is None else each.begin
        places.append((begin, at + len(each.content) if each.end is None else each.end))
        at += -(-len(each.content) // BLOCK) * BLOCK
    return with_start(_header(sections, places), version).ljust(BLOCK, b"\0") + b"".join(
        each.content.ljust(-(-len(each.content) // BLOCK) * BLOCK, b"\0") for each in sections
    )


def new_builder() -> Any:
    """Return a builder for a header. Raises MissingDependencyError without flatbuffers."""
    return schema.require("flatbuffers", "flatbuffers").Builder(BLOCK)


def with_start(header: bytes, version: Sequence[int] = (1, 7, 0)) -> bytes:
    """Return the start of a file: identifier, version, end of the header, header."""
    return struct.pack("<8s3I4xQ", LITERTLM_IDENTIFIER, *version, 32 + len(header)) + header


def _header(sections: Sequence[Section], places: Sequence[tuple[int, int]]) -> bytes:
    builder = new_builder()
    objects = []
    for each, (begin, end) in zip(sections, places, strict=True):
        items = _items(builder, each.model_type)
        builder.StartObject(4)
        if items:
            builder.PrependUOffsetTRelativeSlot(0, items, 0)
        builder.PrependUint64Slot(1, begin, 0)
        builder.PrependUint64Slot(2, end, 0)
        builder.PrependUint8Slot(3, each.kind, 0)
        objects.append(builder.EndObject())
    listed = table(builder, 1, {0: vector(builder, objects)})
    builder.Finish(table(builder, 2, {1: listed}))
    return bytes(builder.Output())


def _items(builder: Any, model_type: str) -> int:
    if not model_type:
        return 0
    value = table(builder, 1, {0: builder.CreateString(model_type)})
    key = builder.CreateString("model_type")
    builder.StartObject(3)
    builder.PrependUOffsetTRelativeSlot(0, key, 0)
    builder.PrependUint8Slot(1, 9, 0)
    builder.PrependUOffsetTRelativeSlot(2, value, 0)
    return vector(builder, [builder.EndObject()])


def table(builder: Any, fields: int, offsets: Mapping[int, int]) -> int:
    """Write a table with the offsets of some of its fields."""
    builder.StartObject(fields)
    for field, offset in offsets.items():
        builder.PrependUOffsetTRelativeSlot(field, offset, 0)
    return int(builder.EndObject())


def vector(builder: Any, offsets: Sequence[int]) -> int:
    """Write a vector of tables or texts."""
    builder.StartVector(4, len(offsets), 4)
    for offset in reversed(offsets):
        builder.PrependUOffsetTRelative(offset)
    return int(builder.EndVector())
