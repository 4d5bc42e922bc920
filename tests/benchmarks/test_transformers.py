"""The benchmark of transformers runs, and its figures fall with what is fused."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from benchmark_modules import load_benchmark

MODEL = "zoo:vit_tiny?size=32&layers=1"


def test_passes_save_launches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    benchmark, output = load_benchmark("transformers", monkeypatch), tmp_path / "figures.json"
    command = f"transformers.py --rounds=1 --invokes=1 --model={MODEL} --output={output}"
    monkeypatch.setattr(sys, "argv", command.split())
    benchmark.main()
    ways = json.loads(output.read_text(encoding="utf-8"))["models"][MODEL]
    whole, without, neither = (ways[name] for name in benchmark.WAYS)
    assert "without attention" in capsys.readouterr().out
    # One softmax, one product, three moves of heads ahead and one back.
    assert without["launches"] - whole["launches"] == 6
    assert neither["launches"] - without["launches"] > 15
    assert 0 < whole["moved_mb"] <= without["moved_mb"] <= neither["moved_mb"]
    assert all(way["gflop"] > 0 and 0 < way["ms"] < float("inf") for way in ways.values())
