"""Every reason for which a node stays on the CPU is reported for the right node."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from cases import REJECTED
from cases.lstm import IntegerLstm
from cases.rejected import Rejected
from litegpu import GpuDelegate, ops
from litegpu.numeric_policy import QuantizedMode
from litegpu.ops.common.support import check_support
from litegpu.runtime_abi import interpreter as runtime
from litegpu.zoo.writer import ModelWriter
from op_runner import write

OPS = Path(ops.__file__).parent
ELSEWHERE = ("support.py", "dynamic.py", "variables.py", "while_loop.py")
"""Modules whose reasons depend on several nodes; tests of their own hold those."""
OF_THE_MACHINE = ("_check_logarithms",)
"""Checks of the machine, which no node fails: tests/kernels/test_logarithm.py has another one."""


@pytest.mark.usefixtures("null_device")
@pytest.mark.parametrize("case", REJECTED, ids=lambda case: f"{case.op}-{case.reason}")
def test_reason(case: Rejected) -> None:
    assert check_support(case.graph()).reasons == {0: case.reason}


def reason_patterns(path: Path) -> Iterator[str]:
    """Yield a regular expression for each reason that the code of a module can return."""
    for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(function, ast.FunctionDef) or function.name in OF_THE_MACHINE:
            continue
        if "check" not in path.stem + function.name:
            continue
        for statement in ast.walk(function):
            if isinstance(statement, ast.Return | ast.Assign) and statement.value is not None:
                pattern = text_pattern(statement.value)
                if " " in pattern:
                    yield pattern


def text_pattern(expression: ast.expr) -> str:
    """Return a regular expression for the texts that an expression can be."""
    if isinstance(expression, ast.Constant) and isinstance(expression.value, str):
        return re.escape(expression.value)
    if isinstance(expression, ast.JoinedStr):
        return "".join(map(text_pattern, expression.values))
    return ".*" if isinstance(expression, ast.FormattedValue) else ""


def test_every_reason_has_a_case() -> None:
    patterns = [
        (path.name, pattern)
        for path in sorted(OPS.rglob("*.py"))
        if path.name not in ELSEWHERE
        for pattern in reason_patterns(path)
    ]
    assert len(patterns) > 30
    missing = [
        (name, pattern)
        for name, pattern in patterns
        if not any(re.fullmatch(pattern, case.reason) for case in REJECTED)
    ]
    assert missing == []


def test_rejected_nodes_run_on_the_cpu() -> None:
    """Take what can be taken; the runtime's kernels do the rest."""
    writer = ModelWriter()
    nine = (*(1,) * 6, 2, 3, 4)
    source = writer.input(nine)
    positive = writer.op("ABS", [source], [nine])
    shape = writer.constant([2, 3, 4], "int32")
    flat = writer.op("RESHAPE", [positive, shape], [(2, 3, 4)])
    writer.output(writer.op("NEG", [flat], [(2, 3, 4)]))
    delegate = GpuDelegate(precision="fp32")
    interpreter = runtime.interpreter(writer.build(), delegate, builtin_kernels=True)
    assert delegate.report is not None
    assert {node.op: node.reason.partition(" has ")[2] for node in delegate.report.rejected} == {
        "ABS": "9 dimensions, at most 8 are supported.",
        "RESHAPE": "9 dimensions, at most 8 are supported.",
    }
    assert delegate.report.delegated_nodes == [2]
    values = np.linspace(-1, 1, 24, dtype=np.float32).reshape(nine)
    runtime.set_inputs(interpreter, [values])
    interpreter.invoke()
    np.testing.assert_array_equal(
        runtime.outputs(interpreter)[0].values, -abs(values.reshape(2, 3, 4))
    )


@pytest.mark.usefixtures("null_device")
@pytest.mark.parametrize("quantized", ["exact", "float"])
def test_integer_lstms_run_only_with_exact_integers(quantized: QuantizedMode) -> None:
    delegate = GpuDelegate(quantized=quantized, min_nodes_per_partition=1)
    runtime.interpreter(write((IntegerLstm(),)).content, delegate, builtin_kernels=True)
    assert delegate.report is not None
    reason = 'The GPU computes integer LSTMs only with quantized="exact".'
    reasons = [node.reason for node in delegate.report.rejected]
    assert reasons == ([] if quantized == "exact" else [reason])
