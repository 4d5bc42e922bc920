"""The op table at other magnitudes, at fp16: a part of it, whose scales take turns.

`benchmarks/fp16_range.py ops` runs all of it, on any backend.
"""

from __future__ import annotations

import dataclasses
from unittest import mock

import numpy as np
import pytest

import cases
import op_runner
from cases.base import Case, Scale
from cases.conv_2d import Conv
from cases.fully_connected import Dense
from cases.separable import MeanDense, Separable
from cases.transpose_conv import TransposeConv
from comparing import mismatch
from cuda_emulator import INFO, EmulatedBackend, needs_emulator
from litegpu import backends
from litegpu.kernels.cuda import separable
from litegpu.zoo import resolve_model
from magnitudes import SCALES, problems
from model_runner import cpu_answers, device_answers
from op_runner import MODES, groups, write

GROUPS = groups(cases.TABLE)
EVERY = 14
DIRECT, STAGED = MODES[2:]


@pytest.mark.parametrize("number", range(0, len(GROUPS), EVERY))
def test_cases_agree_with_the_cpu(number: int) -> None:
    scale = SCALES[number // EVERY % len(SCALES)]
    assert not problems(GROUPS[number][:8], backends.list_devices()[0], DIRECT, scale)


@pytest.mark.parametrize("number", range(EVERY // 2, len(GROUPS), 2 * EVERY))
def test_cases_agree_where_all_values_would_be_halves(number: int) -> None:
    """What half cannot hold is noticed where it is stored."""
    scale = SCALES[number * 5 % len(SCALES)]
    assert not problems(GROUPS[number][:3], backends.list_devices()[0], STAGED, scale)


TENSOR_CORES: tuple[tuple[Case, Scale], ...] = (
    (Separable(image=(1, 14, 14, 96), filters=130, activation="NONE"), Scale(values=1e6)),
    (Separable(image=(2, 7, 9, 24)), Scale(values=1e-6, weights=1e-3)),
    (MeanDense(image=(1, 5, 3, 40)), Scale(values=1e6)),
    (TransposeConv(image=(2, 5, 3, 20), filters=9), Scale(1e-6, 1e-6)),
    (Dense(shape=(1, 128), units=70), Scale(1e-8, 1e-8)),
    (Conv(image=(1, 33, 35, 32), filters=32, kernel=(3, 3)), Scale(values=1e4)),
)


@needs_emulator
@pytest.mark.parametrize(("case", "scale"), TENSOR_CORES, ids=lambda each: each.name)
def test_tensor_cores_agree_with_the_cpu(
    case: Case, scale: Scale, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backends, "BACKENDS", {"cuda": EmulatedBackend()})
    assert not problems((case,), INFO, DIRECT, scale)


LARGE = (
    Separable(image=(2, 15, 18, 40), filters=70, activation="RELU"),
    Separable(image=(1, 16, 16, 36), filters=33),
)


@needs_emulator
@pytest.mark.parametrize("case", LARGE, ids=lambda each: each.name)
@pytest.mark.parametrize("scale", [Scale(values=1e6), Scale(1e-6), Scale(1e-8), Scale(1.0, 1e-6)])
def test_separable_convolutions(
    case: Separable, scale: Scale, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What they round lies between two convolutions."""
    for name in ("_FILLED", "_MIN_PIXELS", "_MIN_ELEMENTS"):
        monkeypatch.setattr(separable, name, 0)
    monkeypatch.setattr(separable, "_is_half", lambda *_: True)
    monkeypatch.setattr(backends, "BACKENDS", {"cuda": EmulatedBackend()})
    case = dataclasses.replace(case, items=128)
    with mock.patch.object(Case, "limit", lambda *_: 2e-3):
        outcome = op_runner.run((case,), INFO, DIRECT, scale)[case.name]
        assert not isinstance(outcome, Exception)
        assert all(name.startswith("cuda_separable") for name in outcome.kernels)
        assert not problems((case,), INFO, DIRECT, scale)


@pytest.mark.parametrize("factor", [1e-6, 1e3])
def test_a_model_with_inputs_of_another_magnitude(factor: float) -> None:
    content = resolve_model("zoo:mobilenet_v1_0.25_128")
    image = np.random.default_rng(0).uniform(-factor, factor, (1, 128, 128, 3)).astype(np.float32)
    (wanted,) = cpu_answers(content, [[image]], builtin_kernels=False)
    answers = device_answers(content, [[image]], backends.list_devices()[0], precision="fp16")
    for expected, got in zip(wanted, answers.outputs[0], strict=True):
        assert not mismatch(expected, got, 5e-3)


def test_scales_reach_inputs_and_weights() -> None:
    case = Conv(image=(1, 3, 3, 4), filters=2)
    (plain,), (scaled,) = (
        write((case,), each).pieces.values() for each in (Scale(), Scale(1e3, 1e-6))
    )
    assert scaled.inputs[0][1].high == 1e3 * plain.inputs[0][1].high
    for factor, before, after in zip((1e-6, 1e-3), plain.weights, scaled.weights, strict=True):
        np.testing.assert_allclose(after, before * factor, rtol=1e-6)
