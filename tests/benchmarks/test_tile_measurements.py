"""Times of tiles as benchmarks write them down, and the cost model beside them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
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


class Target:
    """Gives results that differ from time to time."""

    given = 0

    def get_output_details(self) -> list[dict[str, int]]:
        return [{"index": 3}]

    def get_tensor(self, index: int) -> npt.NDArray[np.float32]:
        assert index == 3
        Target.given += 1
        return np.array([0 if Target.given % 5 else 1], np.float32)


def test_blocks_that_stay_are_timed_beside_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = load_benchmark("separable_stream", monkeypatch)
    monkeypatch.setattr(module, "interpreter_of", lambda *_: Target())
    monkeypatch.setattr(module, "chain_microseconds", lambda *_: 7.0)
    out = tmp_path / "tiles.json"
    module.measure(out, 1e9)
    layers = json.loads(out.read_text())["layers"]
    rows = layers["56 128>128 3x3"]
    assert len(layers) == 16
    assert [row["us"] for row in rows] == [7.0] * len(rows)
    assert not all(row["same"] for row in rows)
    assert sum("warps" in row["tile"] for row in rows) == 2
    staying = [row["tile"] for row in rows if "producers" in row["tile"]]
    assert {tile["producers"] for tile in staying} == {4, 8, 12}
    assert "DIFFERS" in capsys.readouterr().out
    module.measure(tmp_path / "none.json", -1.0)
    assert not (tmp_path / "none.json").exists()
