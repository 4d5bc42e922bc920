"""A folder of artifacts: each a file that is written as a whole and believed only when it checks.

There are no locks: each process that finds no file compiles and replaces it. A lock
that a killed process left behind would keep all others waiting.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from litegpu import config
from litegpu.cache.fingerprint import checksum
from litegpu.host import private_files
from litegpu.host.disk_cache import report_not_cached, report_once
from litegpu.host.private_files import Folder, UnsafeFolderError
from litegpu.host.user_folders import user_cache, with_home

SUFFIX = ".artifact"
"""How the names of artifacts end."""
_MAGIC = b"\x89lgpuart"
_FORMAT = 1
_HEADER = struct.Struct("<8sI4x32s32sQ")
"""Magic, format, key, checksum of the data, length of the data."""
KEY = slice(16, 48)
"""Where a file tells its key."""
_MOST_BYTES = 1 << 34
"""Of one artifact."""
_BEGINNING = 1 << 24
"""Bytes of an artifact that have room for its description."""
_ARTIFACTS = re.compile(r"[A-Za-z0-9._-]+-[0-9a-f]{40}" + re.escape(SUFFIX))
"""What `ArtifactStore` calls its files."""
_KERNELS = re.compile(r"[0-9a-f]{64}\.(cubin|glbin|tuning)")
"""What `DiskCache` calls its files."""
_CHANGED = "its checksum is wrong: it was cut or changed"
_UNREADABLE = re.compile(r"[^A-Za-z0-9_-]+")
"""What becomes _ in names: to Windows, "nul.txt-1.artifact" would be a device."""


class DamagedError(Exception):
    """A file is not what litegpu would have written there; says why."""


class CacheFolder(NamedTuple):
    """Where artifacts are kept, and a token: a name that tells models apart, for people too."""

    folder: str
    token: str
    trusted: bool = False
    """Whether the folder is used even if other users may write to it."""
    requested: bool = True
    """Whether a user named it or enabled the cache: then problems are warnings."""

    @property
    def kernels(self) -> Folder:
        """The folder of cached kernels and choices, next to the artifacts."""
        return Folder(self.folder, self.trusted, self.requested)


@dataclass(frozen=True, slots=True)
class Entry:
    """A file of the folder."""

    path: Path
    nbytes: int
    used: float
    """When it was written or last used, in seconds since 1970."""


class ArtifactStore:
    """Artifacts in a folder, found by a token (a model's name, for people) and a fingerprint."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        token: str = "",
        trusted: bool = False,
        requested: bool = True,
    ) -> None:
        """Take the fields of a `CacheFolder`; the folder need not exist yet."""
        self.folder = Path(folder)
        self._trusted, self._requested = trusted, requested
        # Whatever the token is, its readable part is no path; the fingerprint has all of it.
        self._prefix = _UNREADABLE.sub("_", token)[:48].strip("_-") or "model"

    def path(self, key: bytes) -> Path:
        """Return where the artifact of a fingerprint lies."""
        return self.folder / f"{self._prefix}-{key.hex()[:40]}{SUFFIX}"

    def load(self, key: bytes) -> npt.NDArray[np.uint8] | None:
        """Return what was stored under a key; None if nothing or nothing that can be trusted."""
        path = self.path(key)
        try:
            found = read(path, key, self._trusted)
            if found is not None:
                private_files.touch(path)
            return found
        except UnsafeFolderError as error:
            self._warn(error)
        except (OSError, DamagedError, MemoryError) as error:
            self._report(path, f"is not used and will be replaced: {error}")
        return None

    def store(self, key: bytes, sections: Sequence[bytes | memoryview]) -> None:
        """Keep sections under a key; where that fails, a warning says so."""
        nbytes = sum(map(len, sections))
        header = _HEADER.pack(_MAGIC, _FORMAT, key, checksum(*sections), nbytes)
        try:
            private_files.remove_stale(self.folder)
            # A power cut may leave a part of it: the checksum tells.
            private_files.replace(self.path(key), (header, *sections), False, self._trusted)
            self._evict(self.path(key))
        except OSError as error:
            self._warn(error)

    def discard(self, key: bytes, reason: str) -> None:
        """Forget what was stored under a key, for it proved unusable."""
        self._report(self.path(key), f"proved unusable and will be replaced: {reason}")
        with contextlib.suppress(OSError):
            os.unlink(self.path(key))

    def _evict(self, newest: Path) -> None:
        """Remove what was used least recently where all is too large, but not the newest."""
        evict(self.folder, config.cache_limit(), newest)

    def _warn(self, error: OSError) -> None:
        report_not_cached("Compiled partitions", self.folder, error, self._requested)

    def _report(self, path: Path, text: str) -> None:
        report_once(logging.INFO, f"Compiled partition: '{path}'", text)


def default_folder() -> Path:
    """Return where artifacts of this user are kept that nobody asked to have elsewhere.

    Raises OptionsError where the user has no home folder.
    """
    named = config.cache_folder()
    return Path(with_home(named)) if named else user_cache("partitions", "The cache")


def read(
    path: Path, key: bytes | None = None, trusted: bool = False
) -> npt.NDArray[np.uint8] | None:
    """Return the data of an artifact, None if there is no file.

    They are read, not mapped: what was checked is what is used, and a file that somebody cuts
    meanwhile ends nobody. Raises DamagedError, where it is none of `key` too, and OSError.
    """

    def check(head: bytes, nbytes: int) -> None:
        if len(head) < _HEADER.size:
            raise DamagedError("it is cut")
        magic, number, own, _, length = _HEADER.unpack_from(head)
        if magic != _MAGIC:
            raise DamagedError("it is no artifact of litegpu")
        if number != _FORMAT:
            raise DamagedError(f"it has format {number}, not {_FORMAT}")
        if key is not None and own != key:
            raise DamagedError("it is of another model, device, version or options")
        if length != nbytes - _HEADER.size:
            raise DamagedError(_CHANGED)

    found = private_files.read_array(path, _MOST_BYTES, trusted, check=check)
    if found is None:
        return None
    *_, expected, length = _HEADER.unpack_from(found.data)
    data = found[_HEADER.size :]
    if length != len(data) or expected != checksum(data.data):
        raise DamagedError(_CHANGED)
    return data


def beginning(path: Path, trusted: bool = False) -> npt.NDArray[np.uint8] | None:
    """Return the first data of an artifact, None if there is no file: to tell people, not to run.

    Nothing is checked but whose file it is, see `private_files`. Raises OSError.
    """
    found = private_files.read_array(path, _MOST_BYTES, trusted, _BEGINNING)
    return None if found is None else found[_HEADER.size :]


def entries(folder: Path) -> list[Entry]:
    """Return the artifacts of a folder, the least recently used first."""
    return _entries(folder, _ARTIFACTS)


def kernels(folder: Path) -> list[Entry]:
    """Return the cached kernels and choices, the least recently used first."""
    return _entries(folder, _KERNELS)


def _entries(folder: Path, names: re.Pattern[str]) -> list[Entry]:
    found = []
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as files:
        for file in files:
            if names.fullmatch(file.name) and file.is_file(follow_symlinks=False):
                with contextlib.suppress(OSError):
                    status = file.stat(follow_symlinks=False)
                    found.append(Entry(Path(file.path), status.st_size, status.st_mtime))
    return sorted(found, key=lambda entry: entry.used)


def clear(folder: Path) -> list[Entry]:
    """Remove all that litegpu keeps in a folder; return what it was."""
    removed = evict(folder, -1)
    private_files.remove_stale(folder)
    return removed


def evict(folder: Path, limit: int, newest: Path | None = None) -> list[Entry]:
    """Remove what was used least recently beyond `limit` bytes, kernels too, but not `newest`.

    Returns what was removed.
    """
    present = sorted([*entries(folder), *kernels(folder)], key=lambda entry: entry.used)
    total, removed = sum(entry.nbytes for entry in present), []
    for entry in present:
        if total <= limit:
            break
        if entry.path != newest:
            with contextlib.suppress(OSError):
                os.unlink(entry.path)
                removed.append(entry)
            total -= entry.nbytes
    return removed
