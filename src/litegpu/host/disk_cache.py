"""A disk cache, mainly of compiled kernels.

Each file starts with a header that identifies its contents. The cache treats a file with another
header as a miss, logs the file once, and replaces the file at the next store.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import struct
from pathlib import Path

from litegpu.host import private_files
from litegpu.host.private_files import Folder, UnsafeFolderError
from litegpu.version import __version__

LOG = logging.getLogger("litegpu.cache")
"""The logger of all caches."""

_MAGIC = b"\x89litegpu"
_FORMAT = 1
_HEADER = struct.Struct("<8sI32s32s32sQ")
"""Magic, format, litegpu's version, SHA-256 of the key and of the data, length of the data."""
_MAX_BYTES = 1 << 28

_reported: set[tuple[str, str]] = set()
"""The (file or folder, message) pairs that this process has already logged."""


class DiskCache:
    """Cached files in a folder, by key; without a folder, the cache is always empty.

    A key must contain all facts on which the data depend; DiskCache adds litegpu's version.
    """

    def __init__(
        self,
        folder: Folder | None,
        suffix: str,
        content: str = "Compiled kernels",
        most_bytes: int = _MAX_BYTES,
    ) -> None:
        """Use a folder, which may not exist yet; file names end in `suffix`.

        `content` names the contents in messages; the cache rejects data of more than `most_bytes`.
        """
        self._folder = Path(folder.path) if folder is not None else None
        self._folders = [*map(Path, (folder.path, *folder.others))] if folder is not None else []
        self._trusted = folder is not None and folder.trusted
        self._requested = folder is not None and folder.requested
        self._suffix = suffix
        self._content = content
        self._most_bytes = most_bytes

    def has_files(self) -> bool:
        """Return whether the cache has any file."""
        try:
            return any(any(folder.glob(f"*{self._suffix}")) for folder in self._folders)
        except OSError:
            return False

    @property
    def wanted(self) -> bool:
        """Whether the cache has a folder, so that it can store data."""
        return self._folder is not None

    def load(self, *key: object) -> bytes | None:
        """Return the data of a key; None if no valid file exists."""
        digest = self._digest(key)
        for path in self._paths(digest):
            try:
                found = private_files.read(path, _HEADER.size + self._most_bytes, self._trusted)
                if found is not None:
                    data = _verified(found, digest)
                    private_files.touch(path)
                    return data
            except UnsafeFolderError as error:
                self._warn(path.parent, error)
            except (OSError, _DamagedError) as error:
                self._report(logging.INFO, path, f"is not used and will be replaced: {error}")
        return None

    def store(self, data: bytes, *key: object) -> None:
        """Store data under a key; log a warning on failure."""
        if self._folder is None:
            return
        digest = self._digest(key)
        path = self._path(self._folder, digest)
        if len(data) > self._most_bytes:
            self._report(logging.WARNING, path, f"is not cached: it would have {len(data)} bytes")
            return
        header = _HEADER.pack(*_header(digest, data))
        try:
            private_files.remove_stale(self._folder)
            private_files.replace(path, (header, data), trusted=self._trusted)
        except OSError as error:
            # Windows does not replace a file while another process reads or replaces it.
            if self.load(*key) != data:
                self._warn(self._folder, error)

    def discard(self, reason: str, *key: object) -> None:
        """Remove an unusable entry; the next store replaces it."""
        for path in filter(os.path.exists, self._paths(self._digest(key))):
            self._report(logging.INFO, path, f"is unusable and will be replaced: {reason}")
            with contextlib.suppress(OSError):
                os.unlink(path)

    def _paths(self, digest: bytes) -> list[Path]:
        """Return the possible paths of a key's file, in search order."""
        return [self._path(folder, digest) for folder in self._folders]

    def _digest(self, key: tuple[object, ...]) -> bytes:
        return hashlib.sha256(repr((__version__, self._suffix, *key)).encode()).digest()

    def _path(self, folder: Path, digest: bytes) -> Path:
        return folder / f"{digest.hex()}{self._suffix}"

    def _warn(self, folder: Path, error: OSError) -> None:
        report_not_cached(self._content, folder, error, self._requested)

    def _report(self, level: int, path: Path, text: str) -> None:
        report_once(level, f"{self._content}: '{path}'", text)


class _DamagedError(Exception):
    """The file was not written by litegpu, or is damaged; the message has the reason."""


def _header(digest: bytes, data: bytes) -> tuple[object, ...]:
    version = __version__.encode()[:32].ljust(32, b"\0")
    return _MAGIC, _FORMAT, version, digest, hashlib.sha256(data).digest(), len(data)


def _verified(found: bytes, digest: bytes) -> bytes:
    """Return the data of a file whose header matches. Raises _DamagedError."""
    if len(found) < _HEADER.size or not found.startswith(_MAGIC):
        raise _DamagedError("the file was not written by litegpu, or is truncated")
    fields, data = _HEADER.unpack_from(found), found[_HEADER.size :]
    wanted = _header(digest, data)
    names = ("magic", "format", "version", "key", "checksum", "length")
    wrong = [name for name, a, b in zip(names, fields, wanted, strict=True) if a != b]
    if wrong:
        raise _DamagedError(f"the file has another {' and '.join(wrong)} than expected")
    return data


def report_not_cached(content: str, folder: object, error: OSError, requested: bool) -> None:
    """Log that something cannot be cached in a folder, once for each reason.

    The message is a warning if the cache was requested. The reason contains no file names, because
    the names of temporary files differ at each attempt.
    """
    level = logging.WARNING if requested else logging.INFO
    why = f"({error.strerror or error}); check serialization_dir or LITEGPU_CACHE."
    report_once(level, f"{content} cannot be cached in '{folder}'", why)


def report_once(level: int, what: str, text: str) -> None:
    """Log a line about a file or folder, once in this process."""
    if (what, text) not in _reported:
        _reported.add((what, text))
        LOG.log(level, "%s %s", what, text)
