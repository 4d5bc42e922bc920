"""Attention in halves: numbers of all kinds of tiles, and which are chosen."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from cases.attention import Attention
from cases.base import Range, Scale
from cuda_emulator import INFO, EmulatedBackend, EmulatedDevice, needs_emulator
from litegpu import backends
from litegpu.engine.target import DeviceTarget
from litegpu.kernels.cuda import attention_flash
from litegpu.kernels.cuda.attention_flash.tile import FlashProblem, FlashTile, candidates
from litegpu.kernels.cuda.tiles import choose
from litegpu.numeric_policy import FP16, NumericPolicy
from magnitudes import problems
from model_runner import cpu_answers, device_answers
from op_runner import MODES, problem_of, run, write

MASKED = Attention(
    batch=2, heads=3, queries=19, keys=37, depth=20, across=True, mask=(2, 1, 19, 37)
)
CASES = [
    (MASKED, (1, 32)),
    (MASKED, (4, 64)),
    (Attention(heads=1, queries=20, keys=50, depth=128, columns=100), (2, 32)),
    (Attention(heads=1, queries=16, keys=70, depth=1, columns=9), (1, 64)),
    (
        Attention(queries=17, keys=130, depth=64, across=True, mask=(1, 1, 1, 130), hidden=60),
        (2, 64),
    ),
    (Attention(queries=17, keys=70, scale=4.0, values=Range(-64.0, 64.0, grid=1.0)), (1, 32)),
    (Attention(queries=64, keys=64, depth=16, columns=32, added=True), (4, 32)),
]


@pytest.fixture(autouse=True)
def all_round(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let small products round, too."""
    monkeypatch.setattr(NumericPolicy, "may_round", lambda policy, _operations: policy.uses_fp16)
    monkeypatch.setattr(backends, "BACKENDS", {"cuda": EmulatedBackend()})
    yield


def forced(monkeypatch: pytest.MonkeyPatch, shape: tuple[int, int]) -> None:
    """Let all attention have a tile of so many warps and keys."""

    def only(problem: FlashProblem) -> list[FlashTile]:
        return [FlashTile(problem, *shape)]

    monkeypatch.setattr(attention_flash, "candidates", only)


@needs_emulator
@pytest.mark.parametrize(("case", "shape"), CASES)
def test_numbers(case: Attention, shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    forced(monkeypatch, shape)
    device = EmulatedDevice(checked=True)
    monkeypatch.setattr(backends, "BACKENDS", {"cuda": EmulatedBackend(device)})
    outcome = run((case,), INFO, MODES[3])[case.name]
    if isinstance(outcome, Exception):
        raise outcome
    assert any(name.startswith("cuda_attention_flash") for name in outcome.kernels)
    assert not problem_of(case, outcome, MODES[3])


@needs_emulator
@pytest.mark.parametrize("scale", [Scale(values=1e-8), Scale(values=1e-3), Scale(values=1e6)])
def test_magnitudes(scale: Scale, monkeypatch: pytest.MonkeyPatch) -> None:
    forced(monkeypatch, (1, 32))
    assert not problems((Attention(queries=17, keys=70, depth=20),), INFO, MODES[2], scale)
