"""Code that the benchmarks share: times, errors against a reference, clocks."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmark_modules import load_benchmark

SMALL = "zoo:mobilenet_v1_0.25_128?size=32"


@pytest.fixture
def rivals(monkeypatch: pytest.MonkeyPatch) -> Any:
    module = load_benchmark("rivals", monkeypatch)
    for name in module.NO_DRIVER_CACHES:
        monkeypatch.setenv(name, "")  # main() sets them, for this process
    return module


@pytest.fixture
def run(rivals: Any, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Run the script with some arguments, few repeats and no first use; return its file."""
    output = tmp_path / "results" / "rivals.json"
    rivals._FIRST_USE_WAYS = ()

    def call(*arguments: str) -> dict[str, Any]:
        rivals.main(["--output", str(output), "--repeats", "3", *arguments])
        found: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))
        return found

    return call


def runner(**parts: Any) -> Any:
    """Return a fake runner for the script."""
    return sys.modules["ways"].Runner(**parts)


def test_it_measures_litegpu_and_the_cpu(
    run: Callable[..., dict[str, Any]], capsys: pytest.CaptureFixture[str]
) -> None:
    ways = ("--ways", "litegpu opencl *", "XNNPACK*", "--backends", "opencl")
    found = run("--models", SMALL, "--batch-models", SMALL, *ways)
    assert os.environ["CUDA_CACHE_DISABLE"] == "1" and os.environ["POCL_KERNEL_CACHE"] == "0"
    assert list(found["models"]) == [SMALL, f"{SMALL}&batch=64"]
    for batch, model in zip((1, 64), found["models"].values(), strict=True):
        assert (model["batch"], model["float"], model["ranks"]) == (batch, True, False)
        assert model["inputs"] == [[batch, 32, 32, 3]]
        rows = model["rows"]
        assert set(rows) == {
            *("litegpu opencl fp16", "litegpu opencl fp32"),
            *("XNNPACK 8 threads", "XNNPACK 1 thread"),
        }
        for way, row in rows.items():
            assert row["whole_ms"] > 0 and row["create_ms"] > 0 and row["runs"] == 3, way
            assert row["finite"] and 0 <= row["norm_error"] < 1e-2, way
        assert rows["litegpu opencl fp16"]["kernel_sum_ms"] > 0
        assert rows["litegpu opencl fp32"]["norm_error"] < 1e-5
        assert rows["litegpu opencl fp32"]["nodes_on_cpu"] == 0
        assert rows["litegpu opencl fp32"]["kernels"] > 10
    assert found["machine"]["packages"]["numpy"] == np.__version__
    assert found["settings"]["repeats"] == "3"
    assert any(device["backend"] == "opencl" for device in found["devices"])
    printed = capsys.readouterr()
    assert f"| {SMALL} " in printed.out
    assert "### Targets" in printed.out
    assert f"{SMALL}: XNNPACK 1 thread\n" in printed.err, "progress, line by line in a pipe"


def test_a_row_has_device_times_facts_and_errors(rivals: Any) -> None:
    expected = [np.array([1.0, -4.0], np.float32)]
    model = rivals.Model("m", b"", [], expected)
    closed = []
    parts = {
        "call": lambda: [np.array([1.0, -3.0], np.float32)],
        "device": {"device_ms": lambda repeats: repeats * 1e-3},
        "facts": {"kernels": 7},
        "close": lambda: closed.append(True),
    }
    row = rivals.measure(lambda _model: runner(**parts), model, 5)
    assert row["device_ms"] == pytest.approx(5.0)
    assert row["max_error"] == 0.25
    assert row["norm_error"] == pytest.approx(1 / math.sqrt(17))
    assert (row["kernels"], row["runs"], closed) == (7, 5, [True])
    assert "clocks" in row


def test_results_of_other_shapes_are_an_error(rivals: Any) -> None:
    model = rivals.Model("m", b"", [], [np.zeros((1, 2), np.float32)])
    row = rivals.measure(lambda _model: runner(call=lambda: [np.zeros(3)]), model, 1)
    text = "ValueError: The outputs have the shapes [[3]], the reference's [[1, 2]]."
    assert row == {"error": text}


@pytest.mark.parametrize(
    ("got", "expected", "worst"), [(0.0, 0.0, 0.0), (1.0, 0.0, math.inf), (math.nan, 1.0, math.nan)]
)
def test_errors_against_zero_and_of_nan(
    rivals: Any, got: float, expected: float, worst: float
) -> None:
    found = rivals.errors([np.array([got])], [np.array([expected])])
    assert found["max_error"] == pytest.approx(worst, nan_ok=True)
    assert found["norm_error"] == pytest.approx(worst, nan_ok=True)
    assert found["finite"] is not math.isnan(got)


def test_slow_calls_are_repeated_less_often(rivals: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    measuring = sys.modules["measuring"]
    monkeypatch.setattr(measuring.time, "perf_counter", lambda: now[0])

    def lasting(seconds: float) -> Callable[[], None]:
        def call() -> None:
            now[0] += seconds

        return call

    for seconds, runs in ((2**-8, 200), (2**-5, 64), (0.5, 4), (7.0, 3)):
        median, count = rivals.time_calls(lasting(seconds), 200)
        assert (median, count) == (pytest.approx(seconds * 1e3), runs)
    assert rivals.time_calls(lasting(7.0), 2)[1] == 2


def test_clocks_are_read_while_it_runs(rivals: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    machine = sys.modules["machine"]
    line = "1980 MHz, 3201 MHz, 40, 120.5 W"
    command = [sys.executable, "-c", f"print({line!r})"]
    monkeypatch.setattr(machine, "_smi_command", lambda _fields: command)
    calls: list[None] = []
    found = machine.clocks_during(lambda: calls.append(None))
    assert found["clocks.sm"] == "1980 MHz" and found["power.draw"] == "120.5 W"
    assert calls, "the GPU is busy meanwhile"
    assert machine._ask_gpu(("name",)) == {}, "another number of values than asked for"
    monkeypatch.setattr(machine, "_smi_command", lambda _fields: None)
    assert machine.clocks_during(pytest.fail) == {}
