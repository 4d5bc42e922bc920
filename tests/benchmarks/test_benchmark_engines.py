"""The script that measures the local engine: its rows and its table."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import paper_device
from benchmark_modules import load_benchmark


def test_rows_and_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pyopencl", reason="pyopencl is not installed")
    script = load_benchmark("engines", monkeypatch)
    monkeypatch.setattr(script.machine, "facts", lambda: {})
    monkeypatch.setattr(script, "COMPARED", 8)
    alone = {"gpus": 0, "workers": 1, "device": None}
    monkeypatch.setattr(script, "layouts", lambda *_: [alone, alone])
    output = tmp_path / "new" / "engines.json"
    arguments = ["--models", "zoo:mobilenet_v1_0.25_128?size=32", "--batch=4", "--pictures=3"]
    arguments += ["--backend=opencl", "--lead-in=0.02", "--seconds=0.1", "--decode-threads=1"]
    script.main([*arguments, f"--output={output}"])
    rows = json.loads(output.read_text(encoding="utf-8"))["rows"]
    assert [(row["gpus"], row["workers"], row["same"]) for row in rows] == [
        (0, 1, True),
        (0, 1, True),
    ]
    assert all(row[stage] > 1 for row in rows for stage in ("decode", "infer", "whole"))
    text = capsys.readouterr().out
    assert text == output.with_suffix(".txt").read_text(encoding="utf-8")
    masked = re.sub(r" +[\d.]+%? ", " N ", text.splitlines()[-1].replace("  ", "   "))
    assert masked.startswith("mobilenet_v1_0.25_128?size=32 N ")
    assert masked.endswith("yes")


def test_every_layout_of_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    script = load_benchmark("engines", monkeypatch)
    found = [script.layouts([paper_device.DEVICE] * count, None) for count in range(3)]
    assert [[(each["gpus"], each["workers"]) for each in rows] for rows in found] == [
        [(0, 1), (0, 2)],
        [(1, 1), (1, 2)],
        [(1, 1), (2, 2), (2, 4)],
    ]
    assert found[2][0]["device"] == 0 and found[2][1]["device"] is None
