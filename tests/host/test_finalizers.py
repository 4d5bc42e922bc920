"""No finalizer prints a traceback after a failed `__init__` or at Python's exit."""

from __future__ import annotations

import ast
import importlib
import sys
from pathlib import Path

import pytest

import litegpu
from litegpu.host.finalizers import finalizer

ROOT = Path(litegpu.__file__).parent


def classes_with_finalizers() -> list[tuple[str, str]]:
    found = []
    for path in sorted(ROOT.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        module = ".".join(["litegpu", *path.relative_to(ROOT).with_suffix("").parts])
        for node in ast.walk(ast.parse(text)) if "def __del__" in text else ():
            if isinstance(node, ast.ClassDef) and any(
                isinstance(part, ast.FunctionDef) and part.name == "__del__" for part in node.body
            ):
                found.append((module, node.name))
    return found


@pytest.mark.parametrize(("module", "name"), classes_with_finalizers())
def test_without_attributes_and_without_globals(
    module: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = importlib.import_module(module)
    finalized = getattr(loaded, name).__del__
    unmade = type("Unmade", (), {"__slots__": ()})()
    finalized(unmade)
    guard = sys.modules["litegpu.host.finalizers"]
    for cleared in (loaded, guard):
        for attribute in [*vars(cleared)]:
            if not attribute.startswith("__"):
                monkeypatch.setattr(cleared, attribute, None)
    finalized(unmade)


def test_an_interrupt_is_raised() -> None:
    def interrupted(_self: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        finalizer(interrupted)(None)
