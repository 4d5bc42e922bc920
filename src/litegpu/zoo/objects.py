"""Converts .tflite files to the schema's objects and back."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np

from litegpu.files import MODEL_IDENTIFIER
from litegpu.zoo import schema

_BUFFER_ALIGNMENT = 16


def parse(content: bytes) -> Any:
    """Return a .tflite file as a ModelT; its constants are views of the bytes.

    Raises:
        MissingDependencyError: ai-edge-litert or flatbuffers is not installed.
    """
    tables = schema.tables()
    return tables.ModelT.InitFromObj(tables.Model.GetRootAs(content, 0))


def pack(model: Any) -> bytes:
    """Return a ModelT as the bytes of a .tflite file, with its constants aligned."""
    flatbuffers = schema.require("flatbuffers", "flatbuffers")
    packed = copy.copy(model)
    packed.buffers = [_AlignedBuffer(buffer) for buffer in model.buffers]
    builder = flatbuffers.Builder(sum(len(content(buffer)) + 64 for buffer in model.buffers))
    builder.Finish(packed.Pack(builder), file_identifier=MODEL_IDENTIFIER)
    return bytes(builder.Output())


def content(buffer: Any) -> bytes:
    """Return the bytes of a BufferT; none where it has no data."""
    return b"" if buffer.data is None else bytes(buffer.data)


def buffer_of(data: bytes) -> Any:
    """Return a BufferT with these bytes."""
    buffer = schema.tables().BufferT()
    buffer.data = np.frombuffer(data, np.uint8) if data else None
    return buffer


class _AlignedBuffer:
    """Packs one buffer table with aligned data, which the generated code omits."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def Pack(self, builder: Any) -> int:  # noqa: N802 - called by the generated code
        size = len(content(self._table))
        if size:
            builder.Prep(_BUFFER_ALIGNMENT, size)
        offset: int = self._table.Pack(builder)
        return offset
