"""The script that inserts faults into the source: its faults, tests and output."""

from __future__ import annotations

import ast
import importlib
import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from places import ROOT, SOURCE

PACKAGE = SOURCE / "litegpu"
MODULE = '''\
from typing import Literal

@decorated(1)
def first(values: list[Literal[3]], low: int = 4) -> Literal[5]:
    """No 6 here."""
    if not values or low < len(values) - 2:
        raise ValueError(f"{low + 7} of 8")
    assert low > 9
    return min(zip(values, strict=True)) if low in values else "a" + "b"
'''
TEMPLATE = """\
{# a < b and 2 #}
#pragma unroll 3
    if (s >= {{ dst.channel_blocks }} || p >= 4) return;
    // 5 < 6
    const int x = min(p0 + m, {{ rows }});
{% set MEET = "BARRIER();" %}
    v.x = MAX4(v, w).w;  // 7 > 6
"""


@pytest.fixture
def mutants(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the script as a module."""
    monkeypatch.syspath_prepend(ROOT / "scripts")
    module = importlib.import_module("mutants")
    module._always_fails.cache_clear()
    return module


def faults(mutants: Any, path: Path, text: str) -> dict[str, list[str]]:
    """Return the lines that faults make of a text, by kind."""
    path.write_text(text, encoding="utf-8")
    found: dict[str, list[str]] = {}
    for each in mutants.mutations_of(path):
        changed = each.apply(text).splitlines()
        (line,) = [new for new, old in zip(changed, text.splitlines(), strict=True) if new != old]
        found.setdefault(each.kind, []).append(line.strip())
        if path.suffix == ".py":
            ast.parse("\n".join(changed))
    return found


def test_faults_of_a_module(mutants: Any, tmp_path: Path) -> None:
    found = faults(mutants, tmp_path / "module.py", MODULE)
    assert found == {
        "number + 1": [
            "def first(values: list[Literal[3]], low: int = 5) -> Literal[5]:",
            "if not values or low < len(values) - 3:",
        ],
        "not dropped": ["if values or low < len(values) - 2:"],
        "or to and": ["if not values and low < len(values) - 2:"],
        "< to <=": ["if not values or low <= len(values) - 2:"],
        "- to +": ["if not values or low < len(values) + 2:"],
        "choice swapped": ['return "a" + "b" if low in values else min(zip(values, strict=True))'],
        "min to max": ['return max(zip(values, strict=True)) if low in values else "a" + "b"'],
        "in to not in": [
            'return min(zip(values, strict=True)) if low not in values else "a" + "b"'
        ],
    }


def test_faults_of_a_template(mutants: Any, tmp_path: Path) -> None:
    found = faults(mutants, tmp_path / "kernel.jinja", TEMPLATE)
    assert found == {
        "barrier dropped": ['{% set MEET = "" %}'],
        ">= to >": [
            "if (s > {{ dst.channel_blocks }} || p >= 4) return;",
            "if (s >= {{ dst.channel_blocks }} || p > 4) return;",
        ],
        "|| to &&": ["if (s >= {{ dst.channel_blocks }} && p >= 4) return;"],
        "number + 1": ["if (s >= {{ dst.channel_blocks }} || p >= 5) return;"],
        "condition dropped": ["if (false && s >= {{ dst.channel_blocks }} || p >= 4) return;"],
        "+ to -": ["const int x = min(p0 - m, {{ rows }});"],
        "min to max": ["const int x = max(p0 + m, {{ rows }});"],
        "min dropped": ["const int x = (p0 + m);"],
        "larger to smaller": ["v.x = MIN4(v, w).w;  // 7 > 6"],
        "lane swapped": ["v.y = MAX4(v, w).w;  // 7 > 6"],
    }


@pytest.mark.parametrize(
    ("file", "tests"),
    [
        (
            "passes/sink_permutations.py",
            ["test_sink_permutations.py", "tests/passes", "test_random_graphs.py"],
        ),
        (
            "ops/quantized_conv.py",
            [
                "-k opencl and (Weighted or QuantizedConv",
                *("test_work.py", "ops --ignore", "test_index_map_into_window.py"),
                *("-k not opencl and (", "tests/engine"),
            ],
        ),
        (
            "ops/exact/logarithms.py",
            [
                *("-k opencl and (StoredSoftmax)", "test_work.py", "ops --ignore"),
                *("test_logarithm.py", "not opencl", "tests/engine"),
            ],
        ),
        ("engine/choices.py", ["tests/engine", "test_tuning.py"]),
        ("engine/profile.py", ["test_profile.py", "tests/engine"]),
        (
            "kernels/portable/softmax.jinja",
            [
                *("opencl and (Softmax", "test_work.py", "test_cuda_checks.py -k portable"),
                "not opencl and (Softmax",
                "emulated.py -k Softmax",
            ],
        ),
        (
            "kernels/cuda/matmul/matmul.jinja",
            [
                "-k cuda/matmul",
                "emulated.py -k Matmul",
                "test_cuda_checks.py",
                "test_half_range.py",
            ],
        ),
        ("kernels/cuda/peak_mma.jinja", ["engine/test_peaks.py"]),
        (
            "kernels/cuda/conv_patch/__init__.py",
            [
                *("test_selector.py", "-k cuda/conv_patch", "test_conv_patch.py"),
                *("emulated.py -k Conv", "test_half_range.py", "test_cuda_checks.py", "magnitudes"),
            ],
        ),
        (
            "kernels/cuda/include/float4.cuh",
            ["test_examples.py", "emulated.py", "test_cuda_checks.py", "test_half_range.py"],
        ),
    ],
)
def test_tests_that_concern_a_file(mutants: Any, file: str, tests: list[str]) -> None:
    assert (PACKAGE / file).exists()
    stages = [" ".join(stage) for stage in mutants.stages(PACKAGE / file)]
    assert len(stages) == len(tests)
    assert all(word in stage for word, stage in zip(tests, stages, strict=True))


def test_names_of_cases_are_those_of_modules_and_templates(mutants: Any) -> None:
    known = {mutants.name_of(path) for path in mutants.files_of([PACKAGE])}
    assert set(mutants.CASES) <= known


def test_kernels_are_chosen_in_files_that_have_faults_too(mutants: Any) -> None:
    """Implementations stand in `__init__.py` of their folders, their functions in headers."""
    files = mutants.files_of([PACKAGE / "kernels" / "cuda"])
    assert {"__init__.py", "tile.py", "conv_patch.jinja", "float4.cuh"} <= {f.name for f in files}


FAILING = "tests/passes/test_it.py::test_that[a/b]"


def answers(*statuses: int) -> Callable[..., Any]:
    """Return what stands in for the runs of pytest, which end like this, one after the other."""
    left = list(statuses)

    def run(command: list[str], env: dict[str, str], **_: Any) -> Any:
        status = left.pop(0)
        if status < 0:
            raise subprocess.TimeoutExpired(command, 1)
        changed = Path(env["PYTHONPATH"], "litegpu", "passes", "sink_permutations.py").read_text()
        whole = changed == (PACKAGE / "passes" / "sink_permutations.py").read_text()
        assert whole == (FAILING in command)
        said = f"FAILED {FAILING} - AssertionError: no\n"
        return subprocess.CompletedProcess(command, status, stdout=said if status == 1 else "")

    return run


@pytest.mark.parametrize(
    ("statuses", "result", "said"),
    [
        ((1, 0), 0, f": {FAILING} ("),
        ((0, 2), 0, "exit status 2"),
        ((-1,), 0, "took too long: passes/sink_permutations.py:"),
        ((0, 5, 0), 1, "SURVIVED"),
        ((1, 1, 0, 0, 0), 1, f"fails without a fault, too: {FAILING}\n"),
    ],
)
def test_what_becomes_of_a_mutant(
    statuses: tuple[int, ...],
    result: int,
    said: str,
    mutants: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(subprocess, "run", answers(*statuses))
    output = tmp_path / "mutants.json"
    arguments = ["--sample=1", "--limit=5", f"--json={output}"]
    assert mutants.main([str(PACKAGE / "passes" / "sink_permutations.py"), *arguments]) == result
    text = capsys.readouterr().out
    assert said in text
    assert ("survived: passes/sink_permutations.py:" in text) == bool(result)
    assert text.count("\npasses           1") == 1
    (outcome,) = json.loads(output.read_text(encoding="utf-8"))
    assert outcome["mutant"]["file"] == "passes/sink_permutations.py"
    assert bool(outcome["caught_by"]) != bool(result)
