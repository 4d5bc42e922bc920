"""The script that estimates cold starts without a GPU."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmark_modules import load_benchmark


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    return load_benchmark("creation_paper", monkeypatch)


def test_the_first_free_core_begins_what_should_take_longest(
    script: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    alike = [1, 1, 1]
    monkeypatch.setattr(script, "PROCESS_SECONDS", 0.5)
    assert script.finished([0, 0, 1], alike, [2, 2, 2], 2) == 4, "the first core has no process"
    assert script.finished([0, 0, 1], alike, [2, 2, 2], 3) == 3.5
    monkeypatch.setattr(script, "PROCESS_SECONDS", 0.0)
    assert script.finished([], [], [], 2) == 0
    assert script.finished([0, 0, 1], alike, [2, 2, 2], 1) == 6
    assert script.finished([0, 0, 1], alike, [2, 2, 2], 2) == 4
    assert script.finished([0, 0, 1], alike, [2, 2, 2], 3) == 3
    assert script.finished([0, 0, 0], [1, 1, 9], [2, 2, 4], 2) == 4, "the long one first"
    assert script.finished([0, 0, 1], [1, 1, 9], [2, 2, 4], 2) == 6, "it is not there yet"
    assert script.finished([0, 5], [1, 1], [1, 1], 1) == 6, "a core waits for it"
    estimate = script.Estimate("m", 9.0, (0.0,), (1,), (2.0,))
    assert estimate.done(1) == 9, "the host may end last"


def test_a_model_is_estimated(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("cuda.bindings", reason="cuda-bindings is not installed")
    path, model = tmp_path / "found.json", "zoo:mobilenet_v1_0.25_128?size=32"
    flags = ["--models", model, "--output", str(path)]
    monkeypatch.setattr(sys, "argv", ["creation_paper.py", *flags])
    script.main()
    assert f"| {model} | " in capsys.readouterr().out
    (row,) = json.loads(path.read_text())["rows"]
    assert row["host"] > 0
    assert len(row["arrivals"]) == len(row["compiling"]) == len(row["efforts"]) > 0
    assert 0 < min(row["arrivals"]) <= max(row["arrivals"]) <= row["host"]
    assert min(row["compiling"]) > 0
