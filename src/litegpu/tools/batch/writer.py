"""The table that `litegpu batch` writes: in parts, which appear whole and are joined at the end.

Until then they lie in OUTPUT.partial, with a description of the run that made them: what was
interrupted goes on there, if it is the same run.
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
    """Return how many samples a part has: whole batches, in bounded memory."""
    most = min(_PART_BYTES // row_bytes, _PART_ROWS)
    return max(most // batch, 1) * batch


def check_output(output: str, overwrite: bool) -> None:
    """Look at what is where a table is to appear.

    Raises:
        FileError: it is something else than a table.
        OptionsError: it is a table that was not to be replaced.
    """
    path = Path(output)
    if _is_file(path) and path.is_dir():
        raise FileError(f"--output={path}: it is a folder. Give the name of a file.")
    if not _is_file(path) and path.is_file():
        raise FileError(
            f"--output={path}: it is a file, and only names that end in .parquet are written as "
            "files. Give such a name, or that of a new folder."
        )
    others = sorted({*path.glob("*")} - {*path.glob(_PARTS)})
    if others:
        raise FileError(
            f"--output={path}: the folder holds {others[0].name!r}, which is no part of a table. "
            "Give the name of a new folder."
        )
    if not overwrite and (path.is_file() or any(path.glob("*"))):
        raise OptionsError(
            f"--output={path}: it exists. Replace it by --overwrite, or give another name."
        )


def _is_file(output: Path) -> bool:
    return output.suffix.lower() == ".parquet"


class PartedTable:
    """A Parquet file, or a folder of some where its name does not end in `.parquet`."""

    def __init__(self, output: str, about: dict[str, Any], resume: bool | None) -> None:
        """Begin, or go on with what an earlier run left.

        Args:
            output: where the whole table appears at the end.
            about: what another run must have alike to go on with this one's parts.
            resume: go on with parts that are there; False removes them, None refuses.

        Raises:
            FileError: nothing can be written there, or what is there is in the way.
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
        """Where the parts lie until the end."""
        return self._folder

    def add(self, table: Any) -> None:
        """Write the next part. Raises FileError."""
        name = _part(self.done)
        with self._writing():
            parquet().write_table(table, self._folder / f"{name}.new")
            os.replace(self._folder / f"{name}.new", self._folder / name)
        self.done += 1

    def finish(self, schema: Any) -> None:
        """Make the whole table appear. Raises FileError."""
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
        """Let the folder of parts appear: at each moment there is a whole table somewhere."""
        before = Path(f"{self._folder.with_suffix('')}.replaced")
        if not self._output.is_dir():
            os.replace(self._folder, self._output)
            return
        shutil.rmtree(before, ignore_errors=True)  # of a run that ended before it was removed
        os.replace(self._output, before)
        try:
            os.replace(self._folder, self._output)
        except BaseException:
            os.replace(before, self._output)
            raise
        shutil.rmtree(before, ignore_errors=True)

    def leave(self) -> bool:
        """Return whether there are parts to go on with; without any nothing stays behind."""
        if not self._parts():
            shutil.rmtree(self._folder, ignore_errors=True)
        return bool(self._parts())

    def _parts(self) -> list[Path]:
        """Return the parts from the first on, as far as none is missing."""
        found: list[Path] = []
        while (part := self._folder / _part(len(found))).is_file():
            found.append(part)
        return found

    def _check(self, about: dict[str, Any], resume: bool | None) -> None:
        if not resume:
            raise FileError(
                f"{self._folder} holds {counted(len(self._parts()), 'part')} of a run that did not "
                "end. Continue it by --resume, or restart it by --resume=false, which removes "
                "what is there."
            )
        try:
            before = json.loads((self._folder / _ABOUT).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise FileError(
                f"{self._folder / _ABOUT} cannot be read: {error}. Restart it by --resume=false."
            ) from error
        changed = [name for name in about if before.get(name) != about[name]]
        if changed:
            was, now = (str(each.get(changed[0])) for each in (before, about))
            raise FileError(
                f"{self._folder} is of another run: its {changed[0]} is {was[:200]}, now "
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
