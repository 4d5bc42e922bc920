"""Logistic and tanh of 16-bit fixed-point numbers, as the CPU's integer LSTM computes them.

A number with n integer bits is the stored integer / 2^(15 - n). Products keep the upper 16 bits,
rounded half up; sums wrap around to 16 bits unless they are said to saturate. Results have no
integer bits.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

from litegpu.graph import DType
from litegpu.ops.exact.integers import Ints, round_shift
from litegpu.ops.exact.tables import stored

GATE_BITS = 3
"""Number of integer bits of the gates before their activation."""
_ONE = 2**15 - 1
_HALF = 2**14
_QUARTER = 2**13
"""1 as a number with 2 integer bits."""
_DECAYS = (
    (-2, 1672461947),
    (-1, 1302514674),
    (0, 790015084),
    (1, 290630308),
    (2, 39332535),
    (3, 720401),
    (4, 242),
)
"""For each exponent k the number exp(-2^k) * 2^31."""


def logistic(numbers: Ints) -> Ints:
    """Return 1 / (1 + exp(-x)) of numbers with `GATE_BITS` integer bits."""
    sizes = _wrapped(np.where(numbers > 0, numbers, -numbers))
    positive = _saturated(_reciprocal(_exponential(_wrapped(-sizes), GATE_BITS)) << 1)
    found = np.where(numbers > 0, positive, _ONE - positive)
    return np.where(numbers == 0, _HALF, found)


def tanh(numbers: Ints, bits: int) -> Ints:
    """Return the hyperbolic tangent of numbers with `bits` integer bits."""
    below = np.where(numbers < 0, numbers, -numbers)
    # (1 - e) / (1 + e) = 2 / (1 + e) - 1, with e = exp(-2 |x|)
    size = _saturated((_reciprocal(_exponential(below, bits + 1)) - _QUARTER) << 2)
    return np.where(numbers == 0, 0, np.where(numbers < 0, -size, size))


def logistic_table() -> npt.NDArray[np.int32]:
    """Return `logistic` of all 16-bit numbers, by their bits."""
    return _table(None)


def tanh_table(bits: int) -> npt.NDArray[np.int32]:
    """Return `tanh` of all 16-bit numbers with `bits` integer bits, by their bits."""
    return _table(bits)


@cache
def _table(bits: int | None) -> npt.NDArray[np.int32]:
    every = stored(DType.INT16)
    found = logistic(every) if bits is None else tanh(every, bits)
    return found.astype(np.int32)


def _exponential(numbers: Ints, bits: int) -> Ints:
    """Return exp(x) of numbers x <= 0 with `bits` integer bits.

    A Taylor polynomial computes the part between -1/4 and 0. Each remaining binary digit of x
    multiplies the result by a constant.
    """
    point = 15 - bits
    quarter = 1 << (point - 2)
    part = (numbers & (quarter - 1)) - quarter
    x = (part << bits) + (1 << 12)  # x + 1/8
    square = _product(x, x)
    cube, fourth = _product(square, x), _product(square, square)
    higher = _product(round_shift(fourth, 2) + cube, _constant(715827883))  # 1/3
    series = x + round_shift(higher + square, 1)
    middle = _constant(1895147668)  # exp(-1/8)
    found = _saturated(middle + _product(series, middle))
    rest = part - numbers
    for exponent, decay in _DECAYS:
        if exponent < bits:
            digit = rest & (1 << (point + exponent))
            found = np.where(digit, _product(found, _constant(decay)), found)
    if bits > 5:
        found = np.where(numbers < -(1 << (point + 5)), 0, found)
    return np.where(numbers == 0, _ONE, found)


def _reciprocal(numbers: Ints) -> Ints:
    """Return 1 / (1 + x), halved, with 1 integer bit, by three Newton steps."""
    half = (numbers + _ONE + 1) >> 1
    x = _constant(1515870810) + _product(half, _constant(-1010580540))  # 48/17 - 32/17 * half
    for _ in range(3):
        error = _QUARTER - _product(half, x)
        x = x + _saturated(_product(x, error) << 2)
    return _wrapped(x)


def _product(a: Ints, b: Ints | int) -> Ints:
    return (a * b + (1 << 14)) >> 15


def _constant(number: int) -> int:
    """Return the upper 16 bits of a 32-bit constant."""
    return (number + (1 << 15)) >> 16


def _wrapped(numbers: Ints) -> Ints:
    return numbers.astype(np.int16).astype(np.int64)


def _saturated(numbers: Ints) -> Ints:
    found: Ints = np.clip(numbers, -(2**15), 2**15 - 1)
    return found
