"""Reads messages in Protocol Buffers' wire format, by field numbers."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any


def parsed(content: bytes) -> Iterator[tuple[int, Any]]:
    """Yield the fields of a message in the wire format."""
    position = 0

    def varint() -> int:
        nonlocal position
        found = shift = 0
        while True:
            byte = content[position]
            position += 1
            found |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return found

    while position < len(content):
        tag = varint()
        size = {0: 0, 1: 8, 5: 4}.get(tag & 7)
        if size == 0:
            yield tag >> 3, varint()
            continue
        size = varint() if size is None else size
        part = content[position : position + size]
        position += size
        kind = {1: "<d", 5: "<f"}.get(tag & 7)
        yield tag >> 3, struct.unpack(kind, part)[0] if kind else part
