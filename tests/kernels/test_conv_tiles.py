"""The cost model of convolution tiles, compared with measurements on a GPU."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, cast

import pytest

from benchmark_modules import BENCHMARKS, load_benchmark
from litegpu.kernels.cuda.conv_mma.tile import MmaProblem
from litegpu.kernels.cuda.conv_tile import TOO_FEW, plan_tiles
from litegpu.kernels.cuda.conv_tile.tile import WideProblem, candidates
from litegpu.kernels.cuda.packing import CHUNKS
from litegpu.kernels.cuda.tiles import TilePlan

RESULTS = BENCHMARKS / "results" / "h100_conv_tiles.json"


@pytest.fixture
def conv_tiles(monkeypatch: pytest.MonkeyPatch) -> Any:
    return load_benchmark("conv_tiles", monkeypatch)


def test_the_model_chooses_tiles_that_are_nearly_the_best(
    conv_tiles: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert conv_tiles.compare(RESULTS) < 0.024
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(json.loads(RESULTS.read_text("utf-8"))["layers"]) + 1 == 45
    assert not any("not measured" in line for line in lines)


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

    def given(*_: Any) -> Any:
        (found,) = conv_tiles.conv_mma.best_tiles(problem, conv_tiles.PAPER)
        return found, found.clocks(conv_tiles.PAPER)

    monkeypatch.setattr(conv_tiles, "interpreter", given)
    built = conv_tiles.build(conv_tiles.Layer(6, 8, 16), "fp32", lambda *_: [tile])
    assert built == (tile, 0)
    assert tile.clocks(conv_tiles.PAPER) > 0


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


def _problem(
    stored: str, result: tuple[int, int, int, int], weights: tuple[int, int, int, int]
) -> WideProblem:
    return WideProblem((*result[:3], weights[3]), stored, result, weights, False)


def test_short_sums_take_the_tiles_that_were_the_best_in_networks(wide_tiles: Any) -> None:
    """Pointwise convolutions of two or four k-tiles, for which there are tiles with long steps."""
    found = json.loads((BENCHMARKS / "results" / "h200_short_sums.json").read_text("utf-8"))
    chosen = []
    for row in found["tiles"]:
        problem = _problem(row["stored"], tuple(row["result"]), tuple(row["weights"]))
        if problem.taps == 1 and problem.k_tiles in (2, 4):
            of_groups = [tile for tile in row["tiles"] if tile["warp_groups"]]
            fastest = min(of_groups, key=lambda tile: tile["us"])
            best = min(
                candidates(problem, True),
                key=lambda tile: tile.clocks(wide_tiles.MEASUREMENTS.paper),
            )
            chosen.append((best.pixels, best.columns, best.alone))
            assert chosen[-1] == (fastest["pixels"], fastest["columns"], fastest["alone"]), row
    assert chosen == [(128, 64, True)] * 13


@pytest.mark.parametrize("adds", [False, True])
@pytest.mark.parametrize("stored, inputs", [("float16", 64), ("float16", 128), ("int8", 256)])
def test_there_is_memory_for_all_blocks_of_short_sums(
    wide_tiles: Any, stored: str, inputs: int, adds: bool
) -> None:
    problem = _problem(stored, (64, 56, 56, 64), (64, 1, 1, inputs))
    (tile,) = (each for each in candidates(problem, True) if each.alone and each.columns == 64)
    paper = wide_tiles.MEASUREMENTS.paper
    assert tile.min_blocks(paper) == 4
    most = paper.model.shared_bytes_per_block
    assert 4 * dataclasses.replace(tile, adds=adds).shared_bytes <= most


@pytest.mark.parametrize(
    "stored, inputs, adds, rows",
    [
        ("float16", 128, False, 0),
        ("float16", 128, True, 128),
        ("float16", 192, True, 0),
        ("int8", 256, False, 128),
        ("int8", 512, False, 128),
    ],
)
def test_which_sums_pass_through_shared_memory(
    stored: str, inputs: int, adds: bool, rows: int
) -> None:
    """Those of bytes, and short ones that something is added to; others leave from registers."""
    problem = _problem(stored, (64, 56, 56, 64), (64, 1, 1, inputs))
    (tile,) = (each for each in candidates(problem, True) if each.alone and each.columns == 64)
    assert dataclasses.replace(tile, adds=adds).rows_at_once == rows


def test_sums_that_took_longer_from_registers_pass_through_shared_memory() -> None:
    found = json.loads((BENCHMARKS / "results" / "h200_register_stores.json").read_text("utf-8"))
    rows = [row for model in found["models"] for row in model["kernels"] if row.get("adds")]
    sort = ("pixels", "columns", "alone")
    longer = 0
    for row in rows:
        problem = _problem("float16", tuple(row["result"]), tuple(row["weights"]))
        (tile,) = (
            each
            for each in candidates(problem, row["warp_groups"])
            if all(getattr(each, name) == row[name] for name in sort)
        )
        passes = dataclasses.replace(tile, adds=True).rows_at_once > 0
        assert passes == (row["registers_stored"] > row["before"]), row
        longer += passes
    assert (longer, len(rows)) == (4, 10)


@pytest.mark.parametrize("stored, more", [("float16", False), ("int8", True)])
def test_only_sums_that_pass_take_memory_beside_a_short_step(stored: str, more: bool) -> None:
    problem = _problem(stored, (64, 56, 56, 64), (64, 1, 1, 32))
    (tile,) = (each for each in candidates(problem, True) if each.columns == 64)
    step = (tile.pixels + tile.columns) * CHUNKS * 16
    assert (tile.shared_bytes > step) == more


@pytest.mark.parametrize("inputs, groups", [(16, False), (24, False), (32, True), (64, True)])
def test_sums_that_fill_no_k_tile_are_multiplied_by_single_warps(
    wide_tiles: Any, inputs: int, groups: bool
) -> None:
    problem = _problem("float16", (64, 56, 56, 144), (144, 1, 1, inputs))
    plan = plan_tiles(problem, wide_tiles.MEASUREMENTS.paper, cast(Any, pytest.fail))
    assert isinstance(plan, TilePlan)
    assert plan.tiles[0].warp_groups == groups  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "stored, rows, enough",
    [
        *(("float16", 99, True), ("float16", 98, False)),
        *(("float32", 132, True), ("float32", 131, False), ("int8", 131, False)),
    ],
)
def test_how_many_tiles_keep_the_device_busy(
    wide_tiles: Any, stored: str, rows: int, enough: bool
) -> None:
    """Three quarters of 132 multiprocessors for halves, all of them for floats and bytes."""
    problem = _problem(stored, (1, rows, 128, 32), (32, 1, 1, 256))
    plan = plan_tiles(problem, wide_tiles.MEASUREMENTS.paper, cast(Any, pytest.fail))
    assert (plan is not TOO_FEW) == enough
