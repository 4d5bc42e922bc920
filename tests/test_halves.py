"""Weights in the parts that matrix instructions multiply."""

from __future__ import annotations

import warnings

import numpy as np

from litegpu.ops.halves import as_halves, as_tf32_parts


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


def test_weights_without_end_are_packed_without_a_warning() -> None:
    weights = np.array([np.inf, -np.inf, np.nan, 1.0], np.float32)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        high, _ = as_tf32_parts(weights)
        halves = as_halves(weights)
    np.testing.assert_array_equal(high, weights)
    np.testing.assert_array_equal(halves, np.array([65504, -65504, np.nan, 1], np.float16))
