"""The benchmark of Python's own time runs, and writes what it says it writes."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest

BENCHMARK = Path(__file__).parents[1] / "benchmarks" / "python_overhead.py"


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    spec = importlib.util.spec_from_file_location("python_overhead", BENCHMARK)
    assert spec is not None and spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "python_overhead", module)
    spec.loader.exec_module(module)
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
    assert set(written["results"]) == {case.name for case in benchmark.CASES}
    table = capsys.readouterr().out
    for name, figures in written["results"].items():
        assert name in table
        assert figures["total"] > 0 and figures["total_idle"] > 0
        assert abs(figures["own"] - (figures["total"] - figures["calls"])) < 0.02
        assert abs(figures["own_idle"] - (figures["total_idle"] - figures["calls_idle"])) < 0.02
    assert written["device"].startswith("opencl:0")
    assert set(written["packages"]) == {"ai-edge-litert", "numpy", "pyopencl"}


def test_idle_calls_do_nothing(benchmark: Any) -> None:
    """Their function is given the same arguments, but for the first, and reports success."""
    from litegpu.backends.opencl_library import bound, library

    call = bound(library().clEnqueueWriteBuffer, 1, 2, 0, 3, 4, 5, 0, None, None)
    assert benchmark._idle(call)() == 0
