"""Moves the constants of a model out of its tables, as converters for large models do."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any
from unittest import mock

from litegpu.zoo import objects, schema

_SMALLEST = 64
"""Constants of fewer bytes remain in the tables."""


def appended(content: bytes) -> bytes:
    """Return a model with all constants after its tables."""
    with mock.patch.object(objects, "_MAX_INSIDE", 0):
        return objects.pack(objects.parse(content))


def external(
    content: bytes, file: str = "tflite_weights", begin: int = 0, **fields: Any
) -> tuple[bytes, bytes]:
    """Return a model without its large constants, and the bytes of these, from offset `begin`.

    `file` is the name of the file with the weights. `fields` replace those of the last external
    buffer.
    """
    tables, model = schema.tables(), objects.parse(content)
    model.externalBufferGroups = [tables.ExternalBufferGroupT()]
    model.externalBufferGroups[0].name = file
    model.externalBuffers, weights, ids = [], bytearray(), dict[int, int]()
    for number, buffer in enumerate(model.buffers):
        data = objects.content(buffer)
        if len(data) < _SMALLEST:
            continue
        weights += bytes(-len(weights) % 16)
        found = tables.ExternalBufferT()
        found.id, found.offset, found.length = number + 1, begin + len(weights), len(data)
        found.packing = "unpacked"
        ids[number] = found.id
        model.externalBuffers.append(found)
        weights += data
        buffer.data = None
    for name, value in fields.items():
        setattr(model.externalBuffers[-1], name, value)
    for tensor in _tensors(model, ids):
        tensor.externalBuffer, tensor.buffer = ids[tensor.buffer], 0
    return objects.pack(model), bytes(weights)


def moved(content: bytes, distance: int) -> bytes:
    """Return a model of `appended` up to its first constant, with the others `distance` later."""
    result, tables = bytearray(content), schema.tables().Model.GetRootAs(content, 0)
    buffers = [tables.Buffers(number) for number in range(tables.BuffersLength())]
    first, size = min((each.Offset(), each.Size()) for each in buffers if each.Offset() > 1)
    for each in buffers:
        if each.Offset() > first:
            place = each._tab.Pos + each._tab.Offset(6)
            result[place : place + 8] = (each.Offset() + distance).to_bytes(8, "little")
    return bytes(result[: first + size])


def _tensors(model: Any, buffers: Collection[int]) -> list[Any]:
    tensors = [tensor for graph in model.subgraphs for tensor in graph.tensors]
    return [each for each in tensors if each.buffer in buffers]
