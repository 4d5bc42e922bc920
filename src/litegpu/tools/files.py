"""Files that tools write: checked before the work starts; JSON goes to stdout or to a file."""

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
    """Parse the value of --json: a file, or whether to print it."""
    return _SWITCHES.get(text.lower(), text)


JSON = Flag(
    *("json", json_target, None, "print JSON instead of tables; --json=FILE writes it there"),
    bare="true",
    metavar="[FILE]",
)


def prints_json(args: argparse.Namespace) -> bool:
    """Return whether stdout contains JSON and nothing else."""
    return bool(args.json == STDOUT)


def try_to_write(flag: str, path: str | None) -> None:
    """Raise FileError if the file of a flag cannot be written.

    The file remains unchanged. Folders are not created.
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
    """Return the error for a flag's file, or without a flag for an argument."""
    name = f"--{flag}={path}" if flag else path
    return FileError(
        f"{name}: the file cannot be written: {error.strerror or error}. "
        "Name a file in a folder that exists and is writable."
    )


def write_json(flag: str, path: str | None, content: Any) -> None:
    """Print JSON or write it to the file of a flag. Raises FileError if that is impossible."""
    if path is None:
        return
    text = json.dumps(finite(content), indent=2, allow_nan=False)
    if path == STDOUT:
        print(text)
        return
    write_bytes(flag, path, (text + "\n").encode())


def write_bytes(flag: str, path: str, content: bytes) -> None:
    """Write the file of a flag. Raises FileError if that is impossible."""
    with replacing(flag, path) as part:
        part.write_bytes(content)
    note(f"{flag}: {path}")


@contextlib.contextmanager
def replacing(flag: str, path: str) -> Iterator[Path]:
    """Yield a file to write, which replaces `path` when it is complete.

    Until then, and after an error or an interrupt, the old contents remain. The new file has the
    same suffix and is in the same folder or, if that accepts no new files, in a temporary folder
    until it is copied. A path that is not a file, such as a device, is written directly; if nothing
    was written, nothing changes.

    Raises:
        FileError: it cannot be written.
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
    """Return whether a file can be created next to a target; False only if the target exists.

    Raises:
        OSError: it cannot, and there is no target.
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
    """Return the content with null for numbers that JSON cannot represent."""
    if isinstance(content, dict):
        return {name: finite(value) for name, value in content.items()}
    if isinstance(content, list | tuple):
        return [finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content
