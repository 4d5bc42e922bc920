"""Bit-exact logf of the C library (float32), computed with 32-bit integers.

The logf of glibc and musl writes a number as z * 2^k with z near 1. A table contains the inverse
and the logarithm of the middle of each of 16 intervals. The logf function divides z by the middle
of its interval and adds a polynomial:

    r = z * inverse - 1,  log = logarithm + k * ln 2 + r + r^2 * (A2 + A1 * r + A0 * r^2)

The C library computes the polynomial in float64 and rounds the logarithm to float32 once.
Fixed-point numbers have 61 fraction bits in two words. An exhaustive comparison showed that the
fixed-point logarithm rounds to the same float32 for every integer from 1 to 2^24.
"""

from __future__ import annotations

from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from litegpu.codegen import literal
from litegpu.ops.exact import c_library

_INTERVALS = (
    ("0x1.661ec79f8f3bep+0", "-0x1.57bf7808caadep-2"),
    ("0x1.571ed4aaf883dp+0", "-0x1.2bef0a7c06ddbp-2"),
    ("0x1.49539f0f010bp+0", "-0x1.01eae7f513a67p-2"),
    ("0x1.3c995b0b80385p+0", "-0x1.b31d8a68224e9p-3"),
    ("0x1.30d190c8864a5p+0", "-0x1.6574f0ac07758p-3"),
    ("0x1.25e227b0b8eap+0", "-0x1.1aa2bc79c81p-3"),
    ("0x1.1bb4a4a1a343fp+0", "-0x1.a4e76ce8c0e5ep-4"),
    ("0x1.12358f08ae5bap+0", "-0x1.1973c5a611cccp-4"),
    ("0x1.0953f419900a7p+0", "-0x1.252f438e10c1ep-5"),
    ("0x1p+0", "0x0p+0"),
    ("0x1.e608cfd9a47acp-1", "0x1.aa5aa5df25984p-5"),
    ("0x1.ca4b31f026aap-1", "0x1.c5e53aa362eb4p-4"),
    ("0x1.b2036576afce6p-1", "0x1.526e57720db08p-3"),
    ("0x1.9c2d163a1aa2dp-1", "0x1.bc2860d22477p-3"),
    ("0x1.886e6037841edp-1", "0x1.1058bc8a07ee1p-2"),
    ("0x1.767dcf5534862p-1", "0x1.4043057b6ee09p-2"),
)
"""The inverse and the logarithm of each interval's middle."""
_POLYNOMIAL = ("-0x1.00ea348b88334p-2", "0x1.5575b0be00b6ap-2", "-0x1.ffffef20a4123p-2")
"""The coefficients A0, A1, A2 of the polynomial."""
_LN_2 = "0x1.62e42fefa39efp-1"

MIN_BITS = 0x3F330000
"""The bits of the float32 at the start of the first interval, for k = 0."""
INTERVAL_BITS = 19
"""Number of low bits of a float32 that give the position in an interval; higher bits select the
interval.
"""
MOST = 2**24
"""The value at which a float32 sum of numbers up to 1 stops growing."""
SCALE = 32
"""The divisor of stored logarithms, which makes them less than 1."""

_SAMPLES = np.array(
    [1.0235157, 1.06833088, 1.21942091, 1.522982, 2.65032697, 4.67085695, 4191.16895],
    np.float32,
)
_LOGARITHMS = (
    *("0x1.7cd22cp-6", "0x1.0ebc44p-4", "0x1.964632p-3", "0x1.aec43p-2"),
    *("0x1.f309a8p-1", "0x1.8a956cp+0", "0x1.0ae74ep+3"),
)
"""Results of logf for the samples, which differ from the correctly rounded values."""


def words(number: Fraction) -> tuple[int, int]:
    """Return a number between -1 and 1 as high * 2^-31 + low * 2^-61, 0 <= low < 2^30."""
    whole = round(number * 2**61)
    return whole >> 30, whole & (2**30 - 1)


@cache
def table(most: int) -> npt.NDArray[np.int32]:
    """Return half the inverse and the logarithm / SCALE of each interval from 1 to `most`.

    The first rows belong to numbers below 1. The table has the shape [rows, 4], since a row has two
    numbers of two words.
    """
    last = int(np.float32(min(most, MOST)).view(np.int32)) - MIN_BITS >> INTERVAL_BITS
    rows = []
    for index in range(last + 1):
        inverse, middle = map(_exactly, _INTERVALS[index % len(_INTERVALS)])
        logarithm = middle + index // len(_INTERVALS) * _exactly(_LN_2)
        rows.append((*words(inverse / 2), *words(logarithm / SCALE)))
    return np.array(rows, np.int32)


def template_words() -> dict[str, Any]:
    """Return the constants that the template `_logarithm.jinja` needs.

    The template multiplies powers of v = r / 2 by the coefficients, whose signs alternate.
    """
    fourth, third, second = (abs(_exactly(each)) for each in _POLYNOMIAL)
    return {
        "least": MIN_BITS,
        "bits": INTERVAL_BITS,
        "unit": literal(SCALE * 2.0**-24),
        "first": words(Fraction(2, SCALE)),
        "second": words(second * 4 / SCALE),
        "third": words(third * 8 / SCALE),
        "fourth": words(fourth * 16 / SCALE),
    }


@cache
def known() -> bool:
    """Whether the C library of this machine computes logf this way."""
    wanted = [float.fromhex(each) for each in _LOGARITHMS]
    return bool(c_library.logf(_SAMPLES).tolist() == wanted)


def _exactly(number: str) -> Fraction:
    return Fraction(float.fromhex(number))
