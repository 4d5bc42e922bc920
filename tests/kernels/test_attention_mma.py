"""cuda/attention_mma: results for all kinds of tiles, and the selected tiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import turns
from cases.attention import Attention
from cases.base import Range, Scale
from cuda_emulator import INFO, EmulatedBackend, EmulatedDevice, needs_emulator
from litegpu import backends
from litegpu.engine.target import DeviceTarget
from litegpu.kernels.base import Rejected
from litegpu.kernels.cuda import attention_mma
from litegpu.kernels.cuda.attention_mma.tile import AttentionProblem, AttentionTile, candidates
from litegpu.kernels.cuda.tiles import choose
from litegpu.kernels.portable.attention import AttentionSplit
from litegpu.numeric_policy import FP16
from magnitudes import problems
from model_runner import cpu_answers, device_answers
from op_runner import MODES, Mode, problem_of, run, write

Shape = tuple[int, int, int, int]
"""Queries, blocks of a turn, warps that share out keys, and warps with queries of their own."""

MASKED = Attention(
    batch=2, heads=3, queries=19, keys=37, depth=20, across=True, mask=(2, 1, 19, 37)
)
WIDE = Attention(heads=1, queries=20, keys=50, depth=128, columns=100)
NARROW = Attention(heads=1, queries=8, keys=70, depth=1, columns=9)
ODD = Attention(queries=17, keys=130, depth=64, across=True, mask=(1, 1, 1, 130), hidden=60)
SHARP = Attention(queries=9, keys=70, scale=4.0, values=Range(-64.0, 64.0, grid=1.0))
EVEN = Attention(queries=32, keys=64, depth=16, columns=32)
CASES: Sequence[tuple[Attention, Shape]] = [
    # A turn is all there is: by one warp, by several, with keys left over
    *((MASKED, (queries, *rest)) for queries in (16, 8) for rest in ((1, 3, 1), (2, 2, 1))),
    (EVEN, (16, 2, 2, 1)),
    (EVEN, (8, 1, 4, 1)),
    (WIDE, (8, 1, 4, 1)),
    (ODD, (16, 1, 9, 1)),
    (NARROW, (8, 2, 3, 1)),
    (SHARP, (8, 1, 5, 1)),
    (replace(NARROW, keys=16), (8, 1, 1, 4)),
    (replace(NARROW, keys=9, queries=33), (16, 1, 1, 1)),
    # Several turns, and greater scores that come later
    *((SHARP, (queries, *rest)) for queries in (16, 8) for rest in ((1, 1, 4), (2, 2, 1))),
    *((SHARP, (queries, 1, 2, 1)) for queries in (16, 8)),
    *((WIDE, (queries, 1, *rest)) for queries in (16, 8) for rest in ((1, 4), (2, 1))),
    (EVEN, (8, 2, 1, 1)),
    (EVEN, (16, 1, 2, 1)),
    (ODD, (8, 1, 4, 1)),
    (ODD, (16, 2, 3, 1)),
    (MASKED, (8, 1, 1, 4)),
]


def forced(monkeypatch: pytest.MonkeyPatch, shape: Shape) -> None:
    """Let all attention have this tile, also that of few queries."""

    def only(problem: AttentionProblem, _target: Any) -> list[AttentionTile]:
        return [AttentionTile(problem, *shape)]

    monkeypatch.setattr(attention_mma, "candidates", only)
    monkeypatch.setattr(AttentionSplit, "plan", lambda *_: Rejected("another kernel is tested"))


BOTH = (MODES[0], MODES[3])
"""Floats, which are split in two parts, and halves: they take turns, for time."""
RUNS = [
    pytest.param(case, shape, mode, id=f"{case.name}-{shape}-{mode.name}")
    for number, (case, shape) in enumerate(CASES)
    for mode in (BOTH if turns.ALL else BOTH[number % 2 :][:1])
]


@needs_emulator
@pytest.mark.parametrize(("case", "shape", "mode"), RUNS)
def test_numbers(
    case: Attention, shape: Shape, mode: Mode, monkeypatch: pytest.MonkeyPatch
) -> None:
    forced(monkeypatch, shape)
    device = EmulatedDevice(checked=True)
    monkeypatch.setattr(backends, "BACKENDS", {"cuda": EmulatedBackend(device)})
    outcome = run((case,), INFO, mode)[case.name]
    if isinstance(outcome, Exception):
        raise outcome
    assert any(name.startswith("cuda_attention_mma") for name in outcome.kernels)
    assert not problem_of(case, outcome, mode)


ONCE, TURNS = (8, 1, 3, 1), (16, 1, 2, 1)
EACH = [ONCE, (16, 2, 2, 1), TURNS, (8, 1, 1, 4)]


@needs_emulator
@pytest.mark.parametrize("shape", [ONCE, TURNS])
@pytest.mark.parametrize("scale", [Scale(values=1e-8), Scale(values=1e-3), Scale(values=1e6)])
def test_magnitudes(shape: Shape, scale: Scale, monkeypatch: pytest.MonkeyPatch) -> None:
    forced(monkeypatch, shape)
    monkeypatch.setattr(backends, "BACKENDS", {"cuda": EmulatedBackend()})
    assert not problems((Attention(queries=9, keys=37, depth=20),), INFO, MODES[2], scale)


@needs_emulator
@pytest.mark.parametrize("shape", EACH)
def test_what_is_not_finite(shape: Shape, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys hidden by -INFINITY, a warp's or a query's all; NaN in queries, keys and values."""
    forced(monkeypatch, shape)
    monkeypatch.setattr(backends, "BACKENDS", {"cuda": EmulatedBackend()})
    case = Attention(heads=4, queries=18, keys=40, depth=12, mask=(1, 4, 18, 40))
    random = np.random.default_rng(3)
    tokens = (18, 40, 40)
    given = [random.uniform(-1, 1, (1, 4, count, 12)).astype(np.float32) for count in tokens]
    mask = np.zeros((1, 4, 18, 40), np.float32)
    mask[0, 0, :, :32] = -np.inf
    mask[0, 0, 3, 35:] = -np.inf
    mask[0, 0, 9] = -np.inf
    mask[0, 1, 5, ::2] = -np.inf
    given[0][0, 1, 7, 2] = np.nan
    given[1][0, 2, 35, 5] = np.nan
    given[2][0, 3, 2, 1] = np.nan
    content = write((case,)).content
    (expected,) = cpu_answers(content, [[*given, mask]])
    (got,) = device_answers(content, [[*given, mask]], INFO, precision="fp32").outputs
    # The CPU cuts sums at the largest float (decision 14): there all keys are as likely.
    assert np.isnan(got[0][0, 0, 9]).all() and np.isfinite(expected[0][0, 0, 9]).all()
    got[0][0, 0, 9] = expected[0][0, 0, 9]
    assert np.isnan(expected[0][0, 3, :, 1]).all()
    np.testing.assert_array_equal(np.isnan(got[0]), np.isnan(expected[0]))
    np.testing.assert_allclose(got[0], expected[0], rtol=2e-5, atol=1e-6)


TARGET = DeviceTarget(replace(INFO, compute_units=132), FP16)
VIT = AttentionProblem(3, 197, 197, 64, 64, 512, split=True)


def best(problem: AttentionProblem) -> AttentionTile:
    """Return what is chosen on a large GPU."""
    tiles = choose(candidates(problem, TARGET), TARGET)
    assert isinstance(tiles, list)
    return tiles[0]


def test_few_queries_are_spread_and_seen_once() -> None:
    tile = best(VIT)
    assert tile.once and tile.turns == 1
    assert tile.blocks[1] > 132 / 2


def test_many_queries_share_their_keys() -> None:
    tile = best(replace(VIT, products=192, key_bytes=256, split=False))
    assert (tile.queries, tile.key_warps, tile.row_warps) == (16, 1, 4)
    assert not tile.ahead and not tile.shared_bytes, "other warps hide its loads, if they find room"
    assert tile.registers * 3 * tile.threads <= TARGET.model.registers


def test_warps_share_out_keys_until_there_are_enough() -> None:
    some = best(replace(VIT, products=44))
    assert (some.queries, some.key_warps, some.row_warps) == (16, 2, 1)
    assert not some.ahead
    assert some.crowded and not best(replace(VIT, products=40)).crowded


@pytest.mark.parametrize("depth", [1, 16, 64, 96, 128])
@pytest.mark.parametrize("keys", [8, 197, 1500])
def test_tiles_have_all_keys_and_fit(depth: int, keys: int) -> None:
    problem = AttentionProblem(2, 33, keys, depth, depth, 8 * depth, split=True)
    found = list(candidates(problem, TARGET))
    assert len(set(found)) == len(found) > 2
    for tile in found:
        assert tile.fits(TARGET)
        assert tile.once == (tile.turns == 1)
        assert tile.turns * tile.turn * tile.key_warps >= problem.key_blocks
        assert (tile.key_warps - 1) * tile.turn < problem.key_blocks
        assert tile.tiles * tile.queries >= 33 and tile.blocks[1] * tile.row_warps >= 2 * tile.tiles
        assert tile.threads * tile.registers <= 1.02 * TARGET.model.registers
