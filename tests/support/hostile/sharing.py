"""Writes files whose parts share their bytes, which the format permits but no converter does."""

from __future__ import annotations

from typing import Any

import flatbuffers

from litegpu.files import MODEL_IDENTIFIER


class Builder(flatbuffers.Builder):  # type: ignore[misc]
    """Writes a text, and an array that many tables name, once."""

    def __init__(self) -> None:
        """Begin an empty file."""
        super().__init__(1 << 12)
        self._arrays: dict[int, tuple[Any, int]] = {}
        self._texts: dict[Any, int] = {}

    def CreateString(self, s: Any, *_: Any) -> int:  # noqa: N802
        """Write a text, or return where it lies."""
        if s not in self._texts:
            self._texts[s] = super().CreateString(s)
        return self._texts[s]

    def CreateNumpyVector(self, x: Any) -> int:  # noqa: N802
        """Write an array, or return where it lies."""
        if id(x) not in self._arrays:
            self._arrays[id(x)] = (x, super().CreateNumpyVector(x))
        return self._arrays[id(x)][1]


class Once:
    """A table of the file that is written once, however often it is listed."""

    def __init__(self, table: Any) -> None:
        """Take the table as an object of the schema."""
        self._table = table
        self._offset: int | None = None

    def Pack(self, builder: Any) -> int:  # noqa: N802
        """Write it, or return where it lies."""
        if self._offset is None:
            self._offset = self._table.Pack(builder)
        return self._offset


def pack(model: Any) -> bytes:
    """Return a model's bytes."""
    builder = Builder()
    builder.Finish(model.Pack(builder), file_identifier=MODEL_IDENTIFIER)
    return bytes(builder.Output())
