"""The op table with inputs and weights of other magnitudes, also beyond the range of half."""

from __future__ import annotations

import numpy as np

from cases.base import HALF, Array, Case, NumpyCase, Scale
from comparing import mismatch
from fuzzing.nudging import nudged_model
from fuzzing.rounding import HALF_ULP, is_among
from litegpu.backends.base import DeviceInfo
from litegpu.codegen import HALF_TINY
from litegpu.runtime_abi import interpreter as runtime
from model_runner import invoke
from op_runner import MODES, Mode, Outcome, inputs_of, limit_of, run, write

FACTORS = (1e-8, 1e-6, 1e-3, 1e3, 1e4, 1e6)
SCALES = tuple(
    scale
    for factor in FACTORS
    for scale in (Scale(values=factor), Scale(weights=factor), Scale(factor, factor))
)
_SMALLEST = 1e-30
"""Results whose largest is smaller may lose digits on any device."""
_TRIES = 24
"""So many that steps (of FLOOR_MOD) beside which an element lies are found."""
HALF_STEP = 2.0**-24
"""The distance of the smallest halves."""
_EXACT = MODES[0]
"""What says whether a case makes sense at a magnitude: whether float32 gives the CPU's answer."""


def problems(
    group: tuple[Case, ...], device: DeviceInfo, mode: Mode, scale: Scale
) -> dict[str, str]:
    """Return what is wrong with the scaled cases of a group, by name.

    Left out is what no storage could mend: cases whose numbers are wrong with float32, too, as
    rounding decides about them (the sine of a million), and those that are as uncertain on the CPU
    when its floats, results of nodes too, are off by what a half is (gates of an LSTM whose sums
    are in the ten thousands and cancel).
    """
    failed, wrong = _run(group, device, mode, scale)
    again = tuple(case for case in group if case.name in wrong)
    _, alike = _run(again, device, _EXACT, scale) if again else ({}, {})
    alike |= {case.name: "" for case in again if _hangs_on_halves(case, device, mode, scale)}
    return failed | {name: text for name, text in wrong.items() if name not in alike}


def _hangs_on_halves(case: Case, device: DeviceInfo, mode: Mode, scale: Scale) -> bool:
    """Whether rounding like a half's takes the CPU's result about as far from itself."""
    outcome = run((case,), device, mode, scale)[case.name]
    if not mode.half or isinstance(case, NumpyCase) or isinstance(outcome, Exception):
        return False
    nearby = []
    for number in range(_TRIES):
        random = np.random.default_rng(number)
        content = nudged_model(write((case,), scale).reference, random, HALF_ULP / 2)
        target = runtime.interpreter(content, builtin_kernels=True)
        given = [_nudged(each, random) for each in inputs_of((case,), 0, mode.half, scale)]
        nearby.append(invoke(target, given))
    return is_among(nearby, outcome.expected, outcome.got)


def _nudged(values: Array, random: np.random.Generator) -> Array:
    if values.dtype != np.float32:
        return values
    found = values * (1 + HALF_ULP / 2 * random.integers(-1, 2, values.shape))
    if np.abs(values).max(initial=0) >= HALF_TINY:
        # Half it stays, whatever becomes of its smallest elements.
        found += HALF_STEP / 2 * random.integers(-1, 2, values.shape)
    nudged: Array = found.astype(np.float32)
    return nudged


def _run(
    group: tuple[Case, ...], device: DeviceInfo, mode: Mode, scale: Scale
) -> tuple[dict[str, str], dict[str, str]]:
    """Return which cases did not run, and whose numbers are wrong."""
    failed, wrong = {}, {}
    outcomes = run(group, device, mode, scale)
    for case in group:
        outcome = outcomes[case.name]
        if isinstance(outcome, Exception):
            failed[case.name] = f"{type(outcome).__name__}: {outcome}"
        elif text := _problem(case, outcome, mode):
            wrong[case.name] = text
    return failed, wrong


def _problem(case: Case, outcome: Outcome, mode: Mode) -> str:
    pairs = zip(outcome.expected, outcome.got, strict=True)
    # What is only moved is exact with numbers that half holds, which scaled ones need not be.
    limit = max(limit_of(case, mode), HALF if mode.half else 0.0)
    found = (mismatch(*_where_finite(expected, got), limit) for expected, got in pairs)
    return "; ".join(text for text in found if text)


def _where_finite(expected: Array, got: Array) -> tuple[Array, Array]:
    """Return what the CPU has finite numbers for, if these are large enough."""
    if expected.dtype != np.float32 or expected.shape != got.shape:
        return expected, got
    finite = np.isfinite(expected)
    large_enough = np.abs(expected[finite]).max(initial=0) >= _SMALLEST
    return expected[finite & large_enough], got[finite & large_enough]
