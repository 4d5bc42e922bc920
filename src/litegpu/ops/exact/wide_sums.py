"""Sums of products of integers of 16 bits: of the high and of the low byte of each, then joined.

So the kernels for bytes compute them, and no kernel adds up 64 bits. An integer is 256 * high +
low; the low byte is stored less 128, as a signed one.
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
"""What the low byte of 0 is stored as."""
_MOST_TERMS = 2**16
"""Products of a low byte and a weight whose sum 32 bits hold."""
MOST_PAIRS = 2**15
"""Products of two low bytes whose sum 32 bits hold."""
_LARGEST_BIAS = 2**52
"""Sums with smaller ones are integers that a double holds."""
_LARGEST_SHIFT = 7
"""Bits by which the CPU shifts sums of 64 bits to the left."""


WIDENED = EpilogueOp(cast_name(INT, DType.INT64))
"""Makes 64 bits of sums of low bytes."""


@dataclass(frozen=True, slots=True)
class Bytes:
    """Both bytes of each element of a value, and the nodes that make them."""

    high: Value
    low: Value
    nodes: tuple[Node, ...]


def split(index: int, value: Value, new_value: NewValue) -> Bytes:
    """Return the bytes of a value of INT16, on which node number `index` works."""
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


def check_terms(terms: int, most: int = _MOST_TERMS) -> str:
    """Require sums of few enough products."""
    return "" if terms <= most else f"Its sums have {terms} products of INT16, at most {most} fit."


def check_bias(bias: Value | None) -> str:
    """Require a bias with which sums are integers that a double holds."""
    if bias is None or np.abs(np.asarray(bias.data, np.float64)).max(initial=0) < _LARGEST_BIAS:
        return ""
    return f"The bias, tensor {bias.id}, has elements of 2^52 or more."


def check_multiplier(multiplier: Multiplier) -> str:
    """Require a multiplier that the CPU applies to sums of 64 bits."""
    if multiplier.shift <= _LARGEST_SHIFT:
        return ""
    return (
        "Its scales lie so far apart that the CPU shifts sums of 64 bits by "
        f"{multiplier.shift} bits, at most {_LARGEST_SHIFT} are handled."
    )


def check_factor(factor: float) -> str:
    """Require a factor for which a product with a sum of 64 bits is no extreme number."""
    if 2.0**-60 < factor < 2.0**20:
        return ""
    return f"Its scales lie so far apart that sums are multiplied by {factor:g}."


def long_sums(high: int, new_value: NewValue, bias: Value | None) -> tuple[EpilogueOp, ...]:
    """Return the epilogue ops that make sums of 64 bits of those of low bytes."""
    joined = (WIDENED, weighted(high, 2**8))
    if bias is None:
        return joined
    terms = np.asarray(bias.data, np.int64).ravel()
    return (*joined, EpilogueOp(of_integers("ADD"), (_longs(terms.tolist(), new_value),)))


def weighted(sums: int, weight: int) -> EpilogueOp:
    """Return the epilogue op that adds other sums (a value id) times a weight."""
    return EpilogueOp("ADD_WEIGHTED", (sums,), attributes=(("weight", weight),))


def requantize_long(new_value: NewValue, multipliers: Sequence[Multiplier]) -> EpilogueOp:
    """Return the epilogue op that brings sums of 64 bits to the scale of the result.

    The CPU keeps 15 bits of a multiplier.
    """
    short = [min((each.number + (1 << 15)) >> 16, 2**15 - 1) for each in multipliers]
    shifts = [15 - each.shift for each in multipliers]
    operands = numbers.vector(new_value, short), numbers.vector(new_value, shifts)
    return EpilogueOp("REQUANTIZE_LONG", operands)


def round_product(new_value: NewValue, factors: Sequence[float]) -> EpilogueOp:
    """Return the epilogue op that multiplies sums of 64 bits by doubles, and rounds them."""
    bits = [struct.unpack("<q", struct.pack("<d", factor))[0] for factor in factors]
    return EpilogueOp("ROUND_PRODUCT", (_longs(bits, new_value),))


def _longs(elements: Sequence[int], new_value: NewValue) -> int:
    """Return a constant of int64 with an element for each channel; one if all are alike."""
    alike = len(set(elements)) == 1
    array = np.array(elements[0] if alike else elements, np.int64)
    return new_value(array.shape, array, dtype=DType.INT64)
