"""The pages of docs/ that follow from the code are up to date, and its links lead somewhere."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from litegpu.ops.base import all_ops, find
from litegpu.runtime_abi import interpreter as runtime
from litegpu.zoo import schema
from litegpu.zoo.writer import ModelWriter
from places import ROOT

DOCUMENTS = [
    path
    for pattern in ("*.md", "docs/**/*.md", "benchmarks/notes/*.md")
    for path in sorted(ROOT.glob(pattern))
]
SCRIPT: dict[str, Any] = runpy.run_path(str(ROOT / "scripts" / "write_docs.py"))


@pytest.mark.parametrize("name", SCRIPT["PAGES"])
def test_written_pages_are_up_to_date(name: str) -> None:
    written = (ROOT / "docs" / name).read_text(encoding="utf-8")
    assert written == SCRIPT["PAGES"][name](), "Run: python scripts/write_docs.py"


def test_every_operation_has_a_line() -> None:
    lines = SCRIPT["ops_page"]().splitlines()
    conv = "| **CONV_2D** | 1–8 | float32 → float32 | `padding`: same, valid<br>"
    assert conv in "\n".join(lines)
    assert len(SCRIPT["DOCUMENTED"]) == 24
    assert all(
        any(line.startswith(f"| **{op}** ") for line in lines) for op in SCRIPT["DOCUMENTED"]
    )
    internal = tuple(f"| {op.name} " for op in all_ops() if op.internal)
    assert not any(line.startswith(internal) for line in lines), "no model holds them"


def test_every_operation_of_the_runtime_is_computed_or_has_a_reason() -> None:
    table = SCRIPT["ops_page"]()
    for name in schema.members("BuiltinOperator"):
        if find(name) is None and name != "CUSTOM" and is_registered(name):
            assert re.search(rf"\b{name}\b", table), name


def test_every_version_of_the_runtime_is_known() -> None:
    """A version stands for types and attributes, which are checked by themselves."""
    ops = {op.name: op for op in all_ops()}
    for name in ops.keys() & schema.members("BuiltinOperator").keys():
        highest = ops[name].max_version
        assert is_registered(name, highest), f"{name} v{highest}"
        assert not is_registered(name, highest + 1), f"{name} v{highest + 1}"


def is_registered(name: str, version: int = 1) -> bool:
    """Whether the runtime has a kernel of a version of an operation."""
    writer = ModelWriter()
    x = writer.input((1,))
    writer.output(writer.op(name, [x], [(1,)], version=version))
    try:
        runtime.load().Interpreter(model_content=writer.build())
    except (RuntimeError, ValueError) as error:
        return "Didn't find op" not in str(error)
    return True


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_to_files(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)", text):
        if "://" not in target:
            assert (document.parent / target).exists(), f"{document.name} links to {target}"
