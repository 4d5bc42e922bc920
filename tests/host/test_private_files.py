"""Folders that other users may write to, if the user trusts them."""

from __future__ import annotations

import logging
import os
import stat
from pathlib import Path

import pytest

from litegpu.host import disk_cache, private_files
from litegpu.host.disk_cache import DiskCache
from litegpu.host.private_files import Folder, RejectedFileError, UnsafeFolderError

pytestmark = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="Windows has no such owners")


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """Return a folder of all users with a file that all may write."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o777)
    (folder / "file").write_bytes(b"of another user")
    (folder / "file").chmod(0o666)
    return folder


def test_a_folder_is_trusted_only_where_the_user_says_so(shared: Path) -> None:
    with pytest.raises(UnsafeFolderError, match=r"chmod go-w .*unsafe_cache=True, or LITEGPU_CAC"):
        private_files.read(shared / "file", 100)
    assert private_files.read(shared / "file", 100, trusted=True) == b"of another user"
    with pytest.raises(UnsafeFolderError, match="other users may write to the folder"):
        private_files.replace(shared / "new", [b"mine"])
    private_files.replace(shared / "new", [b"mine"], trusted=True)
    assert {path.name for path in shared.iterdir()} == {"file", "new"}


def test_so_is_that_of_another_user(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = shared.stat().st_uid
    monkeypatch.setattr(private_files, "_is_own", lambda found: found.st_uid != owner)
    with pytest.raises(UnsafeFolderError, match=r"name a folder of your own.*unsafe_cache=True"):
        private_files.read(shared / "file", 100)
    assert private_files.read(shared / "file", 100, trusted=True) == b"of another user"


@pytest.mark.parametrize(
    ("folder_mode", "mode"), [(0o777, 0o644), (0o770, 0o640), (0o733, 0o600), (0o700, 0o600)]
)
def test_who_may_read_the_folder_may_read_its_files(
    folder_mode: int, mode: int, shared: Path
) -> None:
    shared.chmod(folder_mode)
    private_files.replace(shared / "new", [b"mine"], trusted=True)
    assert stat.S_IMODE((shared / "new").stat().st_mode) == mode


@pytest.mark.parametrize("kind", ["link", "fifo", "folder", "large"])
def test_all_else_is_refused_there_too(kind: str, shared: Path, tmp_path: Path) -> None:
    path, elsewhere = shared / "file", tmp_path / "elsewhere"
    elsewhere.write_bytes(b"mine")
    if kind != "large":
        path.unlink()
    if kind == "link":
        path.symlink_to(elsewhere)
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    expected = "more than 10" if kind == "large" else "the path is not a regular file"
    with pytest.raises(RejectedFileError, match=expected):
        private_files.read(path, 10, trusted=True)
    if kind != "folder":
        private_files.replace(path, [b"new"], trusted=True)
        assert path.read_bytes() == b"new" and not path.is_symlink()
    assert elsewhere.read_bytes() == b"mine"


def test_kernels_are_kept_there_too(shared: Path, caplog: pytest.LogCaptureFixture) -> None:
    disk_cache._reported.clear()
    caplog.set_level(logging.INFO, "litegpu")
    trusting = DiskCache(Folder(str(shared), trusted=True), ".bin")
    trusting.store(b"kernels", "source")
    assert trusting.load("source") == b"kernels" and not caplog.records
    assert DiskCache(Folder(str(shared)), ".bin").load("source") is None
    assert "Compiled kernels cannot be cached in" in caplog.text
