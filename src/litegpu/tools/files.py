"""Checks and writes the output files of tools."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from litegpu.errors import FileError, LitegpuError
from litegpu.tools.console import note
from litegpu.tools.flags import Flag

STDOUT = "-"
_SWITCHES = {"true": STDOUT, "1": STDOUT, "false": None, "0": None}


def json_target(text: str) -> str | None:
    """Parse the value of --json: a file, or whether to print JSON."""
    return _SWITCHES.get(text.lower(), text)


JSON = Flag(
    *("json", json_target, None, "print JSON instead of tables; --json=FILE writes it there"),
    bare="true",
    metavar="[FILE]",
)


def prints_json(args: argparse.Namespace) -> bool:
    """Return whether stdout is reserved for JSON."""
    return bool(args.json == STDOUT)


def try_to_write(flag: str, path: str | None) -> None:
    """Raise FileError if the file of a flag cannot be written.

    The function does not change the file, and creates no folders.
    """
    if path in (None, STDOUT):
        return
    target = Path(path)
    try:
        if target.is_file() or target.is_dir():
            target.open("r+b").close()
        elif not target.exists():
            tempfile.TemporaryFile(dir=target.parent).close()
    except OSError as error:
        raise cannot_write(flag, path, error) from error


def cannot_write(flag: str, path: str | None, error: OSError) -> FileError:
    """Return the error for the file of a flag or, without a flag, of an argument."""
    name = f"--{flag}={path}" if flag else path
    return FileError(
        f"{name}: the file cannot be written: {error.strerror or error}. "
        "Name a file in a folder that exists and is writable."
    )


def write_json(flag: str, path: str | None, content: Any) -> None:
    """Print JSON, or write JSON to the file of a flag. Raises FileError."""
    if path is None:
        return
    text = json.dumps(finite(content), indent=2, allow_nan=False)
    if path == STDOUT:
        print(text)
        return
    write_bytes(flag, path, (text + "\n").encode())


def write_bytes(flag: str, path: str, content: bytes) -> None:
    """Write bytes to the file of a flag. Raises FileError."""
    with replacing(flag, path) as part:
        part.write_bytes(content)
    note(f"{flag}: {path}")


@contextlib.contextmanager
def replacing(flag: str, path: str) -> Iterator[Path]:
    """Yield a temporary file that replaces `path` at the end of the context.

    After an error or an interrupt, the old contents of `path` remain. The temporary file has the
    same suffix. The temporary file is in the same folder or, if that folder is not writable, in a
    folder for temporary files. A path that is not a regular file, such as a device, is written
    directly. If nothing was written, `path` does not change.

    Raises:
        FileError: the file cannot be written.
    """
    target = Path(os.path.realpath(path))
    part = temporary = target.with_name(f".{target.stem[:100]}.{os.getpid()}.part{target.suffix}")
    try:
        if target.exists() and not target.is_file():
            part = target
        elif not _can_write(part, target):
            part = Path(tempfile.mkdtemp(prefix="litegpu-")) / target.name
        yield part
        if part not in (target, temporary) and part.exists():
            shutil.copyfile(part, target)
        elif part is temporary and part.exists():
            if target.exists():
                shutil.copymode(target, part)
            part.replace(target)
    except OSError as error:
        if isinstance(error, LitegpuError):
            raise
        raise cannot_write(flag, path, error) from error
    finally:
        if part is not target:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)
                if part is not temporary:
                    part.parent.rmdir()


def _can_write(part: Path, target: Path) -> bool:
    """Return whether a file can be created next to a target.

    Raises:
        OSError: no file can be created, and the target does not exist.
    """
    try:
        part.touch()
        part.unlink()
    except OSError:
        if not target.is_file():
            raise
        return False
    return True


def finite(content: Any) -> Any:
    """Return the content with NaN and infinity replaced by null for JSON."""
    if isinstance(content, dict):
        return {name: finite(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content
