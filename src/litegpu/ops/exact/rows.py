"""Quantized SOFTMAX, LOG_SOFTMAX and L2_NORMALIZATION over the last axis."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from litegpu.graph import DType, Graph, Node, Value
from litegpu.ops.base import Exact, NewValue
from litegpu.ops.common import checks
from litegpu.ops.common.types import QUANTIZED_TYPES
from litegpu.ops.exact import logarithms, numbers
from litegpu.ops.exact.c_library import expf
from litegpu.ops.exact.integers import Ints, requantized
from litegpu.ops.exact.numbers import Multiplier
from litegpu.ops.quantized_softmax import QUANTIZED_SOFTMAX, QuantizedSoftmaxAttributes

Reals = npt.NDArray[np.floating[Any]]


class ExactRows(Exact):
    """Base of ops that normalize rows; `geometry` checks the operands, as for floats."""

    def __init__(self, geometry: Callable[[Graph, Node], str]) -> None:
        self._geometry = geometry

    def check(self, graph: Graph, node: Node) -> str:
        return (
            self._geometry(graph, node)
            or numbers.check_io(graph, node)
            or numbers.check_activation(node, ("none",))
        )

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        result = graph.values[node.outputs[0]]
        zero = self._zero(numbers.zero_point(result), result.dtype)
        limits = numbers.LIMITS[result.dtype]
        epilogue = (*numbers.shifted(new_value, zero), numbers.clamp(limits))
        product = Node(
            node.index,
            QUANTIZED_SOFTMAX,
            1,
            node.inputs,
            node.outputs,
            attributes=self._attributes(graph, node),
            epilogue=epilogue,
        )
        return (product,)

    @abstractmethod
    def _attributes(self, graph: Graph, node: Node) -> QuantizedSoftmaxAttributes:
        """Return the attributes of the row kernel for a checked node."""

    @abstractmethod
    def _zero(self, zero: int, dtype: DType) -> int:
        """Return the stored integer that the CPU uses for 0 in a result with this zero point."""


class ExactSoftmax(ExactRows):
    """SOFTMAX: a float32 table of exponentials for 8-bit types, integer arithmetic for INT16."""

    def check(self, graph: Graph, node: Node) -> str:
        source, result = graph.values[node.inputs[0]], graph.values[node.outputs[0]]
        if source.dtype is not DType.INT16:
            return super().check(graph, node)
        ends = (source.id, result.id)
        return checks.first_of(
            self._geometry(graph, node),
            lambda: numbers.check_tensors(graph, ends, QUANTIZED_TYPES),
            lambda: numbers.check_same_types(graph, ends),
            lambda: numbers.check_no_zeros(graph, ends),
            lambda: numbers.check_multiplier(_short_multiplier(source, node)),
            lambda: _check_row(source.shape[-1]),
        )

    def _attributes(self, graph: Graph, node: Node) -> QuantizedSoftmaxAttributes:
        source, result = graph.values[node.inputs[0]], graph.values[node.outputs[0]]
        if source.dtype is DType.INT16:
            below = _short_exponentials(_short_multiplier(source, node))
            return QuantizedSoftmaxAttributes("softmax_16", True, 0, 1.0, below, _reciprocals())
        table = _exponentials(source, node.params.get("beta", 1.0))
        signed = source.dtype is DType.INT8
        return QuantizedSoftmaxAttributes("softmax", signed, 0, numbers.scale(result), table)

    def _zero(self, zero: int, dtype: DType) -> int:
        return 0 if dtype is DType.UINT8 else zero


class ExactLogSoftmax(ExactRows):
    """LOG_SOFTMAX: a bit-exact logarithm of the sum of exponentials; the output scale is 1/16."""

    def check(self, graph: Graph, node: Node) -> str:
        return super().check(graph, node) or _another_logarithm()

    def _attributes(self, graph: Graph, node: Node) -> QuantizedSoftmaxAttributes:
        source = graph.values[node.inputs[0]]
        signed, table = source.dtype is DType.INT8, _exponentials(source, 1.0)
        return QuantizedSoftmaxAttributes("log_softmax", signed, 0, numbers.scale(source), table)

    def _zero(self, zero: int, dtype: DType) -> int:
        return zero


class ExactL2Normalization(ExactRows):
    """L2_NORMALIZATION in integer arithmetic; the output scale is 1/128."""

    def _attributes(self, graph: Graph, node: Node) -> QuantizedSoftmaxAttributes:
        source = graph.values[node.inputs[0]]
        zero = numbers.zero_point(source)
        return QuantizedSoftmaxAttributes("l2_normalization", source.dtype is DType.INT8, zero)

    def _zero(self, zero: int, dtype: DType) -> int:
        return 128 if dtype is DType.UINT8 else 0


_MAX_TERMS = 2**16
"""The maximum number of 15-bit exponentials whose sum fits 32 bits."""


def _check_row(channels: int) -> str:
    if channels <= _MAX_TERMS:
        return ""
    return f"The rows have {channels} INT16 elements; at most {_MAX_TERMS} are supported."


def _short_multiplier(source: Value, node: Node) -> Multiplier:
    """Return the multiplier from stored differences to e^x table indices (65,535 means 10)."""
    scaled = numbers.float32(numbers.scale(source) * numbers.float32(node.params.get("beta", 1.0)))
    return Multiplier.of(scaled / (10.0 / 65535.0))


def _short_exponentials(multiplier: Multiplier) -> tuple[int, ...]:
    """Return e^x * 2^15 for stored differences of 0 to 65,535 from the maximum."""
    points = _points(np.exp, 10.0 / 65535.0, 2**15 - 1)
    scaled = requantized(-np.arange(2**16, dtype=np.int64), multiplier)
    places = np.clip(scaled + 2**16 - 1, 0, 2**16 - 1)
    base = points[places >> 7]
    slopes = points[(places >> 7) + 1] - base
    found: list[int] = (base + ((slopes * (places & 127) + 64) >> 7)).tolist()
    return tuple(found)


def _reciprocals() -> tuple[int, ...]:
    """Return 1 / (1 + x) * 2^15 at 513 points from 0 to 1."""
    found: list[int] = _points(lambda x: 1.0 / (1.0 + x), 1.0 / 65535.0, -(2**15)).tolist()
    return tuple(found)


def _points(function: Callable[[Reals], Reals], scale: float, zero: int) -> Ints:
    """Return a function * 2^15 at 513 points over the range of 16-bit integers.

    `scale` and `zero` convert the integers to real numbers. To reduce the error of linear
    interpolation, a point is shifted by half of the interpolation error in the middle of its
    segment.
    """
    low, high = (scale * (end - zero) for end in numbers.LIMITS[DType.INT16])
    step = (high - low) / 512
    points = low + np.arange(513) * step
    here, middle, there = (
        function(each) * 2.0**15 for each in (points[:-1], points[:-1] + step / 2, points[1:])
    )
    between = _rounded((there + _rounded(here)) / 2)
    shifted = _rounded(here) - _rounded((between - _rounded(middle)) / 2)
    last = _rounded(function(np.array([high])) * 2.0**15)
    found: Ints = np.clip([*shifted, *last], *numbers.LIMITS[DType.INT16]).astype(np.int64)
    return found


def _rounded(reals: Reals) -> Reals:
    """Return the nearest integers, rounded half away from zero."""
    found: Reals = np.copysign(np.floor(np.abs(reals) + 0.5), reals)
    return found


def _exponentials(source: Value, beta: float) -> tuple[float, ...]:
    """Return the exponentials of stored differences of 0 to 255 from the maximum."""
    factor = np.float32(-numbers.scale(source)) * np.float32(beta)
    found: list[float] = expf(factor * np.arange(256, dtype=np.float32)).tolist()
    return tuple(found)


def _another_logarithm() -> str:
    """Return a reason if the C library of this machine rounds logf differently."""
    if logarithms.known():
        return ""
    return (
        "The CPU's result depends on the last bit of logf, which differs between C libraries and "
        "is known only for glibc."
    )
