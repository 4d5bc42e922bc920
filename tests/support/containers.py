"""Writes small containers of models: MediaPipe's bundles, and files of language models."""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Mapping

from litegpu import zoo
from litegpu.files import open_content
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


def language_parts(name: str) -> list[bytes]:
    """Return the sections of a language model of the zoo: metadata, tokenizer and models."""
    container = open_content(name, memoryview(zoo.load_language_model(name)))
    assert container is not None
    return [bytes(each.view()) for each in container.members]


def tokenizer_json() -> bytes:
    """Return the zoo's tokenizer as Hugging Face's library writes it."""
    return zlib.decompress(language_parts("zoo:tiny_lm?layers=1&context=32")[1][8:])
