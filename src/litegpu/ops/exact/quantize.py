"""QUANTIZE and DEQUANTIZE, which convert between floats and stored integers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from math import inf

import numpy as np
import numpy.typing as npt

from litegpu.codegen import INT
from litegpu.graph import DType, EpilogueOp, Graph, Node, Value
from litegpu.ops.base import COPY, Exact, NewValue
from litegpu.ops.common import checks, types
from litegpu.ops.common.functions import cast_name, of_integers
from litegpu.ops.common.types import BYTES, QUANTIZED_TYPES
from litegpu.ops.exact import loops, numbers, tables
from litegpu.ops.exact.functions import lookup_name
from litegpu.ops.exact.numbers import Multiplier

_STORED = QUANTIZED_TYPES | {DType.INT32}
_RESULTS = {
    DType.FLOAT32: QUANTIZED_TYPES,
    DType.INT8: QUANTIZED_TYPES,
    DType.UINT8: QUANTIZED_TYPES,
    DType.INT16: _STORED - {DType.UINT8},
    DType.INT32: frozenset({DType.INT8, DType.INT16}),
}
"""The result types that the CPU supports, by source type."""
_MIN_SCALE = 2.0**-100
"""Minimum supported scale, for which the products with fractions are normal float32 numbers."""


class ExactQuantize(Exact):
    """QUANTIZE: converts float32 or stored integers to stored integers."""

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            checks.input_count(node, 1, 1),
            checks.operands(graph, node, (1,)),
            lambda: _check_result(graph, *_io(graph, node)),
            lambda: _check_source(graph, *_io(graph, node)),
        )

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        source, result = _io(graph, node)
        if source.dtype is DType.FLOAT32:
            epilogue = _from_floats(source, result, new_value)
        elif source.dtype in BYTES and result.dtype in BYTES:
            found = (tables.requantize(source, result, up=up) for up in (True, False))
            epilogue = _looked_up(source, 16, found, new_value)
        else:
            zero = new_value((), np.array(numbers.zero_point(source), np.int32))
            factor = [_between(source, result)]
            ends = numbers.zero_point(result), numbers.LIMITS[result.dtype]
            requantized = numbers.requantize(new_value, factor, [True], *ends)
            epilogue = (EpilogueOp(of_integers("SUB"), (zero,)), *requantized)
        return (Node(node.index, COPY, 1, node.inputs, node.outputs, epilogue=epilogue),)


class ExactDequantize(Exact):
    """DEQUANTIZE: converts integers to float32; 8-bit tensors may have per-channel scales."""

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            checks.input_count(node, 1, 1),
            checks.operands(graph, node, (1,)),
            check_dequantized(graph, node),
        )

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        (source, _) = _io(graph, node)
        return (dequantizing_node(node, source, node.outputs[0], new_value),)


def dequantizing_node(node: Node, source: Value, target: int, new_value: NewValue) -> Node:
    """Return the node that replaces `node` and converts stored integers to float32."""
    if source.dtype in BYTES and not _has_channels(source):
        found = (tables.dequantize(source, tail=tail) for tail in (False, True))
        epilogue = _looked_up(source, 8, found, new_value)
    else:
        scale, zero = _by_channel(source)
        epilogue = (
            EpilogueOp(of_integers("SUB"), (new_value(zero.shape, zero),)),
            EpilogueOp(cast_name(INT, DType.FLOAT32)),
            EpilogueOp("MUL", (new_value(scale.shape, scale),)),
            EpilogueOp("ROUNDED"),
        )
    return Node(node.index, COPY, 1, (source.id,), (target,), epilogue=epilogue)


def check_dequantized(graph: Graph, node: Node) -> str:
    """Require an integer type that the CPU dequantizes; INT16 needs the zero point 0."""
    source, result = _io(graph, node)
    if result.dtype is not DType.FLOAT32:
        return f"tensor {result.id} is {result.dtype.name} instead of FLOAT32."
    if _has_channels(source):
        return _check_channels(source)
    reason = numbers.check_tensors(graph, node.inputs, QUANTIZED_TYPES)
    if not reason and source.dtype is DType.INT16 and numbers.zero_point(source):
        return f"tensor {source.id} is INT16 and has the zero point {numbers.zero_point(source)}."
    return reason


def dequantized(value: Value) -> npt.NDArray[np.float32]:
    """Return the real numbers of a constant that passed `check_dequantized`."""
    data = np.asarray(value.data)
    if _has_channels(value) or value.dtype not in BYTES:
        scale, zero = _by_channel(value)
        return scale * (data - zero).astype(np.float32)
    body, tail = (tables.dequantize(value, tail=tail) for tail in (False, True))
    positions, bits = np.arange(data.size).reshape(data.shape), data.view(np.uint8)
    in_body = positions < loops.body(data.shape, 8).end
    return np.where(in_body, body[bits], tail[bits])


def _io(graph: Graph, node: Node) -> tuple[Value, Value]:
    return graph.values[node.inputs[0]], graph.values[node.outputs[0]]


def _check_result(graph: Graph, source: Value, result: Value) -> str:
    """Require one scale, or per-channel scales with which the CPU divides in float32."""
    if source.dtype is DType.FLOAT32 and _has_channels(result):
        reason = _check_channels(result, QUANTIZED_TYPES)
    else:
        reason = numbers.check_tensors(graph, (result.id,), _STORED)
    if reason or source.dtype is not DType.FLOAT32 or result.quantization is None:
        return reason
    least = min(result.quantization.scale)
    if least < _MIN_SCALE:
        return f"tensor {result.id} has the scale {least:g}, too small for float32 arithmetic."
    return ""


def _check_source(graph: Graph, source: Value, result: Value) -> str:
    if source.dtype is DType.FLOAT32 and result.dtype in _RESULTS[source.dtype]:
        return types.check_variable(source)
    if result.dtype not in _RESULTS.get(source.dtype, _STORED):
        return f"The CPU does not quantize {source.dtype.name} to {result.dtype.name}."
    return checks.first_of(
        numbers.check_tensors(graph, (source.id,), _STORED),
        lambda: _check_zeros(source, result),
        lambda: numbers.check_multiplier(_between(source, result)),
    )


def _check_zeros(source: Value, result: Value) -> str:
    ends = (source, result)
    if all(each.dtype is DType.INT16 for each in ends) and any(map(numbers.zero_point, ends)):
        return "The CPU rejects zero points if both input and output are INT16."
    return ""


def _between(source: Value, result: Value) -> Multiplier:
    return Multiplier.of(numbers.scale(source) / numbers.scale(result))


def _looked_up(
    source: Value, vector: int, found: Iterable[tables.Table], new_value: NewValue
) -> tuple[EpilogueOp, ...]:
    """Return the epilogue ops that look up bytes in the tables of a loop's body and tail.

    The epilogue has one table if both tables are equal, or if the loop has only a body or only a
    tail.
    """
    body, tail = found
    function = lookup_name(DType(body.dtype.name))
    coordinate = loops.body(source.shape, vector)
    if coordinate.is_all or not coordinate.end or body.tobytes() == tail.tobytes():
        table = body if coordinate.is_all else tail
        return (EpilogueOp(function, (new_value((256,), table),)),)
    both = new_value((256,), body), new_value((256,), tail)
    return coordinate.epilogue(function, EpilogueOp(function, both))


def _from_floats(source: Value, result: Value, new_value: NewValue) -> tuple[EpilogueOp, ...]:
    """Return the epilogue ops that quantize floats as the CPU's vector loop and its remainder do.

    The loop multiplies vectors of 8 by the inverse scale and rounds half to even. The remainder is
    divided in float64 and rounded half away from zero. Elements with per-channel scales are divided
    in float32 and rounded half away from zero.
    """
    _, zero = _by_channel(result)
    ending = (
        *((EpilogueOp(of_integers("ADD"), (new_value(zero.shape, zero),)),) if zero.any() else ()),
        numbers.clamp(numbers.LIMITS[result.dtype]),
    )
    if _has_channels(result):
        return (*_divided(source, result, new_value), *ending)
    inverse = ("inverse", float(np.float32(1 / numbers.scale(result))))
    body = loops.body(source.shape, 8)
    if body.is_all:
        return (EpilogueOp("ROUND_TO_INT", attributes=(inverse,)), *ending)
    tail = _divided(source, result, new_value)
    if not body.end:
        return (*tail, *ending)
    attributes = (inverse, ("end", body.end))
    return (*tail, EpilogueOp("ROUND_TO_INT_BODY", (source.id,), attributes=attributes), *ending)


def _divided(source: Value, result: Value, new_value: NewValue) -> tuple[EpilogueOp, ...]:
    """Return the epilogue ops that divide by scales and round as the CPU's scalar code does."""
    scale, zero = _by_channel(result)

    def constant(array: npt.NDArray[np.float64]) -> int:
        return new_value(scale.shape, np.asarray(array, np.float32), precise=True)

    high = np.ldexp(np.trunc(np.frexp(scale)[0] * 2**12), np.frexp(scale)[1] - 12)
    terms = constant(high), constant(scale - high)
    nearest = "ROUND_FLOAT_QUOTIENT" if _has_channels(result) else "ROUND_QUOTIENT"
    return (
        EpilogueOp("MAGNITUDE_BELOW", (constant(1 / scale.astype(np.float64)),)),
        EpilogueOp(nearest, (source.id, *terms)),
        EpilogueOp("MIN_OUTSIDE", (source.id, *map(constant, _ends_of_int32(scale, zero)))),
    )


def _ends_of_int32(
    scale: npt.NDArray[np.float32], zero: npt.NDArray[np.int32]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Return the open interval of floats whose rounded quotients plus zero point fit int32."""
    below, above = np.empty(scale.shape), np.empty(scale.shape)
    single = scale.size > 1
    for index in np.ndindex(*scale.shape):
        step, shift = Fraction(float(scale[index])), int(zero[index])
        above[index] = _least_rounded_to(2**31 - max(shift, 0), step, single)
        below[index] = -_least_rounded_to(2**31 + 1 + min(shift, 0), step, single)
    return below, above


def _least_rounded_to(whole: int, step: Fraction, single: bool) -> np.float32:
    """Return the least positive float32 that rounds half up to `whole` steps or more.

    If `single`, the quotient is first rounded to float32, half to even, and is then an integer.
    """
    if not single:
        return _least_above((whole - Fraction(1, 2)) * step)
    found = np.float32(whole)
    if int(found) < whole:
        found = np.nextafter(found, np.float32(inf))
    before = np.nextafter(found, np.float32(0))
    middle = (Fraction(float(before)) + Fraction(float(found))) / 2
    return _least_above(middle * step, itself=not found.view(np.int32) & 1)


def _least_above(number: Fraction, itself: bool = True) -> np.float32:
    """Return the least float32 above a number, or the number if `itself` and it is a float32."""
    found = np.float32(float(number))
    if np.isinf(found):
        return found
    short = Fraction(float(found)) - number
    above = short > 0 or (short == 0 and itself)
    return found if above else np.nextafter(found, np.float32(inf))


def _has_channels(value: Value) -> bool:
    return value.quantization is not None and len(value.quantization.scale) > 1


def _by_channel(value: Value) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int32]]:
    """Return scales and zero points reshaped to the value's rank, so that they broadcast."""
    found = value.quantization
    assert found is not None
    shape = [1] * len(value.shape)
    if len(found.scale) > 1:
        shape[found.dimension] = -1
    zero = np.broadcast_to(np.array(found.zero_point, np.int32), len(found.scale))
    return np.array(found.scale, np.float32).reshape(shape), zero.reshape(shape)


def _check_channels(value: Value, dtypes: frozenset[DType] = BYTES) -> str:
    """Require per-channel scales and zero points, along an axis that kernels support."""
    found = value.quantization
    assert found is not None
    rank, count = len(value.shape), len(found.scale)
    known = 0 <= found.dimension < rank and value.shape[found.dimension] == count
    if value.dtype not in dtypes or len(found.zero_point) not in (1, count) or not known:
        return f"tensor {value.id}, {value.dtype.name}, has {count} scales instead of 1."
    if rank > 4 and found.dimension < rank - 3:
        return f"tensor {value.id} has scales along dimension {found.dimension} of {rank}."
    if not all(0 < each < inf for each in found.scale):
        return f"tensor {value.id} has scales that are no positive numbers."
    return types.check_variable(value)
