"""Sums of two bytes in floats give the CPU's integer results, or integers compute them."""

from __future__ import annotations

from collections.abc import Iterator
from unittest import mock

import numpy as np
import pytest

from cases.quantized_elementwise import CASES, QuantizedPair
from litegpu import backends
from litegpu.ops.exact import float_sums
from litegpu.ops.exact.float_sums import FloatSum, Side, Sum, find
from litegpu.ops.exact.integers import Ints
from litegpu.ops.exact.numbers import Multiplier, float32
from op_runner import MODES, problem_of, run

FORMS = (
    ("RESCALED_ADD",),
    ("RESCALED_ADD_WHOLE",),
    ("RESCALED_ADD_FLOORED",),
    ("RESCALED_ADD_WHOLE", "RESCALED_ADD"),
    ("RESCALED_SUB",),
)


def sum_of(functions: tuple[str, ...], scales: tuple[float, ...], zeros: tuple[int, ...]) -> Sum:
    """Return a sum of int8 whose inputs and result have these quantizations."""
    *inputs, result = map(float32, scales)
    twice = float32(2 * max(inputs))
    first, second = (
        Side((-128, 127), zero, Multiplier.of(scale / twice), scale / result)
        for scale, zero in zip(inputs, zeros, strict=False)
    )
    multiplier = Multiplier.of(twice / float32(2**20 * result))
    return Sum(functions, 20, (first, second), multiplier, zeros[2], (-128, 127))


@pytest.mark.parametrize("functions", FORMS, ids="+".join)
@pytest.mark.parametrize("seed", range(3))
def test_floats_give_every_result(functions: tuple[str, ...], seed: int) -> None:
    """Ordinary scales, powers of two (of which halves are common), and scales far apart."""
    random = np.random.default_rng(seed)
    scales = (
        np.exp(random.normal(-3, 0.5, 3)),
        2.0 ** random.integers(-7, -3, 3),
        np.exp(random.normal(-3, 2, 3)),
    )[seed]
    wanted = sum_of(functions, tuple(scales), tuple(map(int, random.integers(-128, 128, 3))))
    found = find(wanted)
    assert found is not None
    a, b = np.meshgrid(np.arange(-128, 128), np.arange(-128, 128), indexing="ij")
    first, second, rest = (np.float32(n) for n in (found.first, found.second, found.rest))
    inner = b.astype(np.float32) * second + rest
    output = np.clip(np.floor(a.astype(np.float32) * first + inner), -128, 127)
    for results in wanted.results():
        assert np.array_equal(output, results)


def test_the_first_floats_that_fit_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others are tried first, most of them on few pairs; none of them gives every result."""
    tried: list[FloatSum] = []
    whole: list[FloatSum] = []
    compute = FloatSum.results

    def noted(self: FloatSum, wanted: Sum, rows: list[int] | None = None) -> Iterator[Ints]:
        (tried if rows is not None else whole).append(self)
        return compute(self, wanted, rows)

    wanted = sum_of(("RESCALED_ADD_WHOLE",), (0.03125, 0.0625, 0.0625), (3, -7, 11))
    with monkeypatch.context() as patch:
        patch.setattr(FloatSum, "results", noted)
        found = find.__wrapped__(wanted)
    assert found is not None and found == whole[-1] == tried[-1]
    assert 1 < len(whole) < len(tried), "few of them on all pairs"
    (results,) = wanted.results()
    for other in tried[:-1]:
        assert not all(np.array_equal(results, each) for each in other.results(wanted))


def test_results_are_the_integers_of_the_cpu() -> None:
    """By hand: 0.5 * (10 - 3) + 0.25 * (-20 - 1) = -1.75, in steps of 0.5: -3.5, away from zero."""
    (results,) = sum_of(("RESCALED_ADD",), (0.5, 0.25, 0.5), (3, 1, 0)).results()
    assert results[10 + 128, -20 + 128] == -4
    assert results[127 + 128, 127 + 128] == 127
    (results,) = sum_of(("RESCALED_SUB",), (0.5, 0.25, 0.5), (3, 1, 0)).results()
    assert results[10 + 128, 21 + 128] == -3


def test_there_may_be_no_such_floats() -> None:
    """Of this pair, vectors and the elements after them make two different results."""
    scales, zeros = (0.01442, 0.02481, 0.02094), (-52, -66, -8)
    one, other = sum_of(("RESCALED_ADD_WHOLE", "RESCALED_ADD"), scales, zeros).results()
    assert not np.array_equal(one, other)
    assert find(sum_of(("RESCALED_ADD_WHOLE", "RESCALED_ADD"), scales, zeros)) is None


@pytest.mark.parametrize("op", ["ADD", "SUB"])
def test_integers_compute_what_floats_do_not(op: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cases = [c for c in CASES if isinstance(c, QuantizedPair) and c.op == op][:24]
    (device, *_) = backends.list_devices()
    monkeypatch.setattr(float_sums, "find", mock.Mock(return_value=None))
    for case_, outcome in zip(cases, run(tuple(cases), device, MODES[0]).values(), strict=True):
        assert not isinstance(outcome, Exception)
        assert not problem_of(case_, outcome, MODES[0]), case_.name
    assert float_sums.find.called  # type: ignore[attr-defined]
