"""Loops with barriers, compiled by PoCL with optimizations, which users have by default."""

from __future__ import annotations

import pytest

from cases.base import Case
from cases.lstm import IntegerLstm, Lstm
from cases.rnn import Rnn
from every_backend import device_of, on_backends
from op_runner import MODES, problem_of, run


@pytest.mark.long_kernels
@on_backends(("opencl",))
@pytest.mark.parametrize(
    "case",
    [
        Rnn(),
        Lstm(outputs=5),
        IntegerLstm(),
        # With hidden states at one place, PoCL's compiler ended the process.
        IntegerLstm(outputs=5),
        IntegerLstm(outputs=9, normalized=True),
    ],
    ids=lambda case: case.name,
)
def test_recurrent_kernels_compile(backend: str, case: Case) -> None:
    outcome = run((case,), device_of(backend), MODES[0])[case.name]
    assert not isinstance(outcome, Exception), outcome
    assert not problem_of(case, outcome, MODES[0])
