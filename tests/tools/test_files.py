"""Files that tools write are complete or absent."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest

from litegpu.errors import FileError
from litegpu.tools.files import replacing, try_to_write, write_bytes


@pytest.fixture
def locked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that may be written, in a folder that takes no other one, even from root."""
    (tmp_path / "own").mkdir()
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    path = tmp_path / "own" / "result.json"
    path.write_text("older")
    touch = Path.touch

    def refuse(self: Path, *args: Any, **keywords: Any) -> None:
        if self.parent == path.parent:
            raise PermissionError(13, "Permission denied")
        touch(self, *args, **keywords)

    monkeypatch.setattr(Path, "touch", refuse)
    return path


def left(path: Path) -> list[str]:
    """Return what lies in the file's folder and in that for temporary files."""
    return [
        each.name for where in ("own", "temporary") for each in (path.parents[1] / where).iterdir()
    ]


def test_a_file_in_a_folder_that_takes_no_other(
    locked: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    try_to_write("json", str(locked))
    write_bytes("json", str(locked), b"newer")
    assert locked.read_text() == "newer"
    assert left(locked) == ["result.json"]
    assert capsys.readouterr().err == f"json: {locked}\n"


@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_there_too_an_error_leaves_what_was(error: BaseException, locked: Path) -> None:
    with pytest.raises((FileError, KeyboardInterrupt)), replacing("json", str(locked)) as part:
        assert part.suffix == ".json"
        part.write_text("new")
        raise error
    assert locked.read_text() == "older"
    assert left(locked) == ["result.json"]


def test_no_file_in_a_folder_that_takes_none(locked: Path) -> None:
    path = locked.with_name("other.json")
    with pytest.raises(FileError, match=r"--json=.*other\.json: the file cannot be written: Permi"):
        write_bytes("json", str(path), b"new")
    assert left(locked) == ["result.json"]


@pytest.mark.parametrize("folder", ["own", "temporary"])
def test_nothing_written_changes_nothing(folder: str, locked: Path) -> None:
    path = locked if folder == "own" else locked.parents[1] / folder / "file"
    with replacing("json", str(path)):
        pass
    assert locked.read_text() == "older"
    assert left(locked) == ["result.json"]
