"""Reads and writes Protocol Buffers messages in the wire format, by field numbers."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator

import numpy as np

Value = int | float | np.float32 | str | bytes
"""A field's value: int is encoded as varint, float as double, np.float32 as float."""

_VARINT, _DOUBLE, _BYTES, _FLOAT = 0, 1, 2, 5


def message(*fields: tuple[int, Value]) -> bytes:
    """Encode a message with fields, each (number, value), in this order."""
    return b"".join(_field(number, value) for number, value in fields)


def repeated(number: int, values: Iterable[Value]) -> list[tuple[int, Value]]:
    """Return the entries of a repeated field that is not packed, as in proto2."""
    return [(number, value) for value in values]


def varints(values: Iterable[int]) -> bytes:
    """Encode the content of a packed field of integers."""
    return b"".join(_varint(int(value)) for value in values)


def _field(number: int, value: Value) -> bytes:
    if isinstance(value, np.float32):
        return _varint(number << 3 | _FLOAT) + struct.pack("<f", value)
    if isinstance(value, float):
        return _varint(number << 3 | _DOUBLE) + struct.pack("<d", value)
    if isinstance(value, int):
        return _varint(number << 3 | _VARINT) + _varint(value)
    content = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | _BYTES) + _varint(len(content)) + content


def _varint(value: int) -> bytes:
    """Encode a varint: seven bits per byte, lowest first; negative numbers have 64 bits."""
    rest, found = value % (1 << 64), bytearray()
    while rest > 127:
        found.append(rest & 127 | 128)
        rest >>= 7
    found.append(rest)
    return bytes(found)


def fields(content: bytes) -> Iterator[tuple[int, int | float | bytes]]:
    """Yield the fields of a message as (number, value); strings and messages are bytes.

    Raises:
        ValueError: the bytes are not a message in this format.
    """
    position = 0
    while position < len(content):
        tag, position = _read_varint(content, position)
        if not tag >> 3:
            raise ValueError(f"field number 0 at byte {position - 1}")
        kind = tag & 7
        if kind == _VARINT:
            value, position = _read_varint(content, position)
            yield tag >> 3, value
            continue
        if kind == _BYTES:
            size, position = _read_varint(content, position)
        elif kind in _FIXED:
            size = struct.calcsize(_FIXED[kind])
        else:
            raise ValueError(f"wire type {kind} at byte {position - 1}")
        part = content[position : position + size]
        if len(part) < size:
            raise ValueError(
                f"the data end {size - len(part)} bytes before the end of field {tag >> 3}"
            )
        position += size
        yield tag >> 3, part if kind == _BYTES else struct.unpack(_FIXED[kind], part)[0]


_FIXED = {_DOUBLE: "<d", _FLOAT: "<f"}
_LONGEST_VARINT = 10


def _read_varint(content: bytes, position: int) -> tuple[int, int]:
    """Decode the varint at a position; also return the position after the varint."""
    found = 0
    for count, byte in enumerate(content[position : position + _LONGEST_VARINT]):
        found |= (byte & 127) << 7 * count
        if byte < 128:
            return found, position + count + 1
    raise ValueError(f"the number at byte {position} does not end")
