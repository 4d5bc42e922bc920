"""The generated pages of docs/ are up to date, and links are not dead."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

import op_types
from fuzzing.worker import Worker
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
MISSING = {
    *(
        "ASSIGN_VARIABLE",
        "CALL_ONCE",
        "COMPLEX_ABS",
    ),
    *(
        "DENSIFY",
        "DEQUANTIZE",
        "IMAG",
    ),
    *(
        "NON_MAX_SUPPRESSION_V5",
        "QUANTIZE",
        "RANGE",
        "READ_VARIABLE",
    ),
    *(
        "REAL",
        "SPARSE_TO_DENSE",
        "STABLEHLO_GATHER",
    ),
    *(
        "UNSORTED_SEGMENT_MAX",
        "UNSORTED_SEGMENT_MIN",
        "UNSORTED_SEGMENT_PROD",
    ),
    *(
        "UNSORTED_SEGMENT_SUM",
        "VAR_HANDLE",
        "WHILE",
    ),
}
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


def test_most_operations_have_their_types() -> None:
    """Missing are those that random elements make no valid model of, such as positions."""
    listed = {op for op, _, _ in op_types.recorded()}
    known = {op.name for op in all_ops() if not op.internal} & schema.members(
        "BuiltinOperator"
    ).keys()
    assert known - listed == MISSING
    assert {where for _, _, where in op_types.recorded()} == {"GPU", *SCRIPT["WHY"]}


def test_types_stay_on_the_cpu_for_the_reasons_that_the_table_gives() -> None:
    for op, types, where in op_types.recorded():
        assert where in ("GPU", op_types.why(op, types)), (op, types)


def test_types_are_computed_as_the_table_says() -> None:
    """Tries one in 80 of the rows again, and all types of one operation."""
    bases, worker = op_types.bases(), Worker()
    for op, types, where in op_types.recorded()[::80]:
        models = {each.types: each for base in bases[op] for each in op_types.variants(op, base)}
        assert op_types.runs_on_cpu(worker, models[types]), (op, types)
        found = "GPU" if op_types.runs_on_gpu(models[types]) else op_types.why(op, types)
        assert found == where, (op, types)
    rows = op_types.rows(worker, "MEAN", bases["MEAN"])
    worker.close()
    assert rows == [row for row in op_types.recorded() if row[0] == "MEAN"]


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
