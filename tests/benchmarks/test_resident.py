"""The benchmark of buffers runs, says what each way takes, and goes on after a rival that fails."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmark_modules import load_benchmark

MODEL = "zoo:mobilenet_v1_0.25_128?size=32"


def test_each_way_has_a_figure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    benchmark, output = load_benchmark("resident", monkeypatch), tmp_path / "figures.json"
    arguments = ["--repeats=1", f"--model={MODEL}", f"--output={output}", "--backend=opencl"]
    rival = "--other=torch fp16 compile"
    monkeypatch.setattr(sys, "argv", ["resident.py", *arguments, rival])
    benchmark.main()
    figures = json.loads(output.read_text(encoding="utf-8"))["models"][MODEL]
    timed = ("kernels", "interpreter", "device", "pinned", "pictures", "write, run, read")
    assert all(figures[way] > 0 for way in timed)
    assert figures["device error"] < 1e-2 and figures["pinned error"] < 1e-2
    assert isinstance(figures["torch fp16 compile"], str), "no NVIDIA GPU, or no PyTorch"
    assert "write, run, read" in capsys.readouterr().out
