"""Language model files (.litertlm): sections with models, weights, tokenizers and metadata."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Mapping
from functools import partial

from litegpu.errors import ModelError
from litegpu.files.flatbuffer import Flatbuffer
from litegpu.files.members import (
    MAX_MEMBERS,
    MODEL,
    MODEL_IDENTIFIER,
    WEIGHTS,
    Member,
    check_ranges,
    damaged,
)
from litegpu.wording import printable

_START = struct.Struct("<8s3I4xQ")
"""The start of a file: the identifier, three version numbers, and the end of the header."""
_MAJOR = 1
_SECTIONS, _OBJECTS = 1, 0
_ITEMS, _BEGIN, _END, _TYPE = range(4)
_KEY, _VALUE_TYPE, _VALUE = range(3)
_STRING = 9
_MAX_ITEMS = 64
"""Maximum number of items that are read of a section; many sections can share one list."""
_MODEL_SECTION = 3
_KINDS: Mapping[int, tuple[str, str]] = {
    1: ("data", ".bin"),
    _MODEL_SECTION: (MODEL, ".tflite"),
    4: ("SentencePiece tokenizer", ".spiece"),
    5: ("LLM metadata", ".pb"),
    6: ("Hugging Face tokenizer", ".json.zlib"),
    7: (WEIGHTS, ".weights"),
    8: ("embedding metadata", ".pb"),
    9: ("executor metadata", ".pb"),
    10: ("speech metadata", ".pb"),
    11: ("transcription metadata", ".pb"),
}
"""The kind of a section by its type number, and the suffix of its name."""


def members(path: str, data: memoryview) -> list[Member]:
    """Return the sections of a file, in order.

    The name of a section consists of its model type and its kind, such as `prefill_decode.tflite`.
    A later section of the same name gets a number as well.

    Raises:
        ModelError: the file is damaged, or its major version is not 1.
    """
    if len(data) < _START.size:
        raise damaged(path, f"the file ends within its header, after {len(data)} bytes")
    _, *version, end = _START.unpack_from(data)
    if version[0] != _MAJOR:
        raise ModelError(
            f"'{printable(path)}' has version {'.'.join(map(str, version))} of the format. litegpu "
            f"reads version {_MAJOR}: convert the model for it, or update litegpu."
        )
    if not _START.size <= end <= len(data):
        raise damaged(path, f"the header ends at byte {end}, but the file has {len(data)} bytes")
    try:
        sections = _sections(path, Flatbuffer(data[_START.size : end]))
    except (struct.error, IndexError) as error:
        raise damaged(path, "the file's header has offsets outside of the header") from error
    check_ranges(path, ((first, last, name) for name, _, first, last in sections), end, len(data))
    found = []
    for name, kind, first, last in sections:
        content = data[first:last]
        if kind == MODEL and bytes(content[4:8]) != MODEL_IDENTIFIER:
            raise damaged(path, f"'{name}' is not a TensorFlow Lite model")
        found.append(Member(name, kind, last - first, partial(_same, content)))
    return found


def _same(content: memoryview) -> memoryview:
    return content


def _sections(path: str, header: Flatbuffer) -> list[tuple[str, str, int, int]]:
    """Return the name, the kind, and the first and last byte position of each section."""
    objects = header.field(header.field(header.target(0), _SECTIONS), _OBJECTS)
    if header.count(objects) > MAX_MEMBERS:
        raise damaged(path, f"the file has more than {MAX_MEMBERS} sections")
    names: set[str] = set()
    numbers: Counter[str] = Counter()
    found = []
    for index in range(header.count(objects)):
        section = header.entry(objects, index)
        number = header.scalar(section, _TYPE, "<B")
        kind, suffix = _KINDS.get(number, (f"section of type {number}", ".bin"))
        stem = _model_type(header, section) or kind.lower().replace(" ", "_")
        name = stem + suffix
        while name in names:
            numbers[stem + suffix] += 1
            name = f"{stem}_{numbers[stem + suffix] + 1}{suffix}"
        names.add(name)
        begin, end = (header.scalar(section, each, "<Q") for each in (_BEGIN, _END))
        found.append((name, kind, begin, end))
    return found


def _model_type(header: Flatbuffer, section: int) -> str:
    """Return the model type of a section; "" if the section has none."""
    items = header.field(section, _ITEMS)
    for index in range(min(header.count(items), _MAX_ITEMS)):
        item = header.entry(items, index)
        if (
            header.text(item, _KEY) == "model_type"
            and header.scalar(item, _VALUE_TYPE, "<B") == _STRING
        ):
            return header.text(header.field(item, _VALUE), 0).lower().removeprefix("tf_lite_")
    return ""
