"""Multipliers, bounds and scales of quantized operations, computed as in the CPU's kernels."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from litegpu.graph import DType, EpilogueOp, Graph, Node, Value
from litegpu.ops.base import NewValue
from litegpu.ops.common.types import BYTES, check_variable, joined

LIMITS = {
    DType.INT8: (-(2**7), 2**7 - 1),
    DType.UINT8: (0, 2**8 - 1),
    DType.INT16: (-(2**15), 2**15 - 1),
    DType.INT32: (-(2**31), 2**31 - 1),
}
"""The least and the greatest stored integer of each type."""


@dataclass(frozen=True, slots=True)
class Multiplier:
    """A factor `number` * 2^(shift - 31), where `number` is a 31-bit integer or 0."""

    number: int
    shift: int

    @classmethod
    def of(cls, factor: float) -> Multiplier:
        """Round a factor to 31 bits, half away from zero.

        An infinite or NaN factor gets a shift that `check_multiplier` rejects.
        """
        if factor == 0:
            return cls(0, 0)
        if not math.isfinite(factor):
            return cls(2**30, 1025)
        fraction, shift = math.frexp(factor)
        number = math.floor(fraction * 2**31 + 0.5)
        if number == 2**31:
            number, shift = number // 2, shift + 1
        return cls(0, 0) if shift < -31 else cls(number, shift)

    @property
    def left(self) -> int:
        """Number of bits by which kernels shift left before the multiplication."""
        return max(self.shift, 0)

    @property
    def right(self) -> int:
        """Number of bits by which kernels shift right after the multiplication."""
        return max(-self.shift, 0)


def scale(value: Value) -> float:
    """Return the scale of a value with per-tensor quantization; see `check_tensors`."""
    assert value.quantization is not None
    return value.quantization.scale[0]


def zero_point(value: Value) -> int:
    """Return the zero point of a value with per-tensor quantization."""
    assert value.quantization is not None
    return value.quantization.zero_point[0]


def float32(number: float) -> float:
    """Return a number rounded to float32; infinity if it overflows."""
    with np.errstate(over="ignore"):
        return float(np.float32(number))


def rounded(number: float) -> int:
    """Return the nearest integer, rounded half away from zero."""
    return int(math.copysign(math.floor(abs(number) + 0.5), number))


def bounds(activation: str, value: Value) -> tuple[int, int]:
    """Return the least and the greatest stored integer of a value after a fused activation."""
    low, high = LIMITS[value.dtype]
    zero = zero_point(value)

    def stored(real: float) -> int:
        return zero + rounded(float32(real / scale(value)))

    if activation == "relu":
        return max(low, stored(0.0)), high
    if activation == "relu6":
        return max(low, stored(0.0)), min(high, stored(6.0))
    if activation == "relu_n1_to_1":
        return max(low, stored(-1.0)), min(high, stored(1.0))
    return low, high


_LARGEST = {"relu": 0.0, "relu6": 6.0, "relu_n1_to_1": 1.0}
"""The largest magnitude among the bounds of a fused activation."""
_BOUNDS = ("none", *_LARGEST)


def check_activation(node: Node, known: Sequence[str] = _BOUNDS) -> str:
    """Require a fused activation that the CPU applies to integers: a clamp for most ops."""
    found = node.params.get("activation", "none")
    return "" if found in known else f"Fused activation {found} of quantized tensors."


def check_bounds(graph: Graph, node: Node) -> str:
    """Require that the fused activation's bounds fit the stored type at the result's scale."""
    if (reason := check_activation(node)) or node.params.get("activation", "none") == "none":
        return reason
    result, largest = graph.values[node.outputs[0]], _LARGEST[node.params["activation"]]
    if float32(largest / scale(result)) < 2**31:
        return ""
    return f"tensor {result.id} has the scale {scale(result):g}, too fine for a fused activation."


def check_tensors(graph: Graph, tensors: Sequence[int], dtypes: frozenset[DType] = BYTES) -> str:
    """Require that tensors (value ids) have one of these types, a single scale and a zero point."""
    for v in tensors:
        value = graph.values[v]
        if value.dtype is DType.FLOAT32:
            return (
                f"tensor {v} is FLOAT32 among quantized ones (dynamic-range quantization), which "
                'quantized="float" computes.'
            )
        if value.dtype not in dtypes:
            return f"tensor {v} is {value.dtype.name} instead of {joined(dtypes)}."
        if reason := check_variable(value):
            return reason
        found = value.quantization
        if found is None or len(found.scale) != 1 or len(found.zero_point) != 1:
            return f"tensor {v} has {len(found.scale) if found else 0} scales instead of 1."
        if not (0 < found.scale[0] < math.inf):
            return f"tensor {v} has the scale {found.scale[0]:g}."
        low, high = LIMITS[value.dtype]
        if not low <= found.zero_point[0] <= high:
            return f"tensor {v} has the zero point {found.zero_point[0]}, beyond its type."
    return ""


def check_io(graph: Graph, node: Node, dtypes: frozenset[DType] = BYTES) -> str:
    """Require that the first input and the result have one of these types and a single scale."""
    source, result = graph.values[node.inputs[0]], graph.values[node.outputs[0]]
    reason = check_tensors(graph, (source.id, result.id), dtypes)
    if reason or source.dtype is result.dtype:
        return reason
    return f"Its input is {source.dtype.name}, its result {result.dtype.name}."


def check_same_types(graph: Graph, tensors: Sequence[int]) -> str:
    """Require that all tensors (value ids) have the same type."""
    dtypes = [graph.values[v].dtype for v in tensors]
    if len(set(dtypes)) == 1:
        return ""
    return f"Its quantized tensors have different types: {', '.join(d.name for d in dtypes)}."


def check_no_zeros(graph: Graph, tensors: Sequence[int]) -> str:
    """Require that 16-bit tensors (value ids) have the zero point 0, as the CPU does."""
    for v in tensors:
        if found := zero_point(graph.values[v]):
            return f"tensor {v} is INT16 and has the zero point {found}."
    return ""


def check_one_scale(graph: Graph, tensors: Iterable[int], symmetric: bool = True) -> str:
    """Require tensors (value ids) with one positive scale and one zero point, 0 if `symmetric`."""
    for v in tensors:
        found = graph.values[v].quantization
        if found is None or len(found.scale) != 1 or not found.scale[0] > 0:
            alike = False
        else:
            alike = not any(found.zero_point) if symmetric else len(found.zero_point) == 1
        if not alike:
            zero = "the zero point 0" if symmetric else "one zero point"
            return f"tensor {v} needs one scale and {zero}."
    return ""


def check_multiplier(multiplier: Multiplier) -> str:
    """Require a multiplier whose shift the CPU supports."""
    if multiplier.left < 32:
        return ""
    return (
        f"The ratio of the scales is so large that the CPU shifts integers by {multiplier.left} "
        "bits."
    )


def scalar(new_value: NewValue, number: int) -> int:
    """Return an int32 constant with one element, as an operand of epilogue ops."""
    return new_value((), np.array(number, np.int32), dtype=DType.INT32)


def vector(new_value: NewValue, numbers: Sequence[int]) -> int:
    """Return an int32 constant with one element per channel, or one element if all are equal."""
    if len(set(numbers)) == 1:
        return scalar(new_value, numbers[0])
    wrapped = [(int(n) + 2**31) % 2**32 - 2**31 for n in numbers]
    return new_value((len(wrapped),), np.array(wrapped, np.int32), dtype=DType.INT32)


def requantize(
    new_value: NewValue,
    multipliers: Sequence[Multiplier],
    away: Sequence[bool],
    zero: int,
    limits: tuple[int, int],
) -> tuple[EpilogueOp, ...]:
    """Return the epilogue ops that requantize sums of products.

    `multipliers` and `away` have one entry, or one entry per channel. If `away` is true, results
    are rounded half away from zero, else half up. `limits` are the least and the greatest result.
    """
    operands = (
        vector(new_value, [each.number for each in multipliers]),
        vector(new_value, [each.left for each in multipliers]),
        vector(new_value, [each.right for each in multipliers]),
    )
    epilogue_op = EpilogueOp("REQUANTIZE_UP", operands)
    if any(away):
        directions = vector(new_value, [int(each) for each in away])
        epilogue_op = EpilogueOp("REQUANTIZE", (*operands, directions))
    return (epilogue_op, *shifted(new_value, zero), clamp(limits))


def shifted(new_value: NewValue, zero: int) -> tuple[EpilogueOp, ...]:
    """Return the epilogue op that adds a zero point, or no op if the zero point is 0."""
    return (EpilogueOp("INTEGER_ADD", (scalar(new_value, zero),)),) if zero else ()


def clamp(limits: tuple[int, int]) -> EpilogueOp:
    """Return the epilogue op that clamps integers to the limits."""
    return EpilogueOp("CLAMP", attributes=(("low", limits[0]), ("high", limits[1])))
