"""Encodes Protocol Buffers messages, given by field names and numbers, as bytes or text."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Union

import numpy as np

from litegpu.files.wire import Value, message, varints


@dataclass(frozen=True)
class Named:
    """A value of an enumeration."""

    number: int
    name: str


Field = Union[Value, Named, "Proto", tuple[int, ...]]
"""The value of a field; a tuple is a packed field of integers."""


@dataclass(frozen=True)
class Proto:
    """A message: its fields in order, each (number, name, value); fields may be repeated."""

    fields: tuple[tuple[int, str, Field], ...]

    def encoded(self) -> bytes:
        """Return the message in the wire format; empty packed fields are omitted."""
        given = ((number, value) for number, _, value in self.fields if not _is_empty(value))
        return message(*((number, _plain(value)) for number, value in given))

    def text(self, indent: str = "") -> str:
        """Return the message in the text format, one line per value."""
        return "".join(f"{indent}{line}\n" for line in self._lines())

    def _lines(self) -> Iterator[str]:
        for _, name, value in self.fields:
            if isinstance(value, Proto):
                yield f"{name} {{"
                yield from (f"  {line}" for line in value._lines())
                yield "}"
            elif isinstance(value, tuple):
                yield from (f"{name}: {each}" for each in value)
            else:
                yield f"{name}: {_shown(value)}"


def _is_empty(value: Field) -> bool:
    return isinstance(value, tuple) and not value


def _plain(value: Field) -> Value:
    if isinstance(value, Proto):
        return value.encoded()
    if isinstance(value, Named):
        return value.number
    return varints(value) if isinstance(value, tuple) else value


def _shown(value: Value | Named) -> str:
    if isinstance(value, Named):
        return value.name
    if isinstance(value, str | bytes):
        content = value.encode() if isinstance(value, str) else value
        return f'"{"".join(map(_escaped, content))}"'
    if isinstance(value, np.float32):
        short = f"{value:.6g}"
        return short if np.float32(short) == value else f"{value:.9g}"
    return f"{value:.17g}" if isinstance(value, float) else str(value)


_ESCAPES = dict(zip(b'\n\r\t"\\', ("\\n", "\\r", "\\t", '\\"', "\\\\"), strict=True))


def _escaped(byte: int) -> str:
    """Return a byte escaped as in a C string."""
    if byte in _ESCAPES:
        return _ESCAPES[byte]
    return chr(byte) if 32 <= byte < 127 else f"\\{byte:03o}"
