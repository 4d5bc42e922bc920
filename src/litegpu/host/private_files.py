"""Files that only this user may have written: read without trust in them, replaced as a whole.

A folder may be trusted explicitly: then any user who may write there counts as this user.
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
"""How the names of unfinished files begin and end."""
_TRUST = ". If you trust all who may write there: unsafe_cache=True, or LITEGPU_CACHE_UNSAFE=1"
_STALE_S = 3600.0
"""Unfinished files that old belong to nobody any more, where locks do not tell."""
_HEAD_BYTES = 4096
_READ_FLAGS = (
    os.O_RDONLY
    | getattr(os, "O_BINARY", 0)
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_NOFOLLOW", 0)  # a link is no kept file
    | getattr(os, "O_NONBLOCK", 0)  # a FIFO must not wait for a writer
)


_PRIVATE = stat.S_IRUSR | stat.S_IWUSR
_OTHERS_READ = stat.S_IRGRP | stat.S_IROTH


class Folder(NamedTuple):
    """A folder of kept files, by its path."""

    path: str
    trusted: bool = False
    """Whether it is used even if other users may write to it."""
    requested: bool = True
    """Whether a user named it or enabled the cache: then problems are warnings."""


class UnsafeFolderError(OSError):
    """A folder into which other users may put files; says what to do."""


class RefusedFileError(OSError):
    """What lies under a name is not to be trusted or no file at all; says why."""


def read(path: Path, most_bytes: int, trusted: bool = False) -> bytes | None:
    """Return what a file holds, None if there is none. Raises what `read_array` does."""
    found = read_array(path, most_bytes, trusted)
    return None if found is None else found.tobytes()


def read_array(
    path: Path,
    most_bytes: int,
    trusted: bool = False,
    first: int | None = None,
    check: Callable[[bytes, int], None] | None = None,
) -> npt.NDArray[np.uint8] | None:
    """Return the bytes of a file, or so many `first` ones; None if there is no file.

    `check` is called with the beginning of the file and with its size before there is memory for
    all of it, and may raise.

    Raises RefusedFileError for what is no regular file or longer than `most_bytes`, for what could
    have been written by another user unless its folder is `trusted`, UnsafeFolderError, and OSError
    when it cannot be read.
    """
    try:
        check_folder(path.parent, trusted)
        # Opening a device might do something already.
        _check_file(os.lstat(path), most_bytes, trusted)
        handle = os.open(path, _READ_FLAGS)
    except (FileNotFoundError, NotADirectoryError):
        return None
    with os.fdopen(handle, "rb", buffering=0) as file:
        found = os.fstat(handle)
        _check_file(found, most_bytes, trusted)  # it might have been replaced meanwhile
        wanted = min(found.st_size, first or found.st_size)
        head = file.read(min(wanted, _HEAD_BYTES))
        if check is not None:
            check(head, found.st_size)
        data, end = np.empty(wanted, np.uint8), len(head)
        data[:end] = np.frombuffer(head, np.uint8)
        while end < len(data) and (count := file.readinto(data.data[end:])):
            end += count
        return data[:end]


def replace(
    path: Path, parts: Sequence[bytes | memoryview], durable: bool = True, trusted: bool = False
) -> None:
    """Give a file its whole new content: readers see all of it or what was there before.

    A missing folder is created, private to this user, as is the file; in a `trusted` folder, any
    user who may read the folder may read the file. A file that is not `durable` may be lost or
    incomplete after a power failure. Raises UnsafeFolderError, and OSError if the file cannot be
    written; no incomplete file remains then.
    """
    with contextlib.suppress(FileExistsError):  # what that is, `check_folder` tells
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
        except BaseException:  # an interrupt, too, leaves nothing behind
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise
    if durable:
        _flush_names(path.parent)


def touch(path: Path) -> None:
    """Say that a file is used now, where this user may."""
    with contextlib.suppress(OSError):  # a folder that is only read, say
        os.utime(path)


def remove_stale(folder: Path) -> None:
    """Remove what processes left unfinished that were killed while they wrote."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith(_BEGIN) and entry.name.endswith(_END):
                with contextlib.suppress(OSError):
                    _remove_abandoned(entry.path)


def _begin(folder: Path, claim: contextlib.ExitStack) -> tuple[int, str]:
    """Make an unfinished file, which is locked until `claim` ends: so others see it is in work."""
    while True:
        handle, temporary = tempfile.mkstemp(_END, _BEGIN, folder)
        locked = _lock(handle)
        if locked:
            claim.callback(os.close, os.dup(handle))
        if locked is None or (locked and os.fstat(handle).st_nlink):
            return handle, temporary
        os.close(handle)  # another process found it before it was locked


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
    """Lock an open file, if no process that lives has it; None where there are no locks.

    The system ends a lock with the process, however that ends.
    """
    try:
        import fcntl

        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except (ImportError, OSError):  # on Windows, and on some file systems
        return None
    return True


def check_folder(folder: Path, trusted: bool = False) -> os.stat_result:
    """Raise UnsafeFolderError if other users may put files into a folder in this user's name.

    In a sticky folder, such as /tmp, they may not: there, the owner of each file tells. Returns
    what the system says of the folder; a `trusted` one only has to be one.
    """
    found = os.stat(folder)
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(f"'{folder}' is no folder")
    if trusted or found.st_mode & stat.S_ISVTX:
        return found
    if not _is_own(found):
        raise UnsafeFolderError(f"it belongs to another user; name a folder of your own{_TRUST}")
    if _others_may_write(found):
        raise UnsafeFolderError(f"other users may write to it; run: chmod go-w '{folder}'{_TRUST}")
    return found


def _check_file(found: os.stat_result, most_bytes: int, trusted: bool) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise RefusedFileError("it is no regular file")
    if not trusted and not _is_own(found):
        raise RefusedFileError("it belongs to another user")
    if not trusted and _others_may_write(found):
        raise RefusedFileError("other users may write to it")
    if found.st_size > most_bytes:
        raise RefusedFileError(f"it has {found.st_size} bytes, more than {most_bytes}")


def _others_may_write(found: os.stat_result) -> bool:
    """Whether the group or all may; Windows tells nothing by these bits."""
    return hasattr(os, "geteuid") and bool(found.st_mode & (stat.S_IWGRP | stat.S_IWOTH))


def _is_own(found: os.stat_result) -> bool:
    """Whether it belongs to this user, or to root, who may do anything; Windows does not tell."""
    return not hasattr(os, "geteuid") or found.st_uid in (os.geteuid(), 0)


def _flush_names(folder: Path) -> None:
    """Let the new name outlive a power cut, where a folder can be told so."""
    if hasattr(os, "O_DIRECTORY"):
        with contextlib.suppress(OSError):
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)
