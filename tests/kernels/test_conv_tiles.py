"""The cost model of convolution tiles, compared with what was measured on a GPU."""

from __future__ import annotations

from typing import Any

import pytest

from benchmark_modules import BENCHMARKS, load_benchmark
from litegpu.kernels.cuda.conv_mma.tile import MmaProblem

RESULTS = BENCHMARKS / "results" / "h200_conv_tiles.json"


@pytest.fixture
def conv_tiles(monkeypatch: pytest.MonkeyPatch) -> Any:
    return load_benchmark("conv_tiles", monkeypatch)


def test_the_model_chooses_tiles_that_are_nearly_the_best(
    conv_tiles: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert conv_tiles.compare(RESULTS) < 0.1
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(conv_tiles.LAYERS) + 1
    assert sum("not measured" in line for line in lines) <= 2


def test_candidates_are_of_every_kind(conv_tiles: Any) -> None:
    problem = MmaProblem(196, 512, 32, 2, 1, 2, 9, 184)
    tiles = conv_tiles.candidates(problem)
    assert len(set(tiles)) == len(tiles)
    kinds = {(tile.split_k, tile.cluster > 1) for tile in tiles}
    assert kinds == {(False, False), (False, True), (True, True)}


def test_a_layer_is_a_model(conv_tiles: Any) -> None:
    layer = conv_tiles.Layer(6, 8, 16, depthwise=3, depthwise_stride=2)
    assert layer.write()[4:8] == b"TFL3"


def test_a_layer_is_built_with_the_tiles_that_it_is_given(
    conv_tiles: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `measure` does on a GPU; here, nothing runs."""
    problem = MmaProblem(196, 512, 32, 2, 1, 2, 9, 184)
    (tile, *_) = conv_tiles.candidates(problem)
    monkeypatch.setattr(conv_tiles, "GpuDelegate", lambda **_: None)
    given = lambda *_: conv_tiles.conv_mma.best_tiles(problem, conv_tiles.PAPER)  # noqa: E731
    monkeypatch.setattr(conv_tiles, "interpreter", given)
    assert conv_tiles.build(conv_tiles.Layer(6, 8, 16), "fp32", lambda *_: [tile]) == [tile]


@pytest.fixture
def wide_tiles(monkeypatch: pytest.MonkeyPatch) -> Any:
    return load_benchmark("wide_tiles", monkeypatch)


def test_the_model_chooses_wide_tiles_that_are_nearly_the_best(
    wide_tiles: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert wide_tiles.compare(BENCHMARKS / "results" / "h200_wide_tiles.json") < 0.05
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) > 20


def test_a_wide_layer_is_built_with_the_tile_that_it_is_given(
    wide_tiles: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `measure` does on a GPU; here, nothing runs."""
    layer = wide_tiles.LAYERS["14 256>256 3x3"]
    problem = wide_tiles.problem_of(layer)
    tile = next(each for each in wide_tiles.tile_candidates(problem, True) if each.alone)
    given: list[Any] = []

    def build(content: bytes, _delegate: Any) -> Any:
        assert content[4:8] == b"TFL3"
        other = wide_tiles.problem_of(wide_tiles.LAYERS["7 512>512 3x3"])
        given.append(list(wide_tiles.conv_tile.candidates(problem, True)))
        assert len(list(wide_tiles.conv_tile.candidates(other, True))) > 1
        assert not list(wide_tiles.conv_tile.candidates(problem, False))
        raise InterruptedError

    monkeypatch.setattr(wide_tiles, "GpuDelegate", lambda **_: None)
    monkeypatch.setattr(wide_tiles, "interpreter", build)
    with pytest.raises(InterruptedError):
        wide_tiles.microseconds(layer, "fp16", tile)
    assert given == [[tile]]
