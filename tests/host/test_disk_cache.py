"""Cached files are found by every process that could write them; other files are ignored."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import re
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from litegpu.host import disk_cache as disk_cache_module
from litegpu.host import private_files
from litegpu.host.disk_cache import DiskCache
from litegpu.host.private_files import Folder

posix = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="Windows has no such owners, modes")
posix_only = pytest.param(True, marks=posix)
DATA = b"compiled" * 1000


@pytest.fixture(autouse=True)
def nothing_reported_yet(caplog: pytest.LogCaptureFixture) -> None:
    disk_cache_module._reported.clear()
    caplog.set_level(logging.INFO, "litegpu")


def files(folder: Path) -> DiskCache:
    return DiskCache(Folder(str(folder)), ".bin")


def stored(folder: Path) -> Path:
    """Keep DATA under the key "source"; return the path of the file."""
    files(folder).store(DATA, "source")
    (path,) = folder.iterdir()
    return path


def test_what_was_kept_is_found_by_its_whole_key(tmp_path: Path) -> None:
    cache = files(tmp_path / "new" / "folder")
    assert cache.load("source", 1) is None
    cache.store(b"compiled", "source", 1)
    cache.store(b"other", "source", 2)
    cache.store(b"", "nothing")
    again = files(tmp_path / "new" / "folder")
    assert again.load("source", 1) == b"compiled"
    assert again.load("source", 2) == b"other"
    assert again.load("nothing") == b""
    assert DiskCache(Folder(str(tmp_path / "new" / "folder")), ".bin2").load("source", 1) is None
    assert len(list((tmp_path / "new" / "folder").iterdir())) == 3


def test_without_a_folder_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    cache = DiskCache(None, ".bin")
    assert not cache.wanted
    cache.store(b"compiled", "source")
    cache.discard("no good", "source")
    assert cache.load("source") is None
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("no folder")
    for key in ("source", "another"):
        files(tmp_path / "file").store(b"compiled", key)
    assert files(tmp_path / "file").load("source") is None
    expected = f"Compiled kernels cannot be cached in '{tmp_path / 'file'}'"
    assert caplog.text.count(expected) == 1 and "check serialization_dir" in caplog.text
    assert f"('{tmp_path / 'file'}' is not a folder)" in caplog.text


def test_a_folder_that_is_only_read_is_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Although each unfinished file has a name of its own."""
    names = iter("ab")

    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied", next(names))

    monkeypatch.setattr(tempfile, "mkstemp", refuse)
    for key in ("source", "another"):
        files(tmp_path).store(b"compiled", key)
    text = f"Compiled kernels cannot be cached in '{tmp_path}' (Permission denied); check serial"
    assert len(caplog.records) == 1 and text in caplog.text


def test_another_version_of_litegpu_does_not_know_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = stored(tmp_path)
    monkeypatch.setattr(disk_cache_module, "__version__", "99.0")
    assert files(tmp_path).load("source") is None
    files(tmp_path).store(b"new", "source")
    (other,) = set(tmp_path.iterdir()) - {path}
    other.write_bytes(path.read_bytes())
    assert files(tmp_path).load("source") is None


# What may lie under a file's name


def cut(whole: bytes) -> bytes:
    return whole[:-1]


def cut_in_the_header(whole: bytes) -> bytes:
    return whole[:40]


def longer(whole: bytes) -> bytes:
    return whole + b"\0"


def flipped(whole: bytes) -> bytes:
    return whole[:-100] + bytes([whole[-100] ^ 1]) + whole[-99:]


def of_the_future(whole: bytes) -> bytes:
    return whole.replace((1).to_bytes(4, "little"), (2).to_bytes(4, "little"), 1)


def huge_length(whole: bytes) -> bytes:
    length = disk_cache_module._HEADER.size - 8
    return whole[:length] + b"\xff" * 8 + whole[length + 8 :]


def rubbish(_: bytes) -> bytes:
    return b"\0\0\0\0rubbish" * 100


def nothing(_: bytes) -> bytes:
    return b""


DAMAGES: dict[Callable[[bytes], bytes], str] = {
    cut: "checksum and length",
    cut_in_the_header: "is truncated",
    longer: "checksum and length",
    flipped: "another checksum than",
    of_the_future: "another format than",
    huge_length: "another length than",
    rubbish: "the file was not written by litegpu",
    nothing: "is truncated",
}


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
def test_a_damaged_file_is_told_once_and_replaced(
    damage: Callable[[bytes], bytes], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = stored(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(damage(whole))
    for _ in range(3):
        assert files(tmp_path).load("source") is None
    (record,) = caplog.records
    assert record.levelno == logging.INFO
    assert str(path) in record.getMessage() and DAMAGES[damage] in record.getMessage()
    files(tmp_path).store(DATA, "source")
    assert path.read_bytes() == whole and files(tmp_path).load("source") == DATA


def test_every_single_damaged_byte_is_seen(tmp_path: Path) -> None:
    cache = files(tmp_path)
    cache.store(b"compiled", "source")
    (path,) = tmp_path.iterdir()
    whole = path.read_bytes()
    for index in range(len(whole)):
        path.write_bytes(whole[:index] + bytes([whole[index] ^ 0x10]) + whole[index + 1 :])
        assert cache.load("source") is None, index
    path.write_bytes(whole)
    assert cache.load("source") == b"compiled"


def test_the_file_of_another_key_is_not_taken(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = stored(tmp_path)
    files(tmp_path).store(b"other", "another")
    (other,) = set(tmp_path.iterdir()) - {path}
    path.write_bytes(other.read_bytes())
    assert files(tmp_path).load("source") is None
    assert "another key than" in caplog.text


def test_more_than_the_most_is_neither_read_nor_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = stored(tmp_path)
    small = DiskCache(Folder(str(tmp_path)), ".bin", "Compiled kernels", len(DATA) - 1)
    assert small.load("source") is None
    assert f"more than {disk_cache_module._HEADER.size + len(DATA) - 1}" in caplog.text
    path.unlink()
    small.store(DATA, "source")
    assert f"is not cached: it would have {len(DATA)} bytes" in caplog.text
    assert list(tmp_path.iterdir()) == []


def test_a_huge_sparse_file_costs_no_memory(tmp_path: Path) -> None:
    path = stored(tmp_path)
    with path.open("r+b") as file:
        file.truncate(1 << 40)
    assert files(tmp_path).load("source") is None


@posix
@pytest.mark.parametrize("kind", ["fifo", "device", "link", "link to nothing", "socket"])
def test_what_is_no_regular_file_is_refused_at_once_and_replaced(kind: str, tmp_path: Path) -> None:
    """In a process of its own, which would wait for ever for a writer of the FIFO."""
    path = stored(tmp_path / "kept")
    (tmp_path / "elsewhere").write_bytes(path.read_bytes())
    path.unlink()
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        import socket

        with socket.socket(socket.AF_UNIX) as listener:
            here = Path.cwd()
            os.chdir(path.parent)  # addresses of sockets are short
            try:
                listener.bind(path.name)
            finally:
                os.chdir(here)
    else:
        targets = {"device": Path("/dev/zero"), "link": tmp_path / "elsewhere"}
        path.symlink_to(targets.get(kind, tmp_path / "nowhere"))
    program = (
        "import sys; from litegpu.host.disk_cache import DiskCache, Folder\n"
        "kept = DiskCache(Folder(sys.argv[1]), '.bin')\n"
        "assert kept.load('source') is None\n"
        "kept.store(b'new', 'source')\n"
        "assert kept.load('source') == b'new'\n"
    )
    command = [sys.executable, "-c", program, str(path.parent)]
    subprocess.run(command, check=True, timeout=60)
    assert stat.S_ISREG(path.lstat().st_mode)
    assert (tmp_path / "elsewhere").read_bytes().endswith(DATA)
    assert not (tmp_path / "nowhere").exists()


def test_a_folder_under_a_files_name_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = stored(tmp_path)
    path.unlink()
    path.mkdir()
    assert files(tmp_path).load("source") is None
    files(tmp_path).store(DATA, "source")
    assert "cannot be cached" in caplog.text
    assert list(tmp_path.iterdir()) == [path]


# Owners and modes


@posix
def test_what_litegpu_makes_is_private(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        path = stored(tmp_path / "folder")
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


@posix
@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_a_file_that_others_may_write_is_replaced(
    mode: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = stored(tmp_path)
    path.chmod(mode)
    assert files(tmp_path).load("source") is None
    assert "other users may write to it" in caplog.text
    files(tmp_path).store(DATA, "source")
    assert files(tmp_path).load("source") == DATA
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@posix
@pytest.mark.parametrize("mode", [0o770, 0o707])
def test_a_folder_that_others_may_write_to_is_not_used(
    mode: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = stored(tmp_path / "folder")
    path.parent.chmod(mode)
    assert files(path.parent).load("source") is None
    files(path.parent).store(DATA, "another")
    assert list(path.parent.iterdir()) == [path]
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert f"run: chmod go-w '{path.parent}'" in record.getMessage()
    path.parent.chmod(0o755)
    assert files(path.parent).load("source") == DATA


@posix
def test_a_sticky_folder_will_do(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    (tmp_path / "tmp").chmod(0o1777)
    stored(tmp_path / "tmp")
    assert files(tmp_path / "tmp").load("source") == DATA


@posix
def test_what_belongs_to_another_user_is_not_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = stored(tmp_path / "folder")

    def foreign(found: os.stat_result) -> bool:
        return not stat.S_ISREG(found.st_mode)

    monkeypatch.setattr(private_files, "_is_own", foreign)
    assert files(path.parent).load("source") is None
    assert "it belongs to another user" in caplog.text
    monkeypatch.setattr(private_files, "_is_own", lambda found: False)
    files(path.parent).store(DATA, "another")
    assert "the folder belongs to another user; name a folder of your own" in caplog.text
    assert list(path.parent.iterdir()) == [path]


@posix
def test_own_is_this_user_and_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = stored(tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    assert private_files._is_own(path.stat()) == (path.stat().st_uid == 0)


def test_without_owners_a_file_is_told_by_its_header(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Windows, which also has none of the flags of open."""
    monkeypatch.delattr(os, "geteuid", raising=False)
    monkeypatch.delattr(os, "O_DIRECTORY", raising=False)
    path = stored(tmp_path)
    assert files(tmp_path).load("source") == DATA
    path.write_bytes(b"rubbish")
    assert files(tmp_path).load("source") is None


# Stores that fail


def fail_with(error: BaseException) -> Callable[..., None]:
    def fail(*_: object) -> None:
        raise error

    return fail


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_leaves_nothing_behind(
    call: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, call, fail_with(OSError(errno.ENOSPC, "No space left on device")))
    files(tmp_path).store(DATA, "source")
    assert list(tmp_path.iterdir()) == []
    assert "cannot be cached" in caplog.text and "No space left on device" in caplog.text


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_an_interrupt_leaves_nothing_behind_and_stays_one(
    call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, call, fail_with(KeyboardInterrupt("now")))
    with pytest.raises(KeyboardInterrupt, match="now"):
        files(tmp_path).store(DATA, "source")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full is Linux's")
def test_a_failing_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = stored(tmp_path)

    def full(suffix: str, prefix: str, folder: Path) -> tuple[int, str]:
        (folder / "unfinished").touch()
        return os.open("/dev/full", os.O_WRONLY), str(folder / "unfinished")

    monkeypatch.setattr(tempfile, "mkstemp", full)
    files(tmp_path).store(b"new" * 100_000, "source")
    assert list(tmp_path.iterdir()) == [path]
    assert files(tmp_path).load("source") == DATA


@pytest.mark.parametrize("locks", [posix_only, False])
def test_what_killed_processes_left_is_removed(
    locks: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the lock of a process that lives, or else by age."""
    old, new = (tmp_path / f".litegpu-{name}.tmp" for name in ("old", "new"))
    foreign = tmp_path / "notes.tmp"
    for path in (old, new, foreign):
        path.write_bytes(b"half a ker")
    with new.open() as in_work:
        if locks:
            assert private_files._lock(in_work.fileno())
        else:
            monkeypatch.setattr(private_files, "_lock", lambda _: None)
            for path in (old, foreign):
                os.utime(path, (time.time() - 7200,) * 2)
        path = stored_beside(tmp_path)
        assert set(tmp_path.iterdir()) == {new, foreign, path}


@posix
def test_a_file_that_is_removed_before_it_is_locked_is_begun_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, created = tempfile.mkstemp, list[str]()

    def removed_twice(*where: Any) -> tuple[int, str]:
        handle, path = make(*where)
        created.append(path)
        if len(created) == 1:
            private_files.remove_stale(tmp_path)
        elif len(created) == 2:
            descriptor = os.open(path, os.O_RDONLY)
            other.callback(os.close, descriptor)
            assert private_files._lock(descriptor)
            Path(path).unlink()
        return handle, path

    monkeypatch.setattr(tempfile, "mkstemp", removed_twice)
    with contextlib.ExitStack() as other:
        path = stored(tmp_path)
    assert len(created) == 3 and [*tmp_path.iterdir()] == [path]


def stored_beside(folder: Path) -> Path:
    before = set(folder.iterdir())
    files(folder).store(DATA, "source")
    (path,) = set(folder.iterdir()) - before
    return path


def test_a_folder_that_vanishes_is_made_again(tmp_path: Path) -> None:
    cache = files(tmp_path / "folder")
    cache.store(DATA, "source")
    for path in (*(tmp_path / "folder").iterdir(),):
        path.unlink()
    (tmp_path / "folder").rmdir()
    assert cache.load("source") is None
    cache.store(DATA, "source")
    assert cache.load("source") == DATA


@pytest.mark.skipif(
    not hasattr(os, "geteuid") or os.geteuid() == 0, reason="this user may write anywhere"
)
def test_a_read_only_folder_is_read_and_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stored(tmp_path)
    tmp_path.chmod(0o500)
    try:
        assert files(tmp_path).load("source") == DATA
        for key in ("another", "third"):
            files(tmp_path).store(DATA, key)
        assert len(caplog.records) == 1 and "cannot be cached" in caplog.text
    finally:
        tmp_path.chmod(0o700)


def test_a_second_writer_that_loses_says_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows refuses to replace what another process has open."""
    path = stored(tmp_path)
    monkeypatch.setattr(os, "replace", fail_with(PermissionError(13, "Access is denied")))
    files(tmp_path).store(DATA, "source")
    assert not caplog.records and list(tmp_path.iterdir()) == [path]
    files(tmp_path).store(b"other data", "source")
    assert "Access is denied" in caplog.text


def test_writers_and_readers_at_once_see_whole_files(tmp_path: Path) -> None:
    """In processes of their own, as a server starts many."""
    program = (
        "import sys; from litegpu.host.disk_cache import DiskCache, Folder\n"
        "kept, mine = DiskCache(Folder(sys.argv[1]), '.bin'), sys.argv[2].encode() * 50_000\n"
        "for _ in range(40):\n"
        "    kept.store(mine, 'source')\n"
        "    found = kept.load('source')\n"
        "    assert found and len(set(found)) == 1, 'parts of two files, or none'\n"
    )

    def start(letter: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", program, str(tmp_path), letter]
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    with ThreadPoolExecutor(3) as pool:
        for ended in pool.map(start, "abc"):
            assert ended.returncode == 0, ended.stderr
    assert len(list(tmp_path.iterdir())) == 1


# What was loaded is no good


def test_what_proved_unusable_is_gone_and_kept_anew(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = stored(tmp_path)
    files(tmp_path).discard("the driver rejects it", "source")
    assert not path.exists()
    expected = f"'{re.escape(str(path))}' is unusable and will be replaced: the driver rejects"
    assert re.search(expected, caplog.text)
    assert files(tmp_path).load("source") is None
    files(tmp_path).store(b"better", "source")
    assert files(tmp_path).load("source") == b"better"
    assert hashlib.sha256(b"better").digest() in path.read_bytes()


def test_other_folders_are_read(tmp_path: Path) -> None:
    files(tmp_path / "shipped").store(b"compiled", "source")
    cache = DiskCache(Folder(str(tmp_path / "own"), others=(str(tmp_path / "shipped"),)), ".bin")
    assert cache.has_files() and cache.load("source") == b"compiled"
    cache.store(b"new", "other")
    assert cache.load("other") == b"new"
    assert len([*(tmp_path / "shipped").iterdir()]) == 1
    cache.discard("no good", "source")
    assert cache.load("source") is None
