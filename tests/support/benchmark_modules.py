"""Imports the scripts of benchmarks/, which import each other as modules."""

from __future__ import annotations

import importlib
import sys
from typing import Any

import pytest

from places import ROOT

BENCHMARKS = ROOT / "benchmarks"


def load_benchmark(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a script as a module; nothing of it stays behind after the test."""
    for path in BENCHMARKS.glob("*.py"):
        monkeypatch.setitem(sys.modules, path.stem, None)
        del sys.modules[path.stem]
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module(name)
