"""Times of blocks of one picture as the benchmark writes them down, and models of layers."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

from benchmark_modules import load_benchmark


def test_pairs_and_tiles_are_measured_and_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = load_benchmark("split_tiles", monkeypatch)
    calls = iter(range(1, 1000))
    timed = dataclasses.replace(module.MEASUREMENTS, microseconds=lambda *_: float(next(calls)))
    monkeypatch.setattr(module, "MEASUREMENTS", timed)
    monkeypatch.setattr(module, "pair_microseconds", lambda *_: 107.0)
    out = tmp_path / "tiles.json"
    module.measure(out, "fp16", "112/2")
    assert json.loads(out.read_text())["pairs"] == {"112/2 16>96>24 3x3": 107.0}
    assert "two kernels 107.0 us" in capsys.readouterr().out
    assert timed.compare(out) == 0.0


def test_each_layer_has_tiles_and_what_is_chosen_is_nearly_the_best(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = load_benchmark("split_tiles", monkeypatch)
    assert all(len(module._tiles(block)) > 1 for block in module.LAYERS.values())
    results = Path(module.__file__).parent / "results" / "h100_split_tiles.json"
    assert module.MEASUREMENTS.compare(results) < 0.07
