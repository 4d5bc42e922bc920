"""The script that compares joules: its rows, its table, and what cannot be measured."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest

from benchmark_modules import load_benchmark
from litegpu.tools.benchmark_model import energy
from litegpu.tools.benchmark_model.energy import Meter, MeterError

SMALL = "zoo:mobilenet_v1_0.25_128?size=32"


class Steady(Meter):
    """Takes so many watts, whatever happens."""

    def __init__(self, kind: str, watts: float) -> None:
        self.kind, self.name, self.watts = kind, f"a steady {kind}", watts

    def __enter__(self) -> Steady:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def read(self) -> float:
        return time.perf_counter() * self.watts


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(energy, "LEAD_IN_SECS", 0.01)
    found = load_benchmark("energy", monkeypatch)
    monkeypatch.setattr(found, "use_once", lambda chosen: None)
    monkeypatch.setattr(found.machine, "facts", lambda: {})
    return found


def measured(script: Any, folder: Path, *arguments: str) -> dict[str, Any]:
    output = folder / "new" / "energy.json"
    command = ["--models", SMALL, "--batches", "0", "--seconds", "0.05", "--rest", "0.05"]
    script.main([*command, "--output", str(output), *arguments])
    found: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))
    assert sorted(path.name for path in output.parent.iterdir()) == ["energy.json", "energy.txt"]
    return found


def test_rows_and_table(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    meters = [Steady("GPU", 80.0), Steady("CPU", 20.0)]
    monkeypatch.setattr(script, "find_meters", lambda: (meters, ["no meter of the fan"]))
    ways = ("XNNPACK 8 threads", "litegpu opencl fp32", "litegpu cuda fp32")
    found = measured(script, tmp_path, "--ways", *ways)
    assert [row["way"] for row in found["rows"]] == list(ways)
    assert found["idle_watts"] == pytest.approx({"GPU": 80, "CPU": 20}, rel=0.2)
    cpu, opencl, _ = found["rows"]
    assert cpu["meters"][0]["joules"] == pytest.approx(
        80 * cpu["busy_seconds"] / cpu["runs"], rel=0.2
    )
    assert opencl["norm_error"] < 1e-4
    text = capsys.readouterr().out
    assert (tmp_path / "new" / "energy.txt").read_text() == text
    assert "not measured: no meter of the fan\n" in text
    assert re.search(r"At rest: GPU [78]\d\.\d W, CPU [12]\d\.\d W\n", text)
    numbers = r" +[\d.]+ +- +- +- +\d\d +[\d.]+ +-?[\d.e-]+\n"
    assert re.search(rf"XNNPACK 8 threads{numbers}", text), "the GPU only waits for it"
    assert re.search(r"litegpu opencl fp32 +[\d.]+ +[78]\d +[\d.]+ ", text)


def test_what_cannot_be_measured(
    script: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def none() -> None:
        raise MeterError("The CPU tells nothing.")

    def broken(_: object) -> None:
        raise ValueError("two\nlines")

    monkeypatch.setattr(script, "cpu_meter", none)
    monkeypatch.setattr(script, "list_devices", lambda: [])
    monkeypatch.setattr(script, "ways", lambda backends: {"a way": broken, "late": broken})
    found = measured(script, tmp_path, "--ways", "a way")
    assert [row["error"] for row in found["rows"]] == ["ValueError: two lines"]
    assert found["missing"] == [
        "The energy of the GPU is not measured: there is none.",
        "The CPU tells nothing.",
    ]
    assert f"{SMALL}, a way: ValueError: two lines\n" in capsys.readouterr().out
    found = measured(script, tmp_path, "--ways", "late", "--time-limit", "0")
    assert [row["way"] for row in found["left_out"]] == ["late"]
    assert f"{SMALL}, late: there was no time left\n" in capsys.readouterr().out
