"""Writes small containers of models: MediaPipe's bundles, and files of language models."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping

from litegpu.zoo.containers import new_builder, table, vector, with_start


def bundle(members: Mapping[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    """Return a zip archive."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return file.getvalue()


def shared_items(sections: int, items: int, key: str) -> bytes:
    """Return a .litertlm file of empty sections that all have the same item, many times."""
    builder = new_builder()
    name = builder.CreateString(key)
    items_of = vector(builder, [table(builder, 3, {0: name})] * items)
    listed = vector(builder, [table(builder, 4, {0: items_of})] * sections)
    builder.Finish(table(builder, 2, {1: table(builder, 1, {0: listed})}))
    return with_start(bytes(builder.Output()))
