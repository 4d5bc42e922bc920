"""Builds small C libraries for tests that need the C side of an interface."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest


def shared_library(source: str, folder: Path, *libraries: str) -> Path:
    """Compile C code that may include the headers of this folder; skip without a compiler."""
    position = [] if sys.platform == "win32" else ["-fPIC"]
    return _compiled(source, folder / "library.shared", "-shared", *position, after=libraries)


def program(source: str, folder: Path, *libraries: str) -> Path:
    """Compile a program in C; skip without a compiler."""
    return _compiled(source, folder / "program", after=libraries)


def compiler() -> str:
    """Return the path of a C compiler; the test is skipped if there is none."""
    found = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if found is None:
        pytest.skip("no C compiler: none of cc, gcc, clang is on PATH")
    return found


def _compiled(source: str, target: Path, *flags: str, after: Sequence[str]) -> Path:
    text = target.with_suffix(".c")
    text.write_text(source)
    headers = ["-I", str(Path(__file__).parent)]
    command = [compiler(), *flags, *headers, "-o", str(target), str(text), *after]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return target
