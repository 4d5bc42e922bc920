"""Files that only this user can write; rejects untrusted files, and writes atomically.

A folder may be trusted explicitly. The checks then accept files of every user who may write to that
folder.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

_BEGIN, _END = ".litegpu-", ".tmp"
"""Prefix and suffix of unfinished files."""
_TRUST = (
    ". If you trust all users who may write there: unsafe_cache=True, or LITEGPU_CACHE_UNSAFE=1"
)
_STALE_S = 3600.0
"""Seconds after which unfinished files are abandoned, on systems without file locks."""
_HEAD_BYTES = 4096
_READ_FLAGS = (
    os.O_RDONLY
    | getattr(os, "O_BINARY", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_NOFOLLOW", 0)  # does not follow links
    | getattr(os, "O_NONBLOCK", 0)  # a FIFO must not wait for a writer
)


_PRIVATE = stat.S_IRUSR | stat.S_IWUSR
_OTHERS_READ = stat.S_IRGRP | stat.S_IROTH


class Folder(NamedTuple):
    """A folder of cached files."""

    path: str
    trusted: bool = False
    """Whether the folder is used even if other users may write to it."""
    requested: bool = True
    """Whether a user named the folder or enabled the cache; then problems are warnings."""
    others: tuple[str, ...] = ()
    """Further folders from which files are read, but to which none are written."""


class UnsafeFolderError(OSError):
    """Other users may put files into a folder; the message has the remedy."""


class RejectedFileError(OSError):
    """A path is not a regular file or not trustworthy; the message has the reason."""


def read(path: Path, most_bytes: int, trusted: bool = False) -> bytes | None:
    """Return a file's contents; None if the file does not exist. Raises errors of `read_array`."""
    found = read_array(path, most_bytes, trusted)
    return None if found is None else found.tobytes()


def read_array(
    path: Path,
    most_bytes: int,
    trusted: bool = False,
    first: int | None = None,
    check: Callable[[bytes, int], None] | None = None,
) -> npt.NDArray[np.uint8] | None:
    """Return the bytes of a file, or only its `first` bytes; None if the file does not exist.

    The function calls `check` with the start and the size of the file before allocating memory for
    the contents. `check` may raise an error.

    Raises RejectedFileError for a file that is not regular or is longer than `most_bytes`. Unless
    its folder is `trusted`, raises RejectedFileError also for a file that another user could have
    written, or UnsafeFolderError. Raises OSError if the file cannot be read.
    """
    try:
        check_folder(path.parent, trusted)
        # Opening a device could already have effects.
        _check_file(os.lstat(path), most_bytes, trusted)
        handle = os.open(path, _READ_FLAGS)
    except (FileNotFoundError, NotADirectoryError):
        return None
    with os.fdopen(handle, "rb", buffering=0) as file:
        found = os.fstat(handle)
        _check_file(found, most_bytes, trusted)  # the file may have been replaced in the meantime
        wanted = min(found.st_size, first or found.st_size)
        head = file.read(min(wanted, _HEAD_BYTES))
        if check is not None:
            check(head, found.st_size)
        data, end = np.empty(wanted, np.uint8), len(head)
        data[:end] = np.frombuffer(head, np.uint8)
        while end < len(data) and (count := file.readinto(data.data[end:])):
            end += count
        return data[:end]


def is_usable(path: Path, nbytes: int, trusted: bool = False) -> bool:
    """Return whether a path is a file of `nbytes` bytes that `read_array` accepts."""
    try:
        check_folder(path.parent, trusted)
        found = os.lstat(path)
        _check_file(found, nbytes, trusted)
    except OSError:
        return False
    return found.st_size == nbytes


def replace(
    path: Path, parts: Sequence[bytes | memoryview], durable: bool = True, trusted: bool = False
) -> None:
    """Replace a file's contents atomically: readers see only the old or the new contents.

    The function creates a missing folder. Folder and file are private to this user; in a `trusted`
    folder, any user who may read the folder may read the file. A file that is not `durable` may be
    lost or incomplete after a power failure. Raises UnsafeFolderError, and OSError if the file
    cannot be written. No incomplete file remains after an error.
    """
    with contextlib.suppress(FileExistsError):  # `check_folder` decides whether it can be used
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = check_folder(path.parent, trusted)
    with contextlib.ExitStack() as claim:
        handle, temporary = _begin(path.parent, claim)
        try:
            with os.fdopen(handle, "wb") as file:
                if trusted and hasattr(os, "fchmod"):
                    os.fchmod(handle, _PRIVATE | found.st_mode & _OTHERS_READ)
                file.writelines(parts)
                if durable:
                    file.flush()
                    os.fsync(handle)
            os.replace(temporary, path)
        except BaseException:  # not even an interrupt leaves a temporary file
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
    if durable:
        _flush_names(path.parent)


def touch(path: Path) -> None:
    """Update the time of last use of a file, if this user has the permission."""
    with contextlib.suppress(OSError):  # for example in a read-only folder
        os.utime(path)


def remove_stale(folder: Path) -> None:
    """Remove the unfinished files of processes that were killed while writing."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(_BEGIN) and entry.name.endswith(_END):
                with contextlib.suppress(OSError):
                    _remove_abandoned(entry.path)


def _begin(folder: Path, claim: contextlib.ExitStack) -> tuple[int, str]:
    """Create an unfinished file, and lock it until `claim` ends, to mark it as in use."""
    while True:
        handle, temporary = tempfile.mkstemp(_END, _BEGIN, folder)
        locked = _lock(handle)
        if locked:
            claim.callback(os.close, os.dup(handle))
        if locked is None or (locked and os.fstat(handle).st_nlink):
            return handle, temporary
        os.close(handle)  # another process removed it before it was locked


def _remove_abandoned(path: str) -> None:
    handle = os.open(path, _READ_FLAGS)
    try:
        locked = _lock(handle)
        if locked is None:
            locked = os.fstat(handle).st_mtime < time.time() - _STALE_S
        if locked:
            os.unlink(path)
    finally:
        os.close(handle)


def _lock(handle: int) -> bool | None:
    """Lock an open file; False if another process has locked it, None if locks are unsupported.

    The system releases a lock when the process ends, for whatever reason.
    """
    try:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):  # on Windows, and on some file systems
        return None
    return True


def is_writable(folder: Path) -> bool:
    """Return whether this user may create files in a folder, or the folder if it is missing."""
    existing = next(filter(os.path.exists, (folder, *folder.parents)), folder)
    return os.path.isdir(existing) and os.access(existing, os.W_OK | os.X_OK)


def check_folder(folder: Path, trusted: bool = False) -> os.stat_result:
    """Raise UnsafeFolderError if other users may put files into a folder in this user's name.

    In a sticky folder, such as the system's temporary folder, other users cannot replace files, so
    only a file's owner matters. Returns the status of the folder. For a `trusted` path, the
    function only checks that it is a folder.
    """
    found = os.stat(folder)
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(f"'{folder}' is not a folder")
    if trusted or found.st_mode & stat.S_ISVTX:
        return found
    if not _is_own(found):
        raise UnsafeFolderError(
            f"the folder belongs to another user; name a folder of your own{_TRUST}"
        )
    if _others_may_write(found):
        raise UnsafeFolderError(
            f"other users may write to the folder; run: chmod go-w '{folder}'{_TRUST}"
        )
    return found


def _check_file(found: os.stat_result, most_bytes: int, trusted: bool) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise RejectedFileError("the path is not a regular file")
    if not trusted and not _is_own(found):
        raise RejectedFileError("it belongs to another user")
    if not trusted and _others_may_write(found):
        raise RejectedFileError("other users may write to it")
    if found.st_size > most_bytes:
        raise RejectedFileError(f"it has {found.st_size} bytes, more than {most_bytes}")


def _others_may_write(found: os.stat_result) -> bool:
    """Whether group or others may write; False on Windows, where these bits have no meaning."""
    return hasattr(os, "geteuid") and bool(found.st_mode & (stat.S_IWGRP | stat.S_IWOTH))


def _is_own(found: os.stat_result) -> bool:
    """Whether this user or root owns the file; always True on Windows."""
    return not hasattr(os, "geteuid") or found.st_uid in (os.geteuid(), 0)


def _flush_names(folder: Path) -> None:
    """Make a new file name survive a power failure, if the system supports that."""
    if hasattr(os, "O_DIRECTORY"):
        with contextlib.suppress(OSError):
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
