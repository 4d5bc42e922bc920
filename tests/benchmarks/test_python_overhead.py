"""The benchmark of Python's own time runs, and writes what it says it writes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmark_modules import load_benchmark


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    module = load_benchmark("python_overhead", monkeypatch)
    monkeypatch.setattr(module, "ROUNDS", 1)
    monkeypatch.setattr(module, "INVOKES", 2)
    return module


def test_it_measures_every_case(
    benchmark: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    output = tmp_path / "results" / "figures.json"
    monkeypatch.setattr(sys, "argv", ["python_overhead.py", "--output", str(output)])
    benchmark.main()
    written = json.loads(output.read_text(encoding="utf-8"))
    table = capsys.readouterr().out
    left_out = {line.split(": left out")[0] for line in table.splitlines() if "left out" in line}
    names = {case.name for case in benchmark.CASES if not case.command_buffer}
    assert set(written["results"]) >= names
    assert set(written["results"]) | left_out == {case.name for case in benchmark.CASES}
    for name, figures in written["results"].items():
        assert name in table
        assert figures["total"] > 0 and figures["total_idle"] > 0
        assert abs(figures["own"] - (figures["total"] - figures["calls"])) < 0.02
        assert abs(figures["own_idle"] - (figures["total_idle"] - figures["calls_idle"])) < 0.02
    assert written["device"].startswith("opencl:0")
    assert set(written["packages"]) == {"ai-edge-litert", "numpy", "pyopencl"}


def test_it_leaves_out_what_the_device_cannot_do(
    benchmark: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(benchmark.CommandBuffer, "create", lambda *_: None)
    assert benchmark.measure(benchmark.CASES[0]) is None
    assert "1 input, 1 output: left out, for this device has no" in capsys.readouterr().out


def test_idle_calls_do_nothing(benchmark: Any) -> None:
    """Their function is given the same arguments, but for the first, and reports success."""
    from litegpu.backends.opencl.library import library
    from litegpu.host.native_calls import bound

    call = bound(library().clEnqueueWriteBuffer, 1, 2, 0, 3, 4, 5, 0, None, None)
    assert benchmark._idle(call)() == 0
