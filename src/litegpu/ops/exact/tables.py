"""Lookup tables of functions of one byte: 256 entries, indexed by the byte's bits.

Some CPU kernels use lookup tables; other CPU kernels compute each element. For functions of 16
bits, the runtime's CPU kernels compute the table of all 65,536 integers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache
from itertools import zip_longest
from math import isinf
from typing import Any

import numpy as np
import numpy.typing as npt

from litegpu.graph import DType, Node, Quantization, Value
from litegpu.ops.exact import c_library, numbers
from litegpu.ops.exact.c_library import Floats
from litegpu.ops.exact.integers import Ints, multiply_high, requantized, round_shift
from litegpu.ops.exact.numbers import Multiplier, float32
from litegpu.runtime_abi import kernels

Table = npt.NDArray[Any]


def stored(dtype: DType) -> Ints:
    """Return all integers of a type in the order of their bit patterns: 0, 1, ... -2, -1."""
    bits = np.arange(1 << 8 * dtype.size, dtype=f"uint{8 * dtype.size}")
    return bits.view(dtype.value).astype(np.int64)


_End = tuple[DType, Quantization]


def by_kernel(node: Node, source: Value, result: Value) -> Table | None:
    """Return the lookup table of a node with one input, computed by the runtime's CPU kernel.

    If the kernel rejects negative numbers, their entries equal the entry of zero. The result is
    None if the kernel rejects the node.
    """
    return _by_kernel(*_key(node), _end(source), _end(result))


@cache
def _by_kernel(
    op: str, version: int, params: tuple[tuple[str, Any], ...], source: _End, result: _End
) -> Table | None:
    every = stored(source[0])
    node = Node(0, op, version, (0,), (1,), dict(params))
    for data in (every, np.maximum(every, source[1].zero_point[0])):
        found = _results(node, [data], [source, result])
        if found is not None:
            return found
    return None


def by_pairs(node: Node, first: Value, second: Value, result: Value) -> Table | None:
    """Return the results for all pairs of two bytes, computed by the runtime's CPU kernel.

    The entry of (a, b) is at a + 256 * b, modulo 2^16. If the kernel rejects the zero point as the
    second byte, the function uses the entries of the next byte. The result is None if the kernel
    rejects the node.
    """
    return _by_pairs(*_key(node), _end(first), _end(second), _end(result))


@cache
def _by_pairs(
    op: str,
    version: int,
    params: tuple[tuple[str, Any], ...],
    first: _End,
    second: _End,
    result: _End,
) -> Table | None:
    every = stored(first[0])
    divisors = np.where(every == second[1].zero_point[0], np.roll(every, -1), every)
    node = Node(0, op, version, (0, 1), (2,), dict(params))
    found = _results(node, [every[None], divisors[:, None]], [first, second, result])
    if found is None:
        return None
    table = np.empty(every.size**2, found.dtype)
    table[(every[None] + 256 * every[:, None]) & 0xFFFF] = found
    return table


def _key(node: Node) -> tuple[str, int, tuple[tuple[str, Any], ...]]:
    return node.op, node.version, tuple(sorted(node.params.items()))


def _end(value: Value) -> _End:
    assert value.quantization is not None
    return value.dtype, value.quantization


def _results(node: Node, operands: Sequence[Ints], ends: Sequence[_End]) -> Table | None:
    """Return a node's result, computed by the runtime's CPU kernel; None if the kernel rejects it.

    `ends` has the types and scales of the operands and of the result.
    """
    shape = np.broadcast_shapes(*(each.shape for each in operands))
    values = {}
    for v, ((dtype, scales), data) in enumerate(zip_longest(ends, operands)):
        known = None if data is None else data.astype(dtype.value)
        size = shape if known is None else known.shape
        values[v] = Value(v, "", size, dtype, known, quantization=scales)
    found = kernels.compute(node, values, math.prod(shape) * ends[-1][0].size)
    return None if found is None else found[0]


def centred(value: Value) -> Ints:
    """Return all integers of a value's type minus its zero point."""
    return stored(value.dtype) - numbers.zero_point(value)


def saturated(found: Ints, value: Value) -> Table:
    """Return integers plus the value's zero point, clamped to its type."""
    low, high = numbers.LIMITS[value.dtype]
    return np.clip(found + numbers.zero_point(value), low, high).astype(value.dtype.value)


def of_reals(function: Callable[[Floats], Floats]) -> Callable[[Node, Value, Value], Table]:
    """Return a function that builds the table of a real function, in float32 as on the CPU."""

    def table(node: Node, source: Value, result: Value) -> Table:
        return _of_reals(function(_reals(source)), result)

    return table


def _reals(value: Value) -> Floats:
    return np.float32(numbers.scale(value)) * centred(value).astype(np.float32)


def _of_reals(found: Floats, result: Value) -> Table:
    """Return real numbers quantized to the result's type, rounded half away from zero."""
    with np.errstate(over="ignore"):
        scaled = found * (np.float32(1) / np.float32(numbers.scale(result)))
    ends = np.clip(scaled, -512, 512)  # beyond any byte
    whole = np.trunc(ends)
    away = whole + np.copysign(np.abs(ends - whole) >= 0.5, ends)
    return saturated(away.astype(np.int64), result)


def logistic(numbers: Floats) -> Floats:
    """Return 1 / (1 + e^-x)."""
    with np.errstate(over="ignore"):
        return np.float32(1) / (np.float32(1) + c_library.expf(-numbers))


def elu(numbers: Floats) -> Floats:
    """Return x if x >= 0, else e^x - 1."""
    return np.where(numbers < 0, c_library.expm1f(numbers), numbers)


def gelu(node: Node, source: Value, result: Value) -> Table:
    """Return x times the normal distribution function, or its approximation by tanh."""
    x, half = _reals(source), np.float32(0.5)
    if node.params["approximate"]:
        cubic = x + np.float32(0.044715) * x * x * x
        return _of_reals(half * x * (np.float32(1) + c_library.tanhf(_TANH_FACTOR * cubic)), result)
    return _of_reals(half * x * c_library.erfcf(x * np.float32(-math.sqrt(0.5))), result)


_TANH_FACTOR = np.float32(math.sqrt(2 / math.pi))


def log(node: Node, source: Value, result: Value) -> Table:
    """Return logarithms; the least stored integer where the logarithm is undefined."""
    reals = _reals(source)
    positive = reals > 0
    low = numbers.LIMITS[result.dtype][0] - numbers.zero_point(result)
    least = np.float32(low) * np.float32(numbers.scale(result))
    found = c_library.logf(np.where(positive, reals, np.float32(1)))
    return _of_reals(np.where(positive, found, least), result)


def absolute(node: Node, source: Value, result: Value) -> Table:
    """Return absolute values, rescaled if the scales differ."""
    found = np.abs(centred(source))
    if numbers.scale(source) != numbers.scale(result):
        found = requantized(found, ratio(source, result))
    return saturated(found, result)


def ratio(source: Value, result: Value, factor: float = 1.0) -> Multiplier:
    """Return the multiplier source scale * factor / result scale, computed in float32."""
    scaled = float32(numbers.scale(source) * float32(factor))
    return Multiplier.of(float32(scaled / numbers.scale(result)))


def relu(low: float, high: float) -> Callable[[Node, Value, Value], Table]:
    """Return a function that builds the table of a clamp to real limits."""

    def table(node: Node, source: Value, result: Value) -> Table:
        zero, step = numbers.zero_point(result), numbers.scale(result)
        ends = numbers.LIMITS[result.dtype]
        bounds = [
            end if isinf(limit) else zero + numbers.rounded(float32(float32(limit) / step))
            for limit, end in zip((low, high), ends, strict=True)
        ]
        found = requantized(centred(source), ratio(source, result)) + zero
        clipped = np.clip(found, max(bounds[0], ends[0]), min(bounds[1], ends[1]))
        return clipped.astype(result.dtype.value)

    return table


def leaky_relu(node: Node, source: Value, result: Value) -> Table:
    """Return x if x >= 0, else alpha * x, with a separate multiplier for each case."""
    alpha = float32(node.params["alpha"])
    found, sign = centred(source), -1 if alpha < 0 else 1
    below = requantized(found, ratio(source, result, abs(alpha))) * sign
    return saturated(np.where(found < 0, below, requantized(found, ratio(source, result))), result)


def hard_swish(node: Node, source: Value, result: Value) -> Table:
    """Return x * relu6(x + 3) / 6, computed in 16-bit integers."""
    outer, gate = _swish_multipliers(source, result)
    raised = centred(source) << 7
    before = _high16(raised, outer)
    found = np.clip(raised << max(gate.shift - 1, 0), -(2**15), 2**15 - 1)
    found = _high16(found, gate)
    if gate.shift > 0:
        found = np.clip(found << 1, -(2**15), 2**15 - 1)
    found = _shift16(found, gate.right)
    product = ((found + 2**15) >> 1) * before
    cut = np.sign(product) * (np.abs(product) >> 15)
    sums = _shift16(cut, outer.right) + numbers.zero_point(result)
    low, high = numbers.LIMITS[result.dtype]
    return np.clip(sums.astype(np.int16), low, high).astype(result.dtype.value)


def check_hard_swish(node: Node, source: Value, result: Value) -> str:
    """Require a result whose scale is large enough for the CPU."""
    if _swish_multipliers(source, result)[0].shift <= 0:
        return ""
    return "The scale of the result is below the input's scale / 128, which the CPU rejects."


def _swish_multipliers(source: Value, result: Value) -> tuple[Multiplier, Multiplier]:
    """Return two multipliers: one from input * 2^7 to the result, one that maps 3 to 2^15."""
    fine = float32(numbers.scale(source) / 128)
    third = float32(float32(3) / 2**15)
    outer = Multiplier.of(float32(fine / numbers.scale(result)))
    return outer, Multiplier.of(float32(fine / third))


def _high16(found: Ints, multiplier: Multiplier) -> Ints:
    """Return products with a multiplier's upper 16 bits, divided by 2^15, rounded half up."""
    number = min((multiplier.number + (1 << 15)) >> 16, 2**15 - 1)
    high: Ints = np.minimum((found * number + (1 << 14)) >> 15, 2**15 - 1)
    return high


def _shift16(found: Ints, bits: int) -> Ints:
    """Return 16-bit integers / 2^bits; a shift by more than 15 bits returns only the sign."""
    return round_shift(found, bits) if bits < 16 else np.where(found < 0, -1, 1)


def rsqrt(node: Node, source: Value, result: Value) -> Table:
    """Return 1 / sqrt(x), or the greatest integer for 0 and negative x, which the CPU rejects."""
    scaling = Multiplier.of(1 / root_scale(source, result))
    found = [_rsqrt(int(each), scaling) for each in centred(source)]
    low, high = numbers.LIMITS[result.dtype]
    zero = numbers.zero_point(result)
    entries = [high if each is None else min(max(each + zero, low), high) for each in found]
    return np.array(entries, result.dtype.value)


def root_scale(source: Value, result: Value) -> float:
    """Return the divisor that the CPU applies to the inverse square root of stored integers."""
    return float32(float(np.sqrt(np.float32(numbers.scale(source)))) * numbers.scale(result))


def _rsqrt(number: int, scaling: Multiplier) -> int | None:
    if number <= 0:
        return None
    root, right = _inverse_root(number)
    first = requantized(np.array([1]), Multiplier(root, 20 - right))
    return int(requantized(first, Multiplier(scaling.number, scaling.shift - 20))[0])


def _inverse_root(number: int) -> tuple[int, int]:
    """Return 1 / sqrt(number) as a 31-bit integer and the right shift that follows it.

    The function does five Newton steps, x * (3 - number * x^2) / 2, with 28 fraction bits.
    """
    if number == 1:
        return 2**31 - 1, 0
    pairs = (31 - number.bit_length()) // 2 - 1
    half = ((number << (2 * pairs - 1)) + 1) >> 1
    x = 1 << 28
    for _ in range(5):
        cube = _saturated32(multiply_high(multiply_high(x, x), x) << 6)
        x = _saturated32((multiply_high(3 << 27, x) - multiply_high(half, cube)) << 3)
    product, right = multiply_high(x, _HALF_ROOT), 11 - pairs
    return (product << -right, 0) if right < 0 else (product, right)


_HALF_ROOT = 1518500250
"""The square root of 1/2 with 31 fraction bits."""


def _saturated32(number: int) -> int:
    return min(max(number, -(2**31)), 2**31 - 1)


def requantize(source: Value, result: Value, up: bool) -> Table:
    """Return the table between two quantizations of a type, rounded half up or away from zero."""
    factor = Multiplier.of(numbers.scale(source) / numbers.scale(result))
    return saturated(requantized(centred(source), factor, away=not up), result)


def dequantize(source: Value, tail: bool) -> Floats:
    """Return the real numbers of all bytes, as computed in the loop's body or its `tail`."""
    scale, zero = numbers.scale(source), numbers.zero_point(source)
    if tail:
        return (centred(source) * scale).astype(np.float32)
    shift = np.float32(-zero * scale)
    return stored(source.dtype).astype(np.float32) * np.float32(scale) + shift
