"""The runner of the op cases detects wrong results."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from cases.base import Case
from cases.elementwise import Unary
from cases.reshape import Reshape
from comparing import mismatch, relative_error
from litegpu import backends
from litegpu.backends.base import DeviceInfo
from litegpu.codegen import Position, TensorRef
from op_runner import MODES, Mode, Outcome, run

STAGED = next(mode for mode in MODES if mode.name == "fp32-staged")
NARROW = Unary(op="COS", shape=(1, 3, 2, 5))


@pytest.fixture
def device() -> DeviceInfo:
    return backends.list_devices()[0]


def outcome(case: Case, device: DeviceInfo, mode: Mode = STAGED) -> Outcome:
    found = run((case,), device, mode)[case.name]
    assert isinstance(found, Outcome), found
    return found


def test_padding_that_is_not_zero_is_found(
    device: DeviceInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert outcome(NARROW, device).faults == ()
    write = TensorRef.write

    def unmasked(self: TensorRef, *words: Any) -> str:
        return re.sub(r"\w+ = MASK4\(.*?\); ", "", write(self, *words))

    monkeypatch.setattr(TensorRef, "write", unmasked)
    (fault,) = outcome(NARROW, device).faults
    assert "padding lane (0, 0, 0, 5) after 5 channels holds 1.0" in fault


def test_elements_that_no_kernel_writes_are_found(
    device: DeviceInfo, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = TensorRef.write

    def first_row_only(self: TensorRef, at: Position, *words: Any) -> str:
        return f"if ({at.row or 0} == 0) {{ {write(self, at, *words)} }}"

    monkeypatch.setattr(TensorRef, "write", first_row_only)
    found = outcome(NARROW, device)
    assert any("25 of 30 elements are NaN in device memory" in fault for fault in found.faults)
    assert mismatch(found.expected[0], found.got[0], 1e-5).startswith("25 of 30 not finite, at (0,")


def test_a_case_that_cannot_run_does_not_hide_the_others(device: DeviceInfo) -> None:
    wrong = Reshape(shape=(2, 3), to=(4, 5))
    found = run((NARROW, wrong), device, STAGED)
    assert isinstance(found[NARROW.name], Outcome)
    assert isinstance(found[wrong.name], Exception)


def test_a_mismatch_names_place_and_sizes() -> None:
    expected = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)
    got = np.array([[1.0, 2.5], [3.0, 4.25]], np.float32)
    assert mismatch(expected, expected, 0.0) == ""
    assert mismatch(expected, got, 0.2) == ""
    assert mismatch(expected, got, 1e-2) == (
        "relative L2 error 0.102 above 0.01, at (0, 1): expected 2.0, got 2.5; "
        "max error 0.5, mean error 0.188"
    )
    assert mismatch(expected, got.ravel(), 1.0) == "shape (4,) instead of (2, 2)"


def test_what_is_finite_on_the_cpu_must_be_finite() -> None:
    expected, got = np.ones(3, np.float32), np.array([1, np.nan, 1], np.float32)
    assert mismatch(expected, got, 1e9) == "1 of 3 not finite, at (1,): expected 1.0, got nan"


def test_an_infinity_must_have_its_sign() -> None:
    expected = np.array([np.inf, 1.0, -np.inf], np.float32)
    assert mismatch(expected, expected.copy(), 0.0) == ""
    assert mismatch(expected, -expected, 1e9).startswith(
        "relative L2 error nan above 1e+09, at (0,)"
    )


def test_an_error_without_a_norm_to_measure_by_is_taken_as_it_is() -> None:
    nothing, something = np.zeros(2, np.float32), np.array([3, 4], np.float32)
    assert relative_error(nothing, something) == 5.0
