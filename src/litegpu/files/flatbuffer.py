"""Reads fields of FlatBuffers in place, without generated code."""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass

_LONGEST_TEXT = 256
"""Maximum number of bytes that are read of a string."""


@dataclass(frozen=True, slots=True)
class Flatbuffer:
    """A FlatBuffer that is parsed on demand.

    Tables and vectors are identified by their byte offsets; 0 means that a field is missing. All
    methods raise struct.error or IndexError for an offset outside of the data.
    """

    data: bytes | mmap.mmap | memoryview

    def number(self, place: int, kind: str = "<I") -> int:
        """Return the number at a byte offset; `kind` is a format string of the module `struct`."""
        if place < 0:
            raise IndexError(place)
        number: int = struct.unpack_from(kind, self.data, place)[0]
        return number

    def target(self, place: int) -> int:
        """Return the offset to which the offset field at `place` points."""
        return place + self.number(place)

    def place(self, table: int, field: int) -> int:
        """Return the byte offset of a table's field; 0 if the field is missing."""
        layout = table - self.number(table, "<i")
        if 4 + 2 * field >= self.number(layout, "<H"):
            return 0
        distance = self.number(layout + 4 + 2 * field, "<H")
        return table + distance if distance else 0

    def scalar(self, table: int, field: int, kind: str) -> int:
        """Return the number in a table's field; 0 if the field is missing."""
        place = self.place(table, field)
        return self.number(place, kind) if place else 0

    def field(self, table: int, field: int) -> int:
        """Return the offset of the vector or table in a field of a table; 0 without the field."""
        place = self.place(table, field)
        return self.target(place) if place else 0

    def count(self, vector: int) -> int:
        """Return the length of a vector of 4-byte numbers; the vector must be inside the data."""
        count = self.number(vector) if vector else 0
        if count > len(self.data) // 4:
            raise IndexError(count)
        return count

    def entry(self, vector: int, index: int) -> int:
        """Return the offset of a table in a vector of tables."""
        if not 0 <= index < self.count(vector):
            raise IndexError(index)
        return self.target(vector + 4 + 4 * index)

    def numbers(self, table: int, field: int) -> tuple[int, ...]:
        """Return the int32 vector in a table's field; () if the field is missing."""
        vector = self.field(table, field)
        count = self.count(vector)
        return struct.unpack_from(f"<{count}i", self.data, vector + 4) if count else ()

    def text(self, table: int, field: int) -> str:
        """Return the string in a table's field, truncated at 256 bytes; "" if the field is missing.

        Many tables can share one string: without a limit, a small file could use gigabytes of
        memory.
        """
        vector = self.field(table, field)
        size = self.number(vector) if vector else 0
        if vector + 4 + size > len(self.data):
            raise IndexError(size)
        begin, end = vector + 4, vector + 4 + min(size, _LONGEST_TEXT)
        return bytes(self.data[begin:end]).decode("utf-8", "replace")
