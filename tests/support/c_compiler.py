"""Builds small C libraries for tests that need the C side of an interface."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest


def shared_library(source: str, folder: Path) -> Path:
    """Compile C code that may include the headers of this folder; skip without a compiler."""
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        pytest.skip("no C compiler: none of cc, gcc, clang is on PATH")
    text, target = folder / "library.c", folder / "library.shared"
    text.write_text(source)
    position = [] if sys.platform == "win32" else ["-fPIC"]
    headers = ["-I", str(Path(__file__).parent)]
    command = [compiler, "-shared", *position, *headers, "-o", str(target), str(text)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return target
