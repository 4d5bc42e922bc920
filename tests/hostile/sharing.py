"""Writes files whose parts share their bytes, as the format allows and no converter does."""

from __future__ import annotations

from typing import Any

import flatbuffers
import numpy as np

from litegpu.zoo import schema


class Builder(flatbuffers.Builder):  # type: ignore[misc]
    """Writes equal texts and equal arrays once."""

    def __init__(self) -> None:
        """Begin an empty file."""
        super().__init__(1 << 12)
        self._arrays: dict[tuple[str, bytes], int] = {}
        self._texts: dict[Any, int] = {}

    def CreateString(self, s: Any, *_: Any) -> int:  # noqa: N802
        """Write a text, or return where it lies."""
        if s not in self._texts:
            self._texts[s] = super().CreateString(s)
        return self._texts[s]

    def CreateNumpyVector(self, x: Any) -> int:  # noqa: N802
        """Write an array, or return where it lies."""
        key = (x.dtype.str, x.tobytes())
        if key not in self._arrays:
            self._arrays[key] = super().CreateNumpyVector(x)
        return self._arrays[key]


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
    """Return a model's bytes; lists of integers become arrays that are shared."""
    for graph in model.subgraphs:
        for table in (*getattr(graph, "tensors", ()), *getattr(graph, "operators", ())):
            held = vars(table).get("_table", table)
            for name in ("inputs", "outputs", "shape"):
                if isinstance(vars(held).get(name), list):
                    setattr(held, name, np.asarray(getattr(held, name), np.int32))
    builder = Builder()
    builder.Finish(model.Pack(builder), file_identifier=schema.FILE_IDENTIFIER)
    return bytes(builder.Output())
