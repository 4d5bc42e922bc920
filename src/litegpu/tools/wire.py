"""Messages in Protocol Buffers' wire format, from field numbers and values."""

from __future__ import annotations

import struct
from collections.abc import Iterable

import numpy as np

Value = int | float | np.float32 | str | bytes
"""What a field may hold: int is a varint, float a double, np.float32 a float."""

_VARINT, _DOUBLE, _BYTES, _FLOAT = 0, 1, 2, 5


def message(*fields: tuple[int, Value]) -> bytes:
    """Return a message with fields, (number, value) each, in this order."""
    return b"".join(_field(number, value) for number, value in fields)


def repeated(number: int, values: Iterable[Value]) -> list[tuple[int, Value]]:
    """Return a field that comes once for each value, as proto2 writes repeated ones."""
    return [(number, value) for value in values]


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
    """Return seven bits a byte, the lowest first; negative numbers have 64 bits."""
    rest, found = value % (1 << 64), bytearray()
    while rest > 127:
        found.append(rest & 127 | 128)
        rest >>= 7
    found.append(rest)
    return bytes(found)
