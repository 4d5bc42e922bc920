"""Weights split into the parts that matrix instructions multiply."""

from __future__ import annotations

import dataclasses
import warnings
from typing import cast

import numpy as np
import pytest

from litegpu.engine.target import DeviceTarget
from litegpu.kernels.cuda.halves import REST_SCALE, as_tf32_parts, halves_of, parts_of
from litegpu.numeric_policy import FP16, NumericPolicy
from litegpu.ops.base import LowerContext
from litegpu.ops.common.halves import as_halves, fits_half
from litegpu.ops.common.weights import in_precision
from paper_device import DEVICE


def test_two_parts_of_tf32_hold_nearly_all_of_a_float() -> None:
    weights = np.random.default_rng(0).normal(0, 10, 100_000).astype(np.float32)
    high, low = as_tf32_parts(weights)
    for part in (high, low):
        assert not (part.view(np.uint32) & 0x1FFF).any()
    assert (np.abs(weights - high) <= 2.0**-11 * np.abs(weights)).all()
    rest = weights.astype(np.float64) - high - low
    assert (np.abs(rest) <= 2.0**-22 * np.abs(weights)).all()
    # Rounded, not cut: rests are of both signs, whatever the sign of the weight.
    assert abs((rest * np.sign(weights)).sum()) < 0.1 * np.abs(rest).sum()


@dataclasses.dataclass(frozen=True)
class Context:
    """What is asked of a LowerContext here."""

    target: DeviceTarget


CONTEXT = cast(LowerContext, Context(DeviceTarget(DEVICE, NumericPolicy(1 << 30))))
MAGNITUDES = (1e-38, 1e-8, 1e-6, 1e-3, 1.0, 1e3, 1e6, 1e38)


def test_channels_of_all_magnitudes_keep_their_digits() -> None:
    random, scales = np.random.default_rng(0), np.array(MAGNITUDES).reshape(-1, 1, 1, 1)
    weights = (random.uniform(0.1, 1, (len(MAGNITUDES), 3, 3, 5)) * scales).astype(np.float32)
    halves = halves_of(weights, CONTEXT.target)
    high, rest = (as_halves(part).astype(np.float64) for part in halves.parts)
    assert halves.back is not None
    assert (np.log2(halves.back) % 1 == 0).all()
    assert halves.back[3] == halves.back[4] == 1
    stored = (high + rest / REST_SCALE) * halves.back.reshape(-1, 1, 1, 1)
    assert (np.abs(stored - weights) <= 2.0**-21 * np.abs(weights)).all()


@pytest.mark.parametrize(("siblings", "parts"), [(1, 1), (2, 2)])
def test_of_siblings_the_size_of_one_decides(siblings: int, parts: int) -> None:
    weights = np.random.default_rng(0).uniform(0, 1, (256, 1, 1, 256)).astype(np.float32)
    target = DeviceTarget(DEVICE, FP16)
    assert not FP16.keeps_fp32_weights(weights.nbytes)
    assert len(halves_of(weights, target, siblings=siblings).parts) == parts
    assert parts_of(weights, target, siblings=siblings) == parts
    stored = in_precision(weights, cast(LowerContext, Context(target)), siblings)
    assert stored.dtype == (np.float16 if parts == 1 else np.float32)


def test_usual_weights_are_not_scaled() -> None:
    weights = np.array([[0.5, -3.0], [0.0, 0.0], [1e-9, 2e-3], [6e4, np.inf]], np.float32)
    halves = halves_of(weights, CONTEXT.target, exact=False)
    assert halves.back is None
    assert halves.parts[0] is weights


@pytest.mark.parametrize(
    ("weights", "fits"),
    [
        ([1.0, 1e-9, 0.0], True),
        ([65504.0, np.inf, np.nan], True),
        ([0.0, -0.0], True),
        ([], True),
        ([65520.0, 1.0], False),
        ([9e-4, -1e-5], False),
        ([np.inf, 1e-6], False),
    ],
)
def test_weights_fit_half_by_the_largest(weights: list[float], fits: bool) -> None:
    assert fits_half(np.array(weights, np.float32)) == fits


def test_parts_of_tf32_keep_nan_and_the_largest_floats() -> None:
    words = np.array([0x7FFFFFFF, 0xFFFFFFFF, 0x7FC00000, 0x7F7FFFFF, 0xFF7FFFFF])
    weights = words.astype(np.uint32).view(np.float32)
    high, low = as_tf32_parts(weights)
    np.testing.assert_array_equal(np.isnan(high), np.isnan(weights))
    whole = high.astype(np.float64) + low
    np.testing.assert_allclose(whole[3:], weights[3:], rtol=2.0**-21)


def test_weights_without_end_are_packed_without_a_warning() -> None:
    weights = np.array([np.inf, -np.inf, np.nan, 1.0], np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        high, _ = as_tf32_parts(weights)
        halves = as_halves(weights)
    np.testing.assert_array_equal(high, weights)
    np.testing.assert_array_equal(halves, np.array([65504, -65504, np.nan, 1], np.float16))
