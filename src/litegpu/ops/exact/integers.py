"""The CPU's arithmetic with multipliers, for what the host works out: arrays of int64."""

from __future__ import annotations

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from litegpu.ops.exact.numbers import Multiplier

Ints = npt.NDArray[np.int64]
_Number = TypeVar("_Number", int, Ints)


def wrapped(numbers: Ints) -> Ints:
    """Return what 32 bits hold of integers."""
    return numbers.astype(np.int32).astype(np.int64)


def multiply_high(numbers: _Number, by: int) -> _Number:
    """Return products divided by 2^31, to the nearest integers; halves go up."""
    return (numbers * by + (1 << 30)) >> 31


def round_shift(numbers: Ints, bits: int, away: bool = True) -> Ints:
    """Return integers divided by 2^bits, to the nearest; halves go `away` from zero, else up."""
    mask = (1 << bits) - 1
    up = (numbers & mask) > (mask >> 1) + (numbers < 0) * int(away)
    return (numbers >> bits) + up


def requantized(numbers: Ints, multiplier: Multiplier, away: bool = True) -> Ints:
    """Return integers times a multiplier."""
    raised = wrapped(numbers << multiplier.left)
    return round_shift(multiply_high(raised, multiplier.number), multiplier.right, away)
