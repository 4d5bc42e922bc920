"""Sums of products of 16-bit integers, combined from sums of high and low bytes.

The 8-bit kernels compute the partial sums, so no kernel has to accumulate in 64 bits. A 16-bit
integer is 256 * high + low; subtracting 128 converts the low byte to a signed byte.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from litegpu.codegen import INT
from litegpu.graph import DType, EpilogueOp, Node, Value
from litegpu.ops.base import COPY, NewValue
from litegpu.ops.common.functions import cast_name, of_integers
from litegpu.ops.exact import numbers
from litegpu.ops.exact.numbers import Multiplier

LOW_ZERO = -128
"""The stored low byte of the 16-bit integer 0."""
_MAX_TERMS = 2**16
"""The maximum number of products of a low byte and a weight whose sum fits 32 bits."""
MAX_PAIRS = 2**15
"""The maximum number of products of two low bytes whose sum fits 32 bits."""
_MAX_BIAS = 2**52
"""Maximum magnitude of biases for which float64 represents all sums exactly."""
_MAX_SHIFT = 7
"""The maximum left shift that the CPU applies to 64-bit sums."""


WIDENED = EpilogueOp(cast_name(INT, DType.INT64))
"""An epilogue op that converts sums of low bytes to 64 bits."""


@dataclass(frozen=True, slots=True)
class Bytes:
    """The high and low bytes of a 16-bit value, and the nodes that compute them."""

    high: Value
    low: Value
    nodes: tuple[Node, ...]


def split(index: int, value: Value, new_value: NewValue) -> Bytes:
    """Return the high and low bytes of an INT16 value; the nodes belong to node number `index`."""
    if value.data is not None:
        array = np.asarray(value.data)
        constants = (array >> 8).astype(np.int8), ((array & 255) - 128).astype(np.int8)
        high, low = (
            replace(value, id=new_value(value.shape, data), dtype=DType.INT8, data=data)
            for data in constants
        )
        return Bytes(high, low, ())
    high, low = (
        replace(value, id=new_value(value.shape, dtype=DType.INT8), dtype=DType.INT8)
        for _ in range(2)
    )
    nodes = (
        Node(index, COPY, 1, (value.id,), (part.id,), epilogue=(EpilogueOp(function),))
        for part, function in ((high, "HIGH_BYTE"), (low, "LOW_BYTE"))
    )
    return Bytes(high, low, tuple(nodes))


def check_terms(terms: int, most: int = _MAX_TERMS) -> str:
    """Return a reason if a sum has too many products."""
    return (
        ""
        if terms <= most
        else (f"The sums have {terms} products of INT16; at most {most} are supported.")
    )


def check_bias(bias: Value | None) -> str:
    """Return a reason if sums with the bias are too large for float64 to represent exactly."""
    if bias is None or np.abs(np.asarray(bias.data, np.float64)).max(initial=0) < _MAX_BIAS:
        return ""
    return f"The bias, tensor {bias.id}, has elements of 2^52 or more."


def check_multiplier(multiplier: Multiplier) -> str:
    """Return a reason if the CPU cannot apply the multiplier to 64-bit sums."""
    if multiplier.shift <= _MAX_SHIFT:
        return ""
    return (
        "The ratio of the scales is so large that the CPU shifts 64-bit sums by "
        f"{multiplier.shift} bits; at most {_MAX_SHIFT} are supported."
    )


def check_factor(factor: float) -> str:
    """Return a reason if the product of the factor and a 64-bit sum could overflow or underflow."""
    if 2.0**-60 < factor < 2.0**20:
        return ""
    return f"The ratio of the scales is so large that sums are multiplied by {factor:g}."


def long_sums(high: int, new_value: NewValue, bias: Value | None) -> tuple[EpilogueOp, ...]:
    """Return the epilogue ops that combine high-byte and low-byte sums into 64-bit sums."""
    joined = (WIDENED, weighted(high, 2**8))
    if bias is None:
        return joined
    terms = np.asarray(bias.data, np.int64).ravel()
    return (*joined, EpilogueOp(of_integers("ADD"), (_longs(terms.tolist(), new_value),)))


def weighted(sums: int, weight: int) -> EpilogueOp:
    """Return the epilogue op that adds other sums (a value id) times a weight."""
    return EpilogueOp("ADD_WEIGHTED", (sums,), attributes=(("weight", weight),))


def requantize_long(new_value: NewValue, multipliers: Sequence[Multiplier]) -> EpilogueOp:
    """Return the epilogue op that rescales 64-bit sums to the scale of the result.

    The op uses 15 bits of each multiplier, as the CPU does.
    """
    short, shifts = zip(*map(short_multiplier, multipliers), strict=True)
    operands = numbers.vector(new_value, short), numbers.vector(new_value, shifts)
    return EpilogueOp("REQUANTIZE_LONG", operands)


def short_multiplier(multiplier: Multiplier) -> tuple[int, int]:
    """Return the multiplier's 15 bits that the CPU uses for 64-bit sums, and the right shift."""
    return min((multiplier.number + (1 << 15)) >> 16, 2**15 - 1), 15 - multiplier.shift


def round_product(new_value: NewValue, factors: Sequence[float]) -> EpilogueOp:
    """Return the epilogue op that multiplies 64-bit sums by float64 factors and rounds."""
    bits = [struct.unpack("<q", struct.pack("<d", factor))[0] for factor in factors]
    return EpilogueOp("ROUND_PRODUCT", (_longs(bits, new_value),))


def _longs(elements: Sequence[int], new_value: NewValue) -> int:
    """Return an int64 constant with one element per channel, or one element if all are equal."""
    alike = len(set(elements)) == 1
    array = np.array(elements[0] if alike else elements, np.int64)
    return new_value(array.shape, array, dtype=DType.INT64)
