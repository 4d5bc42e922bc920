"""Identifies litegpu's code, because the version does not identify modified installations."""

from __future__ import annotations

import contextlib
import hashlib
import os
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from litegpu.version import __version__

_PACKAGE = Path(__file__).parents[1]
_COMPILED = ".pyc"
_ASIDE = ("__pycache__", "tools", "zoo")
"""Folders whose files do not affect compiled partitions."""


@cache
def source_digest() -> str:
    """Return a string that identifies litegpu's source files, computed once per process.

    See `digest_of`. The result does not reflect later changes of the files in the same process.
    """
    return digest_of(_PACKAGE, __version__)


def digest_of(package: Path, version: str) -> str:
    """Return a hexadecimal digest that identifies the files of a package.

    An installed package has a list of its files with digests, which is equal on all machines. A
    file that changed after the installation is identified by name, size and modification time. A
    checkout has no list, so all its files are identified in this way. The function reads only the
    list, not the files. A package in a zip file, or frozen into a program, is identified by that
    file.
    """
    if getattr(sys, "frozen", False) or not package.is_dir():
        whole = next(filter(Path.is_file, package.parents), Path(sys.executable))
        return hashlib.sha256(os.fsencode(_line(os.fspath(whole), whole.stat()))).hexdigest()
    listed, written = _installed(package, version)
    lines = listed + sorted(_newer(os.fspath(package), written))
    return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


def _installed(package: Path, version: str) -> tuple[list[str], int]:
    """Return the lines of the installer's file list, and its time in ns; 0 without a list."""
    path = package.parent / f"{package.name}-{version}.dist-info" / "RECORD"
    try:
        written, text = path.stat().st_mtime_ns, path.read_text("utf-8", "surrogateescape")
    except OSError:
        return [], 0
    # The list of an editable installation has no modules, and compiled files have no digest.
    inside = [line for line in text.splitlines() if line.startswith(f"{package.name}/")]
    lines = sorted(line for line in inside if _COMPILED not in line)
    return (lines, written) if lines else ([], 0)


def _newer(folder: str, than: int) -> Iterator[str]:
    """Yield a line for each file below a folder that was changed after time `than`."""
    with contextlib.suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir():
                if entry.name not in _ASIDE:
                    yield from _newer(entry.path, than)
            elif not entry.name.endswith(_COMPILED):
                with contextlib.suppress(
                    FileNotFoundError
                ):  # an editor's temporary file, already deleted
                    found = entry.stat()
                    if found.st_mtime_ns > than:
                        yield _line(entry.path, found)


def _line(path: str, found: os.stat_result) -> str:
    return f"{path},{found.st_size},{found.st_mtime_ns}"
