"""Writes the table of `litegpu batch` in parts that appear atomically and are joined at the end.

During a run, the parts are in the folder OUTPUT.partial, with a description of the run. After an
interruption, a run with the same settings can continue from these parts.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from litegpu.errors import FileError, OptionsError
from litegpu.tools.batch.table import parquet
from litegpu.tools.files import cannot_write
from litegpu.wording import counted

_ABOUT = "batch.json"
_PARTS = "part-*.parquet"
_PART_BYTES = 64 << 20
_PART_ROWS = 4096


def rows_of_part(row_bytes: int, batch: int) -> int:
    """Return the number of samples per part: a multiple of the batch, in bounded memory."""
    most = min(_PART_BYTES // row_bytes, _PART_ROWS)
    return max(most // batch, 1) * batch


def check_output(output: str, overwrite: bool) -> None:
    """Check the path of the output table.

    Raises:
        FileError: the path exists and is not a table.
        OptionsError: the path is an existing table that must not be replaced.
    """
    path = Path(output)
    if _is_file(path) and path.is_dir():
        raise FileError(f"--output={path}: it is a folder. Give the name of a file.")
    if not _is_file(path) and path.is_file():
        raise FileError(
            f"--output={path}: it is a file, but its name does not end in .parquet. Give a name "
            "that does, or the name of a new folder."
        )
    others = sorted({*path.glob("*")} - {*path.glob(_PARTS)})
    if others:
        raise FileError(
            f"--output={path}: the folder has {others[0].name!r}, which is not a part of a table. "
            "Give the name of a new folder."
        )
    if not overwrite and (path.is_file() or any(path.glob("*"))):
        raise OptionsError(
            f"--output={path}: it exists. Replace the output by --overwrite, or give another name."
        )


def _is_file(output: Path) -> bool:
    return output.suffix.lower() == ".parquet"


class PartedTable:
    """An output table: a Parquet file, or a folder of Parquet files without that suffix."""

    def __init__(self, output: str, about: dict[str, Any], resume: bool | None) -> None:
        """Start a table, or continue the table of an earlier run.

        Args:
            output: the path of the complete table.
            about: the settings that must be equal in a run that continues these parts.
            resume: continue existing parts; False removes them, None raises an error.

        Raises:
            FileError: the path is not writable, or is not a table.
        """
        self._output = Path(output)
        self._folder = Path(f"{output.rstrip('/' + os.sep)}.partial")
        self._is_file = _is_file(self._output)
        with self._writing():
            if self._folder.exists() and resume is False:
                shutil.rmtree(self._folder)
            if self._folder.exists() and self._parts():
                self._check(about, resume)
            else:
                self._folder.mkdir(exist_ok=True)
            self._write(_ABOUT, (json.dumps(about, indent=2) + "\n").encode())
        self.done = len(self._parts())

    @property
    def folder(self) -> Path:
        """The folder of the parts during the run."""
        return self._folder

    def add(self, table: Any) -> None:
        """Write the next part. Raises FileError."""
        name = _part(self.done)
        with self._writing():
            parquet().write_table(table, self._folder / f"{name}.new")
            os.replace(self._folder / f"{name}.new", self._folder / name)
        self.done += 1

    def finish(self, schema: Any) -> None:
        """Publish the whole table. Raises FileError."""
        with self._writing():
            if self._is_file:
                joined = self._folder / "joined.parquet.new"
                with parquet().ParquetWriter(joined, schema) as writer:
                    for part in self._parts():
                        writer.write_table(parquet().read_table(part))
                os.replace(joined, self._output)
                shutil.rmtree(self._folder)
            else:
                if not self._parts():
                    self.add(schema.empty_table())
                (self._folder / _ABOUT).unlink()
                self._replace()

    def _replace(self) -> None:
        """Replace the output with the folder of parts; a complete table exists at every moment."""
        before = Path(f"{self._folder.with_suffix('')}.replaced")
        if not self._output.is_dir():
            os.replace(self._folder, self._output)
            return
        shutil.rmtree(before, ignore_errors=True)  # of a run that ended before removing it
        os.replace(self._output, before)
        try:
            os.replace(self._folder, self._output)
        except BaseException:
            os.replace(before, self._output)
            raise
        shutil.rmtree(before, ignore_errors=True)

    def leave(self) -> bool:
        """Return whether there are parts to continue; without parts, remove the folder."""
        if not self._parts():
            shutil.rmtree(self._folder, ignore_errors=True)
        return bool(self._parts())

    def _parts(self) -> list[Path]:
        """Return the consecutive parts, starting with the first one."""
        found: list[Path] = []
        while (part := self._folder / _part(len(found))).is_file():
            found.append(part)
        return found

    def _check(self, about: dict[str, Any], resume: bool | None) -> None:
        if not resume:
            raise FileError(
                f"{self._folder} has {counted(len(self._parts()), 'part')} of an unfinished run. "
                "Continue the run by --resume, or restart it by --resume=false, which removes "
                "these parts."
            )
        try:
            before = json.loads((self._folder / _ABOUT).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise FileError(
                f"{self._folder / _ABOUT} cannot be read: {error}. Restart the run by "
                "--resume=false."
            ) from error
        changed = [name for name in about if before.get(name) != about[name]]
        if changed:
            was, now = (str(each.get(changed[0])) for each in (before, about))
            raise FileError(
                f"{self._folder} belongs to another run: its {changed[0]} is {was[:200]}, now "
                f"{now[:200]}. Repeat the same run, or start a new one by --resume=false."
            )

    def _write(self, name: str, content: bytes) -> None:
        (self._folder / f"{name}.new").write_bytes(content)
        os.replace(self._folder / f"{name}.new", self._folder / name)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except FileError:
            raise
        except OSError as error:
            for left in self._folder.glob("*.new"):
                with contextlib.suppress(OSError):
                    left.unlink()
            raise cannot_write("output", str(self._output), error) from error


def _part(number: int) -> str:
    return f"part-{number:05}.parquet"
