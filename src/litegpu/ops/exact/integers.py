"""Imitates the CPU's fixed-point arithmetic on int64 arrays, for constants computed on the host."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from litegpu.ops.exact.numbers import Multiplier

Ints = npt.NDArray[np.int64]
_Number = TypeVar("_Number", int, Ints)


def wrapped(numbers: Ints) -> Ints:
    """Return integers wrapped to 32 bits."""
    return numbers.astype(np.int32).astype(np.int64)


def multiply_high(numbers: _Number, by: int) -> _Number:
    """Return numbers * by / 2^31, rounded half up."""
    return (numbers * by + (1 << 30)) >> 31


def round_shift(numbers: Ints, bits: int, away: bool = True) -> Ints:
    """Return integers / 2^bits, rounded half away from zero if `away`, else half up."""
    mask = (1 << bits) - 1
    up = (numbers & mask) > (mask >> 1) + (numbers < 0) * int(away)
    return (numbers >> bits) + up


def requantized(numbers: Ints, multiplier: Multiplier, away: bool = True) -> Ints:
    """Return rounded products of integers and a multiplier; `round_shift` describes `away`."""
    raised = wrapped(numbers << multiplier.left)
    return round_shift(multiply_high(raised, multiplier.number), multiplier.right, away)
