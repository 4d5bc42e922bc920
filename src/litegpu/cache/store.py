"""A folder of artifacts; litegpu replaces files atomically, and verifies checksums.

The folder uses no locks: each process that finds no file compiles the partition and writes the
file. A lock of a killed process would block all other processes.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import struct
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from litegpu import config
from litegpu.backends.constant_blocks import BLOCK_THREADS, ConstantBlock
from litegpu.cache.fingerprint import checksum
from litegpu.host import private_files
from litegpu.host.disk_cache import report_not_cached, report_once
from litegpu.host.private_files import Folder, UnsafeFolderError
from litegpu.host.user_folders import user_cache, with_home

SUFFIX = ".artifact"
"""Suffix of artifact files."""
_MAGIC = b"\x89lgpuart"
_FORMAT = 2
_HEADER = struct.Struct("<8sI4x32s32sQ")
"""The header: magic, format, key, checksum of the data, length of the data."""
KEY = slice(16, 48)
"""The position of the key in a file."""
_MAX_BYTES = 1 << 34
"""Maximum size of one artifact."""
_BEGINNING = 1 << 24
"""The number of bytes at the start of an artifact that contain its description."""
_ARTIFACTS = re.compile(r"[A-Za-z0-9._-]+-[0-9a-f]{40}" + re.escape(SUFFIX))
"""Matches the file names of `ArtifactStore`."""
_KERNELS = re.compile(r"[0-9a-f]{64}\.(cubin|glbin|tuning)")
"""Matches the file names of `DiskCache`."""
_BLOCK_SUFFIX = ".block"
_BLOCKS = re.compile(r"[0-9a-f]{64}" + re.escape(_BLOCK_SUFFIX))
"""Matches the file names of blocks: the SHA-256 of the content."""
_CHANGED = "the checksum is wrong: the file was truncated or changed"
_UNREADABLE = re.compile(r"[^A-Za-z0-9_-]+")
"""Characters that become _ in names: on Windows, "nul.txt-1.artifact" is a device."""


class DamagedError(Exception):
    """The file was not written by litegpu, or is damaged; the message has the reason."""


class CacheFolder(NamedTuple):
    """The folder of artifacts, and a token: a readable name of the model, part of file names."""

    folder: str
    token: str
    trusted: bool = False
    """Whether the folder is used even if other users may write to it."""
    requested: bool = True
    """Whether a user named the folder or enabled the cache, which makes problems warnings."""
    others: tuple[str, ...] = ()
    """Additional folders from which litegpu only reads files."""

    @property
    def kernels(self) -> Folder:
        """The folder of cached kernels and kernel choices, which is the folder of the artifacts."""
        return Folder(self.folder, self.trusted, self.requested, self.others)


@dataclass(frozen=True, slots=True)
class Entry:
    """A file in the cache folder."""

    path: Path
    nbytes: int
    used: float
    """When the file was written or last used, in seconds since 1970."""


class ArtifactStore:
    """Artifacts in a folder, indexed by a token (a model's readable name) and a fingerprint."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        token: str = "",
        trusted: bool = False,
        requested: bool = True,
        others: Sequence[str | os.PathLike[str]] = (),
    ) -> None:
        """Use the fields of a `CacheFolder`, whose folder need not exist yet."""
        self.folder = Path(folder)
        self._others = [*map(Path, others)]
        self._trusted, self._requested = trusted, requested
        # The readable part of the name is never a path; the fingerprint depends on the whole token.
        self._prefix = _UNREADABLE.sub("_", token)[:48].strip("_-") or "model"

    def path(self, key: bytes) -> Path:
        """Return the path of the artifact with a fingerprint."""
        return self.folder / f"{self._prefix}-{key.hex()[:40]}{SUFFIX}"

    def block(self, nbytes: int, digest: str) -> ConstantBlock:
        """Return a stored block, which is read and checked when its bytes are needed.

        Reading raises ValueError if the file is missing or damaged. A damaged file is removed, so
        that `store` writes it again.
        """
        return ConstantBlock(nbytes, partial(self._read_block, nbytes, digest), digest)

    def has_block(self, block: ConstantBlock) -> bool:
        """Return whether a file of a block exists; its content is checked when it is read."""
        return any(
            private_files.is_usable(path, block.nbytes, self._trusted)
            for path in self._block_paths(block.digest)
        )

    def touch_blocks(self, blocks: Iterable[ConstantBlock]) -> None:
        """Update the time of last use of blocks, after that of the artifact that needs them.

        The artifact is thereby removed before its blocks.
        """
        for block in blocks:
            for path in self._block_paths(block.digest):
                private_files.touch(path)

    def _read_block(self, nbytes: int, digest: str) -> npt.NDArray[np.uint8]:
        reason = "the file is missing"
        for path in self._block_paths(digest):
            try:
                found = read_block(path, nbytes, self._trusted)
                if found is not None:
                    return found
            except DamagedError as error:
                reason = str(error)
                with contextlib.suppress(OSError):
                    os.unlink(path)
            except OSError as error:
                reason = str(error)
        raise ValueError(f"the block {digest[:12]} of its constants cannot be read: {reason}")

    def _block_paths(self, digest: str) -> list[Path]:
        """Return the possible paths of a block; none if the digest is not a file name."""
        name = f"{digest}{_BLOCK_SUFFIX}"
        folders = (self.folder, *self._others) if _BLOCKS.fullmatch(name) else ()
        return [folder / name for folder in folders]

    def load(self, key: bytes) -> npt.NDArray[np.uint8] | None:
        """Return the data stored under a key; None if no trustworthy file exists."""
        for path in self._paths(key):
            try:
                found = read(path, key, self._trusted)
                if found is not None:
                    private_files.touch(path)
                    return found
            except UnsafeFolderError as error:
                self._warn(path.parent, error)
            except (OSError, DamagedError, MemoryError) as error:
                self._report(path, f"is not used and will be replaced: {error}")
        return None

    def store(
        self,
        key: bytes,
        sections: Sequence[bytes | memoryview],
        blocks: Sequence[ConstantBlock] = (),
    ) -> None:
        """Store sections under a key, and their blocks; log a warning on failure.

        The method reads and writes only the blocks that no folder has.
        """
        nbytes = sum(map(len, sections))
        header = _HEADER.pack(_MAGIC, _FORMAT, key, checksum(*sections), nbytes)
        new = [block for block in blocks if not self.has_block(block)]
        try:
            private_files.remove_stale(self.folder)
            with ThreadPoolExecutor(BLOCK_THREADS, "litegpu-store") as pool:
                list(pool.map(self._store_block, new))
            # A power failure may leave only a part of the file, which the checksum detects.
            private_files.replace(self.path(key), (header, *sections), False, self._trusted)
            self.touch_blocks(blocks)
            self._evict({self.path(key), *(self._block_path(block.digest) for block in blocks)})
        except OSError as error:
            self._warn(self.folder, error)

    def _store_block(self, block: ConstantBlock) -> None:
        path, data = self._block_path(block.digest), block.read().data
        private_files.replace(path, (data,), False, self._trusted)

    def _block_path(self, digest: str) -> Path:
        return self.folder / f"{digest}{_BLOCK_SUFFIX}"

    def discard(self, key: bytes, reason: str) -> None:
        """Delete the artifact stored under a key, because it is unusable."""
        for path in filter(os.path.exists, self._paths(key)):
            self._report(path, f"is unusable and will be replaced: {reason}")
            with contextlib.suppress(OSError):
                os.unlink(path)

    def _paths(self, key: bytes) -> list[Path]:
        """Return the possible paths of an artifact, in search order."""
        path = self.path(key)
        return [path, *(folder / path.name for folder in self._others)]

    def _evict(self, newest: Collection[Path]) -> None:
        """Remove the least recently used files if the folder is too large; keep `newest`."""
        evict(self.folder, config.cache_limit(), newest)

    def _warn(self, folder: Path, error: OSError) -> None:
        report_not_cached("Compiled partitions", folder, error, self._requested)

    def _report(self, path: Path, text: str) -> None:
        report_once(logging.INFO, f"Compiled partition: '{path}'", text)


def default_folders() -> list[Path]:
    """Return the default folders of artifacts; new files are written to the first one.

    The default folders are the folders that the environment names, starting with the first writable
    folder, or else the user's cache folder. Raises OptionsError if the user has no home folder.
    """
    named = [Path(with_home(folder)) for folder in config.cache_folders()]
    if not named:
        return [user_cache("partitions", "The cache")]
    first = next(filter(private_files.is_writable, named), named[0])
    return [first, *(folder for folder in named if folder != first)]


def read(
    path: Path, key: bytes | None = None, trusted: bool = False
) -> npt.NDArray[np.uint8] | None:
    """Return the data of an artifact; None if the file does not exist.

    The function reads the file instead of mapping it, so the data cannot change after the checks,
    and a later truncation is harmless. Raises DamagedError, also if the file has another `key`, and
    OSError.
    """

    def check(head: bytes, nbytes: int) -> None:
        if len(head) < _HEADER.size:
            raise DamagedError("the file is truncated")
        magic, number, own, _, length = _HEADER.unpack_from(head)
        if magic != _MAGIC:
            raise DamagedError("the file is not an artifact of litegpu")
        if number != _FORMAT:
            raise DamagedError(f"the file has format {number}, not {_FORMAT}")
        if key is not None and own != key:
            raise DamagedError("the file belongs to another model, device, version or options")
        if length != nbytes - _HEADER.size:
            raise DamagedError(_CHANGED)

    found = private_files.read_array(path, _MAX_BYTES, trusted, check=check)
    if found is None:
        return None
    *_, expected, length = _HEADER.unpack_from(found.data)
    data = found[_HEADER.size :]
    if length != len(data) or expected != checksum(data.data):
        raise DamagedError(_CHANGED)
    return data


def read_block(
    path: Path, nbytes: int | None = None, trusted: bool = False
) -> npt.NDArray[np.uint8] | None:
    """Return the bytes of a block, whose digest is the file's name; None if no file exists.

    As in `read`, the checked bytes are the returned bytes. Raises DamagedError, also if the file
    has another size than `nbytes`, and OSError.
    """

    def check(_: bytes, found: int) -> None:
        if nbytes is not None and found != nbytes:
            raise DamagedError(f"the file has {found} bytes instead of {nbytes}")

    found = private_files.read_array(path, _MAX_BYTES, trusted, check=check)
    if found is not None and hashlib.sha256(found.data).hexdigest() != path.stem:
        raise DamagedError(_CHANGED)
    return found


def beginning(path: Path, trusted: bool = False) -> npt.NDArray[np.uint8] | None:
    """Return the start of an artifact's data, for display only; None if the file does not exist.

    The function checks the file's owner, see `private_files`, but not the checksum. Raises OSError.
    """
    found = private_files.read_array(path, _MAX_BYTES, trusted, _BEGINNING)
    return None if found is None else found[_HEADER.size :]


def entries(folder: Path) -> list[Entry]:
    """Return the artifacts of a folder, in order of last use, oldest first."""
    return _entries(folder, _ARTIFACTS)


def kernels(folder: Path) -> list[Entry]:
    """Return the cached kernels and kernel choices, in order of last use, oldest first."""
    return _entries(folder, _KERNELS)


def blocks(folder: Path) -> list[Entry]:
    """Return the blocks of constants, in order of last use, oldest first."""
    return _entries(folder, _BLOCKS)


def all_entries(folder: Path) -> list[Entry]:
    """Return all files of litegpu, in order of last use, oldest first."""
    found = (*entries(folder), *kernels(folder), *blocks(folder))
    return sorted(found, key=lambda entry: entry.used)


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
    """Remove all files that litegpu has stored in a folder; return the removed entries."""
    removed = evict(folder, -1)
    private_files.remove_stale(folder)
    return removed


def evict(folder: Path, limit: int, newest: Collection[Path] = ()) -> list[Entry]:
    """Remove the least recently used files, including kernels, beyond `limit` bytes; keep `newest`.

    Returns the removed entries.
    """
    present = all_entries(folder)
    total, removed = sum(entry.nbytes for entry in present), []
    for entry in present:
        if total <= limit:
            break
        if entry.path not in newest:
            with contextlib.suppress(OSError):
                os.unlink(entry.path)
                removed.append(entry)
            total -= entry.nbytes
    return removed
