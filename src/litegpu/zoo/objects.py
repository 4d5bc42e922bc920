"""Converts .tflite files to objects of the schema and back."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np

from litegpu.errors import ModelError
from litegpu.files import MODEL_IDENTIFIER
from litegpu.zoo import schema

_BUFFER_ALIGNMENT = 16
_NO_OFFSET = 1
"""The largest offset value of a buffer whose data are in the tables."""
_MAX_INSIDE = 1 << 30
"""Maximum bytes of all constants in the tables."""


def parse(content: bytes) -> Any:
    """Return a .tflite file as a ModelT; its constants are views of the bytes.

    The function also reads constants and options that files of more than 2 GB store after the
    tables.

    Raises:
        ModelError: The byte range of a constant is outside of the file.
        MissingDependencyError: ai-edge-litert or flatbuffers is not installed.
    """
    tables = schema.tables()
    model = tables.ModelT.InitFromObj(tables.Model.GetRootAs(content, 0))
    for number, buffer in enumerate(model.buffers or ()):
        if buffer.offset > _NO_OFFSET:
            buffer.data = _stored(content, buffer.offset, buffer.size, f"Constant {number}")
            buffer.offset = buffer.size = 0
    for graph in model.subgraphs or ():
        for number, node in enumerate(graph.operators or ()):
            if node.largeCustomOptionsOffset > _NO_OFFSET:
                place = (node.largeCustomOptionsOffset, node.largeCustomOptionsSize)
                node.customOptions = _stored(content, *place, f"The options of node {number}")
                node.largeCustomOptionsOffset = node.largeCustomOptionsSize = 0
    return model


def _stored(content: bytes, offset: int, size: int, what: str) -> Any:
    if offset + size > len(content):
        raise ModelError(
            f"{what} of the model would be at bytes {offset} to {offset + size} of {len(content)}. "
            "Download or convert the model again."
        )
    return np.frombuffer(content, np.uint8, size, offset)


def pack(model: Any) -> bytes:
    """Return a ModelT as the bytes of a .tflite file with aligned constants.

    If the constants have more than 1 GiB in total, the function stores them after the tables,
    because table offsets are limited to 2 GiB.
    """
    sizes = [len(_data(buffer)) for buffer in model.buffers]
    if sum(sizes) <= _MAX_INSIDE:
        return _packed(model, [_AlignedBuffer(buffer) for buffer in model.buffers])
    # Tables with other offsets have the same length.
    tables = _packed(model, _outside(sizes, _BUFFER_ALIGNMENT))
    outside = _outside(sizes, len(tables))
    parts: list[Any] = [_packed(model, outside)]
    length = len(tables)
    for buffer, place in zip(model.buffers, outside, strict=True):
        if place.size:
            parts += [bytes(place.offset - length), memoryview(_data(buffer)).cast("B")]
            length = place.offset + place.size
    return b"".join(parts)


def _packed(model: Any, buffers: Sequence[Any]) -> bytes:
    flatbuffers = schema.require("flatbuffers", "flatbuffers")
    packed = copy.copy(model)
    packed.buffers = buffers
    builder = flatbuffers.Builder(sum(len(_data(buffer)) + 64 for buffer in buffers))
    builder.Finish(packed.Pack(builder), file_identifier=MODEL_IDENTIFIER)
    return bytes(builder.Output())


def _outside(sizes: Sequence[int], begin: int) -> list[Any]:
    """Return a BufferT for each size, with consecutive data that start at offset `begin`."""
    buffers = []
    for size in sizes:
        buffer = schema.tables().BufferT()
        if size:
            begin = -(-begin // _BUFFER_ALIGNMENT) * _BUFFER_ALIGNMENT
            buffer.offset, buffer.size = begin, size
            begin += size
        buffers.append(buffer)
    return buffers


def _data(buffer: Any) -> Any:
    return b"" if buffer.data is None else buffer.data


def content(buffer: Any) -> bytes:
    """Return the bytes of a BufferT; empty if it has no data."""
    return bytes(_data(buffer))


def buffer_of(data: bytes) -> Any:
    """Return a BufferT with these bytes."""
    buffer = schema.tables().BufferT()
    buffer.data = np.frombuffer(data, np.uint8) if data else None
    return buffer


class _AlignedBuffer:
    """Packs a buffer table with aligned data, because the generated code does not align data."""

    def __init__(self, table: Any) -> None:
        self._table = table
        self.data = table.data

    def Pack(self, builder: Any) -> int:  # noqa: N802 - called by the generated code
        if size := len(_data(self)):
            builder.Prep(_BUFFER_ALIGNMENT, size)
        offset: int = self._table.Pack(builder)
        return offset
