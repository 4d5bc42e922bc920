"""Paths in the checkout; no other file of the tests depends on the folder structure."""

from __future__ import annotations

import os
from pathlib import Path

SUPPORT = Path(__file__).parent
TESTS = SUPPORT.parent
ROOT = TESTS.parent
SOURCE = ROOT / "src"


def python_path(*first: str | Path) -> str:
    """Return a PYTHONPATH for programs that import litegpu and what the tests share."""
    return os.pathsep.join(map(str, (*first, SUPPORT, SOURCE)))
