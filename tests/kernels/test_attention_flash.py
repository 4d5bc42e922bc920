"""cuda/attention_flash: results for all kinds of tiles, and the selected tiles."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from cases.attention import Attention
from cases.base import Range, Scale
from cuda_emulator import INFO, EmulatedBackend, EmulatedDevice, needs_emulator
from litegpu import backends
from litegpu.codegen import Storage
from litegpu.engine.target import DeviceTarget
from litegpu.graph import DType
from litegpu.kernels.cuda import attention_flash
from litegpu.kernels.cuda.attention_flash.tile import (
    FlashProblem,
    FlashTile,
    candidates,
    is_busy,
)
from litegpu.kernels.cuda.tiles import choose
from litegpu.kernels.selector import select
from litegpu.numeric_policy import FP16, FP32, NumericPolicy
from litegpu.ops.attention import AttentionSpec
from model_runner import cpu_answers, device_answers
from op_runner import MODES, problem_of, run, write

MASKED = Attention(
    batch=2, heads=3, queries=19, keys=37, depth=20, across=True, mask=(2, 1, 19, 37)
)
CASES = [
    (MASKED, (1, 32)),
    (MASKED, (4, 64)),
    (MASKED, (2, 32, 2)),
    (MASKED, (1, 32, 4)),
    (replace(MASKED, mask=None), (1, 64, 2)),
    (Attention(heads=1, queries=20, keys=50, depth=128, columns=100), (2, 32)),
    (Attention(heads=1, queries=16, keys=70, depth=1, columns=9), (1, 64, 2)),
    (
        Attention(queries=17, keys=130, depth=64, across=True, mask=(1, 1, 1, 130), hidden=60),
        (2, 64),
    ),
    (Attention(queries=17, keys=70, scale=4.0, values=Range(-64.0, 64.0, grid=1.0)), (1, 32)),
    (Attention(queries=64, keys=64, depth=16, columns=32, added=True), (4, 32)),
]


@pytest.fixture(autouse=True)
def all_round(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let small products round, too, unless a test is about them."""
    monkeypatch.setattr(backends, "BACKENDS", {"cuda": EmulatedBackend()})
    if "small_products" not in request.node.name:
        monkeypatch.setattr(NumericPolicy, "may_round", lambda policy, _: policy.uses_fp16)


def forced(monkeypatch: pytest.MonkeyPatch, shape: tuple[int, ...]) -> None:
    """Let all attention have a tile of so many warps and keys."""

    def only(problem: FlashProblem) -> list[FlashTile]:
        return [FlashTile(problem, *shape)]

    monkeypatch.setattr(attention_flash, "candidates", only)
    monkeypatch.setattr(attention_flash, "is_busy", lambda *_: True)


@needs_emulator
@pytest.mark.parametrize(("case", "shape"), CASES)
def test_numbers(case: Attention, shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
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
    """Values that half holds badly keep the digits that half has."""
    forced(monkeypatch, (1, 32))
    case = Attention(queries=17, keys=70, depth=20)
    outcome = run((case,), INFO, MODES[2], scale)[case.name]
    if isinstance(outcome, Exception):
        raise outcome
    ((expected,), (got,)) = outcome.expected, outcome.got
    assert np.linalg.norm(got - expected) < 2e-3 * np.linalg.norm(expected)


@needs_emulator
def test_what_is_not_finite(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys hidden by -INFINITY, all of a turn or of a query; NaN and infinity in the operands."""
    forced(monkeypatch, (1, 32, 2))
    case = Attention(heads=4, queries=18, keys=70, depth=12, mask=(1, 4, 18, 70))
    random = np.random.default_rng(3)
    tokens = (18, 70, 70)
    given = [random.uniform(-1, 1, (1, 4, count, 12)).astype(np.float32) for count in tokens]
    mask = np.zeros((1, 4, 18, 70), np.float32)
    mask[0, 0, :, :64] = -np.inf
    mask[0, 0, 3, 69:] = -np.inf
    mask[0, 0, 9] = -np.inf
    given[0][0, 1, 7, 2] = np.nan
    given[1][0, 2, 35, 5] = np.nan
    given[2][0, 3, 2, 1] = np.nan
    given[2][0, 3, 5, 4] = np.inf
    content = write((case,)).content
    (expected,) = cpu_answers(content, [[*given, mask]])
    (got,) = device_answers(content, [[*given, mask]], INFO, precision="fp16").outputs
    # The CPU cuts sums at the largest float (decision 14): there all keys are as likely.
    assert np.isnan(got[0][0, 0, 9]).all() and np.isfinite(expected[0][0, 0, 9]).all()
    got[0][0, 0, 9] = expected[0][0, 0, 9]
    np.testing.assert_array_equal(np.isnan(got[0]), np.isnan(expected[0]))
    np.testing.assert_array_equal(np.isinf(got[0]), np.isinf(expected[0]))
    finite = np.isfinite(expected[0])
    np.testing.assert_allclose(got[0][finite], expected[0][finite], rtol=5e-3, atol=1e-3)


TARGET = DeviceTarget(replace(INFO, compute_units=132), FP16)


def best(products: int, queries: int, keys: int, depth: int) -> FlashTile | None:
    """Return what is chosen on a large GPU, for heads of `depth` channels."""
    problem = FlashProblem(products, queries, keys, -(-depth // 16), -(-depth // 16))
    tiles = choose(candidates(problem), TARGET)
    assert isinstance(tiles, list)
    return tiles[0] if is_busy(problem, TARGET.compute_units) else None


def test_warps_divide_the_keys_where_queries_are_few() -> None:
    few, many = best(3, 1500, 1500, 64), best(192, 197, 197, 64)
    assert few is not None and (few.warps, few.turn, few.split) == (4, 64, 2)
    assert many is not None and many.split == 1
    assert best(8, 64, 4096, 64) is None


@pytest.mark.parametrize("depth", [1, 16, 64, 96, 128])
@pytest.mark.parametrize("keys", [32, 197, 1500])
def test_tiles_have_all_queries_and_fit(depth: int, keys: int) -> None:
    problem = FlashProblem(2, 33, keys, -(-depth // 16), -(-depth // 16))
    found = list(candidates(problem))
    assert found
    for tile in found:
        assert tile.fits(TARGET)
        assert 33 <= tile.tiles * tile.warps * 16 < 33 + tile.warps * 16
        assert tile.threads * tile.registers <= TARGET.model.registers


def whisper(rows: int = 1500) -> AttentionSpec:
    """Return six heads of 64 channels."""
    values = tuple(
        Storage.create(v, DType.FLOAT32, (1, 6, tokens, 64), 4)
        for v, tokens in enumerate((rows, 1500, 1500, rows))
    )
    query, key, value, result = values
    across = (False, False, False, False)
    return AttentionSpec((query, key, value, result), across, (1, 6, rows, 1500), (), 0, 1.0)


@pytest.mark.parametrize(
    ("policy", "rows", "reason"),
    [
        (FP32, 1500, "the node has too little work to justify rounding its input"),
        (FP16, 12, "the scores would leave most of a tile empty"),
        (FP16, 300, "the queries are too few to keep the device busy"),
    ],
)
def test_why_it_is_not_chosen(policy: NumericPolicy, rows: int, reason: str) -> None:
    target = DeviceTarget(replace(INFO, compute_units=132), policy)
    chosen = select(whisper(rows), target)
    assert chosen.name == "cuda/attention_mma"
    assert chosen.rejected["cuda/attention_flash"] == reason
    assert select(whisper(), TARGET).name == "cuda/attention_flash"


def test_few_queries_have_a_kernel_of_their_own() -> None:
    assert select(whisper(1), TARGET).name == "attention_split"


def test_small_products_are_not_rounded() -> None:
    spec = replace(whisper(), scores=(1, 6, 197, 197))
    assert "too little work" in select(spec, TARGET).rejected["cuda/attention_flash"]
