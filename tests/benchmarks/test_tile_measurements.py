"""Times of tiles as benchmarks write them down, and the cost model beside them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from benchmark_modules import load_benchmark


def test_what_is_measured_can_be_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = load_benchmark("separable_tiles", monkeypatch)
    calls = iter(range(1, 1000))
    timed = dataclasses.replace(
        module.MEASUREMENTS, microseconds=lambda *_: float(next(calls)), text_of=lambda _: "tile"
    )
    out = tmp_path / "tiles.json"
    timed.measure(out, "fp16", "32 3x3")
    assert capsys.readouterr().out.startswith("56/2 144>32 3x3")
    loss = timed.compare(out)
    printed = capsys.readouterr().out
    assert printed.count("chosen") == 2
    assert f"in the mean {loss:.1%} longer than the best" in printed


def test_each_layer_has_tiles_to_choose_from(monkeypatch: pytest.MonkeyPatch) -> None:
    module = load_benchmark("separable_tiles", monkeypatch)
    shapes = {name: module._tiles(layer) for name, layer in module.LAYERS.items()}
    assert all(len(tiles) > 1 for tiles in shapes.values())
