"""Figures for latency and agreement, on fake interpreters."""

from __future__ import annotations

import numpy as np
import pytest

from litegpu.runtime_abi.interpreter import Output
from litegpu.tools.measure import compare, time_invokes


class CountingInterpreter:
    def __init__(self) -> None:
        self.invokes = 0

    def invoke(self) -> None:
        self.invokes += 1


def test_each_run_is_timed_after_one_to_warm_up() -> None:
    interpreter = CountingInterpreter()
    latency = time_invokes(interpreter, 7, 60.0, "test")
    assert (interpreter.invokes, latency.runs) == (8, 7)
    assert 0 <= latency.min_ms <= latency.median_ms <= latency.max_ms


def test_timing_stops_after_the_time_limit() -> None:
    interpreter = CountingInterpreter()
    assert time_invokes(interpreter, 1000, 0.0, "test").runs == 1


def test_distance_of_two_outputs() -> None:
    want = Output("scores", np.array([[3.0, 4.0]], np.float32))
    got = Output("scores", np.array([[3.0, 4.5]], np.float32))
    result = compare(got, want)
    assert result.relative_l2 == pytest.approx(0.1)
    assert result.max_abs == pytest.approx(0.5)
    assert result.top1_equal
    assert not compare(Output("scores", want.values[:, ::-1]), want).top1_equal


def test_distance_from_zero_is_infinite() -> None:
    zero, one = Output("o", np.zeros(3)), Output("o", np.ones(3))
    assert compare(zero, zero).relative_l2 == 0
    assert compare(one, zero).relative_l2 == np.inf


def test_nan_is_not_hidden() -> None:
    result = compare(Output("o", np.array([np.nan, 1])), Output("o", np.array([0.0, 1])))
    assert np.isnan(result.relative_l2)
    assert np.isnan(result.max_abs)


@pytest.mark.parametrize(
    ("got", "want"),
    [([np.nan, 1], [0, 1]), ([0, 1], [np.nan, 1]), ([np.nan, 1], [np.nan, 1]), ([0, np.nan],) * 2],
)
def test_nan_is_never_the_same_top_1(got: list[float], want: list[float]) -> None:
    result = compare(Output("o", np.array(got)), Output("o", np.array(want)))
    assert result.has_nan
    assert not result.top1_equal
