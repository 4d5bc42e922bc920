"""Files of compiled kernels: found by all that made them, and no error where a folder is bad."""

from __future__ import annotations

from pathlib import Path

import pytest

from litegpu.backends.kept import KeptFiles


def test_what_was_kept_is_found_by_its_whole_key(tmp_path: Path) -> None:
    kept = KeptFiles(str(tmp_path / "new" / "folder"), ".bin")
    assert kept.load("source", 1) is None
    kept.store(b"compiled", "source", 1)
    kept.store(b"other", "source", 2)
    again = KeptFiles(str(tmp_path / "new" / "folder"), ".bin")
    assert again.load("source", 1) == b"compiled"
    assert again.load("source", 2) == b"other"
    assert KeptFiles(str(tmp_path / "new" / "folder"), ".bin2").load("source", 1) is None
    assert len(list((tmp_path / "new" / "folder").iterdir())) == 2


def test_without_a_folder_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    kept = KeptFiles(None, ".bin")
    kept.store(b"compiled", "source")
    assert kept.load("source") is None
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("no folder")
    kept = KeptFiles(str(tmp_path / "file"), ".bin")
    kept.store(b"compiled", "source")
    assert kept.load("source") is None
    expected = f"Compiled kernels cannot be kept in '{tmp_path / 'file'}'"
    assert expected in caplog.text and "check serialization_dir" in caplog.text
