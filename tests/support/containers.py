"""Writes small containers of models: MediaPipe's bundles, and files of language models."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import flatbuffers

BLOCK = 16384


def bundle(members: Mapping[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    """Return a zip archive."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


class Section(NamedTuple):
    """A section of a .litertlm file; `begin` and `end` replace its true place."""

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
    return _start(_header(sections, places), version).ljust(BLOCK, b"\0") + b"".join(
        each.content.ljust(-(-len(each.content) // BLOCK) * BLOCK, b"\0") for each in sections
    )


def shared_items(sections: int, items: int, key: str) -> bytes:
    """Return a .litertlm file of empty sections that all have the same item, many times."""
    builder = flatbuffers.Builder(BLOCK)
    name = builder.CreateString(key)
    vector = _vector(builder, [_table(builder, 3, {0: name})] * items)
    listed = _vector(builder, [_table(builder, 4, {0: vector})] * sections)
    builder.Finish(_table(builder, 2, {1: _table(builder, 1, {0: listed})}))
    return _start(bytes(builder.Output()), (1, 7, 0))


def _start(header: bytes, version: Sequence[int]) -> bytes:
    return struct.pack("<8s3I4xQ", b"LITERTLM", *version, 32 + len(header)) + header


def _header(sections: Sequence[Section], places: Sequence[tuple[int, int]]) -> bytes:
    builder = flatbuffers.Builder(BLOCK)
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
    listed = _table(builder, 1, {0: _vector(builder, objects)})
    builder.Finish(_table(builder, 2, {1: listed}))
    return bytes(builder.Output())


def _items(builder: flatbuffers.Builder, model_type: str) -> int:
    if not model_type:
        return 0
    value = _table(builder, 1, {0: builder.CreateString(model_type)})
    key = builder.CreateString("model_type")
    builder.StartObject(3)
    builder.PrependUOffsetTRelativeSlot(0, key, 0)
    builder.PrependUint8Slot(1, 9, 0)
    builder.PrependUOffsetTRelativeSlot(2, value, 0)
    return _vector(builder, [builder.EndObject()])


def _table(builder: flatbuffers.Builder, fields: int, offsets: Mapping[int, int]) -> int:
    builder.StartObject(fields)
    for field, offset in offsets.items():
        builder.PrependUOffsetTRelativeSlot(field, offset, 0)
    return int(builder.EndObject())


def _vector(builder: flatbuffers.Builder, offsets: Sequence[int]) -> int:
    builder.StartVector(4, len(offsets), 4)
    for offset in reversed(offsets):
        builder.PrependUOffsetTRelative(offset)
    return int(builder.EndVector())
