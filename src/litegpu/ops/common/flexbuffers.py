"""Reads FlexBuffers, the format of custom ops' options, into Python objects."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

_NULL, _INT, _UINT, _FLOAT, _KEY, _STRING = range(6)
_INDIRECT_INT, _INDIRECT_FLOAT, _MAP, _VECTOR = 6, 8, 9, 10
_TYPED, _TYPED_KEYS, _FIXED, _FIXED_END, _BOOL, _TYPED_BOOLS = 11, 14, 16, 25, 26, 36
_MAX_DEPTH = 8
_MAX_VALUES = 1 << 14
_FLOATS = {2: "<e", 4: "<f", 8: "<d"}
_WIDTHS = (1, 2, 4, 8)


def read_map(data: bytes) -> Mapping[str, Any]:
    """Return the map at the root of a FlexBuffer.

    The function raises ValueError if the root is no map, if bytes are missing, or if the same bytes
    are read too often. Several values may refer to the same bytes, so a small buffer could
    represent any number of values.
    """
    found = _read(data)
    if isinstance(found, str):
        raise ValueError(found)
    return found


@lru_cache(maxsize=64)  # operations are queried often, and many may have the same options
def _read(data: bytes) -> dict[str, Any] | str:
    """Return the map at the root, or the reason why it cannot be read."""
    if len(data) < 3:
        return f"{len(data)} bytes are no FlexBuffer"
    width = data[-1]
    reader = _Reader(data, values=min(len(data) + _MAX_DEPTH, _MAX_VALUES), nbytes=16 * len(data))
    try:
        found = reader.value(len(data) - 2 - width, width, data[-2], 0)
    except ValueError as error:
        return str(error)
    if not isinstance(found, dict):
        return f"the FlexBuffer holds a {type(found).__name__}, not a map"
    return found


@dataclass(slots=True)
class _Reader:
    data: bytes
    values: int
    """Remaining number of values that may be read. A valid buffer has at least one byte per
    unshared value.
    """
    nbytes: int
    """Remaining number of bytes that may be read. The limit exceeds the buffer's size, since values
    may share keys and texts.
    """

    def value(self, at: int, width: int, packed: int, depth: int) -> Any:
        """Return the value at offset `at`, of a `packed` type and a byte width."""
        kind, child = packed >> 2, 1 << (packed & 3)
        if depth > _MAX_DEPTH:
            raise ValueError("the FlexBuffer is nested too deeply")
        self.values -= 1
        if self.values < 0:
            raise ValueError("the FlexBuffer holds more values than bytes, or too many")
        if kind in (_NULL, _INT, _UINT, _FLOAT, _BOOL):
            return self._number(at, width, kind)
        at -= self._unsigned(at, width)
        if _INDIRECT_INT <= kind <= _INDIRECT_FLOAT:
            return self._number(at, child, kind - _INDIRECT_INT + _INT)
        if kind == _KEY:
            return self._key(at)
        if kind == _STRING:
            return self._bytes(at, self._unsigned(at - child, child)).decode("utf-8", "replace")
        if kind == _MAP:
            return self._map(at, child, depth)
        if kind == _VECTOR:
            return self._vector(at, child, depth)
        return self._typed(at, child, kind, depth)

    def _map(self, at: int, width: int, depth: int) -> dict[str, Any]:
        keys_at = at - 3 * width
        keys_at -= self._unsigned(keys_at, width)
        key_width = self._unsigned(at - 2 * width, width)
        keys = self._typed(keys_at, key_width, _TYPED_KEYS, depth)
        return dict(zip(keys, self._vector(at, width, depth), strict=True))

    def _vector(self, at: int, width: int, depth: int) -> list[Any]:
        size = self._unsigned(at - width, width)
        kinds = self._bytes(at + size * width, size)
        return [self.value(at + i * width, width, kinds[i], depth + 1) for i in range(size)]

    def _typed(self, at: int, width: int, kind: int, depth: int) -> list[Any]:
        if _FIXED <= kind < _FIXED_END:
            size, element = (kind - _FIXED) // 3 + 2, (kind - _FIXED) % 3 + _INT
        elif _TYPED <= kind <= _TYPED_KEYS or kind == _TYPED_BOOLS:
            size = self._unsigned(at - width, width)
            element = _BOOL if kind == _TYPED_BOOLS else kind - _TYPED + _INT
        else:
            raise ValueError(f"type {kind} in a FlexBuffer is not known")
        self._bytes(at, size * width)
        return [self.value(at + i * width, width, element << 2, depth + 1) for i in range(size)]

    def _number(self, at: int, width: int, kind: int) -> Any:
        raw = self._bytes(at, width)
        if width not in (_FLOATS if kind == _FLOAT else _WIDTHS):
            word = "float" if kind == _FLOAT else "number"
            raise ValueError(f"a {word} of {width} bytes in a FlexBuffer")
        if kind == _FLOAT:
            return struct.unpack(_FLOATS[width], raw)[0]
        number = int.from_bytes(raw, "little", signed=kind == _INT)
        return None if kind == _NULL else bool(number) if kind == _BOOL else number

    def _unsigned(self, at: int, width: int) -> int:
        if width not in _WIDTHS:
            raise ValueError(f"a number of {width} bytes in a FlexBuffer")
        return int.from_bytes(self._bytes(at, width), "little")

    def _key(self, at: int) -> str:
        end = self.data.find(b"\0", at)
        return self._bytes(at, end - at).decode("utf-8", "replace")

    def _bytes(self, at: int, size: int) -> bytes:
        if at < 0 or size < 0 or at + size > len(self.data):
            raise ValueError("the FlexBuffer points outside of its bytes")
        self.nbytes -= size
        if self.nbytes < 0:
            raise ValueError("the FlexBuffer reads the same bytes too often")
        return self.data[at : at + size]
