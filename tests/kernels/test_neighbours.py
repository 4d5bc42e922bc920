"""Neighboring pixels that a thread of cuda/conv_mma gathers together: results and selection."""

from __future__ import annotations

import pytest

from cases.base import Scale
from cases.separable import Separable
from comparing import mismatch
from cuda_emulator import INFO, ORDERS, EmulatedBackend, EmulatedDevice, needs_emulator
from litegpu import backends
from litegpu.kernels.cuda import conv_mma
from litegpu.kernels.cuda.conv_mma.tile import MmaProblem, MmaTile, candidates
from litegpu.kernels.cuda.tiles import TileTarget
from op_runner import MODES, Mode, run

PRECISE, FLOATS, HALVES = MODES[0], MODES[2], MODES[3]
CASES = [
    Separable(image=(2, 6, 8, 160), filters=70),
    Separable(image=(1, 9, 12, 144), filters=40, stride=(2, 2), activation="RELU"),
    Separable(image=(1, 5, 6, 130), filters=33, kernel=(2, 4), bias=""),
    Separable(image=(1, 7, 10, 128), filters=24, stride=(2, 1), padding="VALID", residual=False),
    Separable(image=(1, 5, 8, 129), filters=130, kernel=(5, 5), residual=False, added=True),
]
ODD = [
    Separable(image=(1, 8, 7, 160), filters=70),
    Separable(image=(1, 6, 8, 160), filters=70, dilation=(1, 2)),
    Separable(image=(1, 6, 12, 160), filters=70, stride=(1, 3)),
]
RUNS: list[int] = []


@pytest.fixture
def largest_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let cuda/conv_mma take a tile that gathers most neighbours, of few warps."""

    def best(problem: MmaProblem, target: TileTarget) -> list[MmaTile]:
        fitting = [tile for tile in candidates(problem, target) if tile.fits(target)]
        RUNS.append(max(tile.run for tile in fitting))
        return [next(tile for tile in fitting if tile.run == RUNS[-1])]

    RUNS.clear()
    monkeypatch.setattr(conv_mma, "best_tiles", best)


def worst(case: Separable, mode: Mode, scale: Scale | None = None) -> str:
    """Return how the numbers of a case differ from the CPU's by more than they may."""
    outcome = run((case,), INFO, mode, *(() if scale is None else (scale,)))[case.name]
    if isinstance(outcome, Exception):
        raise outcome
    assert all(name.startswith("cuda_conv_mma") for name in outcome.kernels), outcome.kernels
    assert not outcome.faults
    return mismatch(outcome.expected[0], outcome.got[0], case.limit(half=mode is HALVES))


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backends, "BACKENDS", {"cuda": EmulatedBackend()})


@pytest.mark.every_other
@needs_emulator
@pytest.mark.usefixtures("largest_runs", "emulated")
@pytest.mark.parametrize("mode", [PRECISE, FLOATS, HALVES], ids=lambda mode: mode.name)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_numbers(case: Separable, mode: Mode) -> None:
    problem = worst(case, mode)
    assert not problem
    assert 2 in RUNS


@needs_emulator
@pytest.mark.usefixtures("largest_runs")
@pytest.mark.parametrize("order", ORDERS)
def test_threads_wait_where_they_must(order: int, monkeypatch: pytest.MonkeyPatch) -> None:
    device = EmulatedDevice(checked=True, order=order)
    monkeypatch.setattr(backends, "BACKENDS", {"cuda": EmulatedBackend(device)})
    assert not worst(CASES[2], FLOATS)
    assert 2 in RUNS


@needs_emulator
@pytest.mark.usefixtures("largest_runs", "emulated")
@pytest.mark.parametrize("case", ODD, ids=lambda case: case.name)
def test_windows_that_share_nothing_are_gathered_alone(case: Separable) -> None:
    assert not worst(case, FLOATS)
    assert set(RUNS) == {1}


@needs_emulator
@pytest.mark.usefixtures("largest_runs", "emulated")
@pytest.mark.parametrize("scale", [Scale(1e6, 1.0), Scale(1e-8, 1.0), Scale(1.0, 1e6)])
def test_magnitudes(scale: Scale) -> None:
    """What half does not hold is converted once more, pixel by pixel."""
    assert not worst(Separable(image=(2, 6, 8, 160), filters=70, activation="NONE"), FLOATS, scale)
