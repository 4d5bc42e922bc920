"""MediaPipe bundles: zip archives of models, which may contain other bundles."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Iterator
from functools import partial
from typing import Any

from litegpu.errors import ModelError
from litegpu.files.members import (
    MAX_MEMBERS,
    MODEL,
    MODEL_IDENTIFIER,
    ZIP_IDENTIFIERS,
    Member,
    check_ranges,
    damaged,
)
from litegpu.wording import printable, shown_size

_DEEPEST = 4
_INFLATED, _INFLATED_PER_BYTE = 64 << 20, 4
_HEADER = struct.Struct("<4s22xHH")
"""The local header of a member: signature, and the sizes of its name and its extra field."""
_ENCRYPTED = 1
_DIRECTORY = 1 << 20
"""Maximum bytes of an archive's directory."""
_HEAD = 8
"""Number of a member's first bytes, which identify its kind."""
_FIRST = 4096
"""Number of compressed bytes that are sufficient to decompress a member's first bytes."""
_UNREADABLE = (
    *(zipfile.BadZipFile, RuntimeError, struct.error, zlib.error),
    *(ValueError, OverflowError, EOFError, OSError, IndexError),
)


def members(path: str, data: memoryview) -> list[Member]:
    """Return the members of a bundle, and of the bundles in it, in the order of the file.

    A member of an inner bundle is called `inner.task:name`.

    Raises:
        ModelError: the bundle is damaged or too large when decompressed, has unsafe or repeated
            names, or has more than 1000 members. The limit of the decompressed size is 64 MiB plus
            four times the size of the bundle.
    """
    return list(_Bundle(path, len(data)).members(data, "", 0))


class _Bundle:
    """Reads a bundle; nested bundles share the limits of the outer one."""

    def __init__(self, path: str, size: int) -> None:
        self._path = path
        self._members = MAX_MEMBERS
        self._most_inflated = self._inflated = _INFLATED + _INFLATED_PER_BYTE * size

    def members(self, data: memoryview, prefix: str, depth: int) -> Iterator[Member]:
        if depth > _DEEPEST:
            raise damaged(self._path, f"more than {_DEEPEST} bundles are nested")
        stored = self._stored(data, prefix)
        for info, content in stored:
            name = prefix + info.filename
            head = self._head(name, info, content)
            view = partial(self._content, name, info, content)
            if head[:4] in ZIP_IDENTIFIERS:
                yield from self.members(view(), f"{name}:", depth + 1)
            else:
                kind = MODEL if head[4:] == MODEL_IDENTIFIER else "data"
                yield Member(name, kind, info.file_size, view)

    def _stored(self, data: memoryview, prefix: str) -> list[tuple[zipfile.ZipInfo, memoryview]]:
        """Return the members of one archive, each with its bytes as stored in the file."""
        try:
            with zipfile.ZipFile(_Readable(data)) as archive:
                entries = archive.infolist()
            infos = [each for each in entries if not each.is_dir()]
        except _UNREADABLE as error:
            raise damaged(self._path, f"{prefix or 'the file'} is no zip archive ({error})") from (
                error
            )
        self._members -= len(entries)
        if self._members < 0:
            raise damaged(self._path, f"the file has more than {MAX_MEMBERS} members")
        names: set[str] = set()
        ranges = []
        for info in infos:
            self._check(info, prefix + info.filename)
            if info.filename in names:
                raise damaged(self._path, f"two members are called '{prefix}{info.filename}'")
            names.add(info.filename)
            begin = self._begin(data, info, prefix + info.filename)
            ranges.append((begin, begin + info.compress_size, info.filename))
        check_ranges(self._path, ranges, 0, len(data))
        return [
            (info, data[begin:end]) for info, (begin, end, _) in zip(infos, ranges, strict=True)
        ]

    def _check(self, info: zipfile.ZipInfo, name: str) -> None:
        parts = info.filename.replace("\\", "/").split("/")
        if ".." in parts or not parts[0] or ":" in info.filename:
            raise damaged(self._path, f"the member name '{name}' is not a relative path")
        if info.flag_bits & _ENCRYPTED:
            raise ModelError(
                f"'{printable(self._path)}': '{printable(name)}' is encrypted. Extract the models, "
                "and give their paths."
            )
        if info.compress_type == zipfile.ZIP_STORED:
            if info.file_size != info.compress_size:
                raise damaged(self._path, f"'{name}' is stored with two different sizes")
        elif info.compress_type == zipfile.ZIP_DEFLATED:
            self._inflated -= info.file_size
            if self._inflated < 0:
                raise ModelError(
                    f"'{printable(self._path)}': the compressed members take more than "
                    f"{shown_size(self._most_inflated)}. Extract the models, and give their paths."
                )
        else:
            raise ModelError(
                f"'{printable(self._path)}': '{printable(name)}' has the compression method "
                f"{info.compress_type}. litegpu reads stored (0) and deflated (8) members: pack "
                "the bundle again."
            )

    def _begin(self, data: memoryview, info: zipfile.ZipInfo, name: str) -> int:
        """Return the position at which the bytes of a member begin."""
        try:
            signature, name_size, extra_size = _HEADER.unpack_from(data, info.header_offset)
        except (struct.error, OverflowError) as error:
            raise damaged(self._path, f"'{name}' begins outside of the file") from error
        if signature != ZIP_IDENTIFIERS[0]:
            raise damaged(self._path, f"'{name}' has no header")
        return info.header_offset + _HEADER.size + int(name_size) + int(extra_size)

    def _head(self, name: str, info: zipfile.ZipInfo, content: memoryview) -> bytes:
        if info.compress_type == zipfile.ZIP_STORED:
            return bytes(content[:_HEAD])
        return self._inflate(name, content[:_FIRST], _HEAD)

    def _content(self, name: str, info: zipfile.ZipInfo, content: memoryview) -> memoryview:
        if info.compress_type == zipfile.ZIP_STORED:
            return content
        found = self._inflate(name, content, info.file_size + 1)
        if len(found) != info.file_size or zlib.crc32(found) != info.CRC:
            raise damaged(self._path, f"'{name}' has another size or checksum than stated")
        return memoryview(found)

    def _inflate(self, name: str, content: memoryview, most: int) -> bytes:
        """Return the first bytes of a deflated member."""
        try:
            return zlib.decompressobj(-zlib.MAX_WBITS).decompress(content, most)
        except zlib.error as error:
            raise damaged(self._path, f"'{name}' cannot be decompressed ({error})") from error


class _Readable(io.RawIOBase):
    """A file object over memory, which copies only the bytes that are read."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: len(self._data)}[whence]
        if start + offset < 0:  # as of files: zipfile expects it for short ones
            raise OSError(f"seek to {start + offset}")
        self._at = start + offset
        return self._at

    def read(self, size: int = -1) -> bytes:
        if size > _DIRECTORY:
            raise OSError(
                f"its directory has {shown_size(size)}, more than {shown_size(_DIRECTORY)}"
            )
        return super().read(size) or b""

    def readinto(self, target: Any) -> int:
        found = self._data[self._at :][: len(target)].tobytes()
        target[: len(found)] = found
        self._at += len(found)
        return len(found)
