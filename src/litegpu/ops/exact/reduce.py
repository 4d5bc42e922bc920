"""Quantized MEAN and SUM with int32 sums, and REDUCE_PROD, which rescales each product."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from litegpu.graph import DType, EpilogueOp, Graph, Node, Value
from litegpu.ops.base import COPY, Exact, NewValue, constant_list
from litegpu.ops.common import checks
from litegpu.ops.common.types import BYTES, QUANTIZED_TYPES
from litegpu.ops.exact import numbers, wide_sums
from litegpu.ops.exact.numbers import Multiplier, float32
from litegpu.ops.index_map import Source, index_map_node, plain
from litegpu.ops.quantized_product import AXIS, QUANTIZED_PRODUCT, ProductAttributes
from litegpu.ops.reshape import reshape_node

_BLOCK = 16
"""Number of channels that the CPU rescales as one vector; the remaining channels round differently.
"""


class Reduce(Protocol):
    """A function that returns a reduction's nodes; `partial` is the type of intermediate sums."""

    def __call__(
        self, graph: Graph, node: Node, new_value: NewValue, partial: DType
    ) -> Sequence[Node]: ...


class _Reduction(Exact):
    """Base of all reductions; `geometry` checks the axes."""

    dtypes: ClassVar[frozenset[DType]] = QUANTIZED_TYPES
    """The supported types of the input."""

    def __init__(self, geometry: Callable[[Graph, Node], str]) -> None:
        self._geometry = geometry

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            lambda: self._geometry(graph, node),
            lambda: numbers.check_io(graph, node, self.dtypes),
            lambda: self._check_numbers(graph, node),
        )

    @abstractmethod
    def _check_numbers(self, graph: Graph, node: Node) -> str:
        """Return a reason if the CPU cannot rescale the results."""


class _ExactSums(_Reduction):
    """Base of MEAN and SUM; `reduce` creates the nodes."""

    def __init__(self, geometry: Callable[[Graph, Node], str], reduce: Reduce) -> None:
        super().__init__(geometry)
        self._reduce = reduce

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        nodes = self._reduce(graph, replace(node, op="SUM"), new_value, DType.INT32)
        total = new_value(graph.values[node.outputs[0]].shape, dtype=DType.INT32)
        nodes = (*nodes[:-1], replace(nodes[-1], outputs=(total,)))
        epilogue = self._stages(graph, node, new_value)
        copy = Node(node.index, COPY, 1, (total,), node.outputs, epilogue=epilogue)
        return (*nodes, copy)

    @abstractmethod
    def _stages(self, graph: Graph, node: Node, new_value: NewValue) -> tuple[EpilogueOp, ...]:
        """Return the epilogue ops that requantize the sums."""


class ExactMean(_ExactSums):
    """MEAN: rounds by blocks of channels over H and W, and uniformly over other axes."""

    def _check_numbers(self, graph: Graph, node: Node) -> str:
        return numbers.check_multiplier(_mean_factor(graph, node))

    def _stages(self, graph: Graph, node: Node, new_value: NewValue) -> tuple[EpilogueOp, ...]:
        source, result = graph.values[node.inputs[0]], graph.values[node.outputs[0]]
        terms = _terms(graph, node)
        limits = numbers.LIMITS[result.dtype]
        factor = _mean_factor(graph, node)
        if _is_of_pixels(graph, node):
            channels = source.shape[3]
            away = [c >= channels // _BLOCK * _BLOCK for c in range(channels)]
            bias = _pixels_bias(source, result)
            return numbers.requantize(new_value, [factor], away, bias, limits)
        zeros = numbers.scalar(new_value, -terms * numbers.zero_point(source))
        zero = numbers.zero_point(result)
        rescaling = numbers.requantize(new_value, [factor], [True], zero, limits)
        return (EpilogueOp("INTEGER_ADD", (zeros,)), *rescaling)


def _mean_factor(graph: Graph, node: Node) -> Multiplier:
    """Return the multiplier from a sum to a mean on the scale of the result."""
    source, result = graph.values[node.inputs[0]], graph.values[node.outputs[0]]
    terms = _terms(graph, node)
    if not _is_of_pixels(graph, node):
        return _shared_out(numbers.scale(source) / numbers.scale(result), terms)
    inverse = float32(float32(terms) * numbers.scale(result))
    return Multiplier.of(float32(numbers.scale(source) / inverse))


def _is_of_pixels(graph: Graph, node: Node) -> bool:
    """Whether the CPU uses its special kernel for the mean over H and W of 8-bit images."""
    axes = {axis % 4 for axis in constant_list(graph, node.inputs[1])}
    source = graph.values[node.inputs[0]]
    image = len(source.shape) == 4 and source.dtype in BYTES
    return image and bool(node.params["keep_dims"]) and axes == {1, 2}


def _pixels_bias(source: Value, result: Value) -> int:
    """Return the offset of the mean due to both zero points, in float32 as on the CPU."""
    shift = float32(
        float32(numbers.zero_point(source) * numbers.scale(source)) / numbers.scale(result)
    )
    half = 0.5 if shift > 0 else -0.5
    return numbers.zero_point(result) - math.trunc(float32(shift + half))


def _shared_out(factor: float, terms: int) -> Multiplier:
    """Return the multiplier factor / terms, in the precision of the CPU."""
    whole = Multiplier.of(factor)
    bits = min(terms.bit_length() - 1, 32, 31 + whole.shift)
    return Multiplier((whole.number << bits) // terms, whole.shift - bits)


class ExactSum(_ExactSums):
    """SUM: looks up results in a table of least sums, since the CPU's rescaling is monotonic."""

    def _check_numbers(self, graph: Graph, node: Node) -> str:
        source, result = graph.values[node.inputs[0]], graph.values[node.outputs[0]]
        terms = _terms(graph, node)
        ends = np.array(numbers.LIMITS[source.dtype], np.int64) * terms
        if np.abs(ends).max() < 2**31:
            with np.errstate(over="ignore", invalid="ignore"):
                reals = _reals(ends, source, result, terms)
            if np.abs(reals).max() < 2**31:
                return ""
        return (
            "The sums may exceed 2^31 steps of the result's scale, where the CPU's integers "
            "overflow."
        )

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        nodes = super().normalize(graph, node, new_value)
        source, result = graph.values[node.inputs[0]], graph.values[node.outputs[0]]
        low, high = numbers.LIMITS[result.dtype]
        wanted = np.arange(low + 1, high + 1) - numbers.zero_point(result)
        steps = tuple(_least_sums(wanted, source, result, _terms(graph, node)).tolist())
        (*_, last) = (each for each in nodes if each.op == "SUM")
        stepped = replace(last, attributes=replace(last.attributes, steps=steps))
        return tuple(stepped if each is last else each for each in nodes)

    def _stages(self, graph: Graph, node: Node, new_value: NewValue) -> tuple[EpilogueOp, ...]:
        low, _ = numbers.LIMITS[graph.values[node.outputs[0]].dtype]
        return (EpilogueOp("INTEGER_ADD", (numbers.scalar(new_value, low),)),)


class ExactProduct(_Reduction):
    """REDUCE_PROD: rescales after each factor but the first, and once more at the end."""

    dtypes = frozenset({DType.INT8, DType.INT16})

    def _check_numbers(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            self._check_zeros(graph, node), lambda: self._check_factor(graph, node)
        )

    @staticmethod
    def _check_factor(graph: Graph, node: Node) -> str:
        if _terms(graph, node) == 1:
            return ""
        return wide_sums.check_multiplier(_product_factor(graph, node))

    @staticmethod
    def _check_zeros(graph: Graph, node: Node) -> str:
        if graph.values[node.inputs[0]].dtype is not DType.INT16:
            return ""
        return numbers.check_no_zeros(graph, (node.inputs[0], node.outputs[0]))

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        source, result = graph.values[node.inputs[0]], graph.values[node.outputs[0]]
        if _terms(graph, node) == 1:
            return (
                reshape_node(node, source.id, result.id),
            )  # the CPU copies, whatever the scales
        factors, shape, nodes = _factors_along_h(graph, node, new_value)
        found = new_value(tuple(1 if axis == AXIS else size for axis, size in enumerate(shape)))
        multiplier = _product_factor(graph, node)
        attributes = ProductAttributes(
            numbers.zero_point(source), *wide_sums.short_multiplier(multiplier)
        )
        epilogue = (
            wide_sums.WIDENED,
            wide_sums.requantize_long(new_value, [multiplier]),
            *numbers.shifted(new_value, numbers.zero_point(result)),
            numbers.clamp(numbers.LIMITS[result.dtype]),
        )
        product = Node(
            *(node.index, QUANTIZED_PRODUCT, 1, (factors,), (found,)),
            attributes=attributes,
            epilogue=epilogue,
        )
        return (*nodes, product, reshape_node(node, found, result.id))


def _product_factor(graph: Graph, node: Node) -> Multiplier:
    """Return the multiplier after each factor, which divides by a root of the result's scale."""
    source, result = graph.values[node.inputs[0]], graph.values[node.outputs[0]]
    root = math.pow(numbers.scale(result), 1.0 / _terms(graph, node))
    return Multiplier.of(numbers.scale(source) / root)


def _factors_along_h(
    graph: Graph, node: Node, new_value: NewValue
) -> tuple[int, tuple[int, ...], list[Node]]:
    """Return the reshaped input with the factors of each product along H, and its shape.

    If the reduced axes are not adjacent, a transpose moves them to the front.
    """
    source = graph.values[node.inputs[0]]
    shape = source.shape
    reduced = {axis % len(shape) for axis in constant_list(graph, node.inputs[1])}
    axes = [axis for axis in range(len(shape)) if axis in reduced and shape[axis] > 1]
    first, end = axes[0], axes[-1] + 1
    inner = [axis for axis in range(end, len(shape)) if axis not in reduced]
    outer = [axis for axis in range(first) if axis not in reduced]
    between = [axis for axis in range(first, end) if axis not in reduced and shape[axis] > 1]
    nodes, v = [], source.id
    if between:
        inner, outer = [*outer, *between, *inner], []
        order = [*axes, *inner]
        sizes = tuple(shape[axis] for axis in order)
        v = new_value(sizes, dtype=source.dtype)
        moved = replace(node, inputs=(source.id,), outputs=(v,))
        places = (order.index(axis) if axis in order else None for axis in range(len(shape)))
        sources = [Source() if place is None else Source(((place, 1),)) for place in places]
        nodes.append(index_map_node(graph, moved, plain(sizes), sources))
    rows, channels = (math.prod(shape[axis] for axis in part) for part in (inner[:-1], inner[-1:]))
    along = (math.prod(shape[axis] for axis in outer), _terms(graph, node), rows, channels)
    factors = new_value(along, dtype=source.dtype)
    return factors, along, [*nodes, reshape_node(node, v, factors)]


def _terms(graph: Graph, node: Node) -> int:
    """Return the number of elements in each sum, computed from the input's shape."""
    shape = graph.values[node.inputs[0]].shape
    axes = {axis % len(shape) for axis in constant_list(graph, node.inputs[1])}
    return math.prod(shape[axis] for axis in axes)


def _reals(
    sums: npt.NDArray[np.int64], source: Value, result: Value, terms: int
) -> npt.NDArray[np.float32]:
    """Return sums in units of the result's scale, with the CPU's intermediate rounding."""
    scale = np.float32(float32(numbers.scale(source) / numbers.scale(result)))
    zeros = np.float32(-numbers.zero_point(source)) * scale
    found: npt.NDArray[np.float32] = sums.astype(np.float32) * scale
    return found + zeros * np.float32(terms)


def _least_sums(
    wanted: npt.NDArray[np.int64], source: Value, result: Value, terms: int
) -> npt.NDArray[np.int32]:
    """Return for each requested result the least sum that rounds to this result or above."""
    low = np.full(wanted.shape, -(2**31), np.int64)
    high = np.full(wanted.shape, 2**31 - 1, np.int64)
    while (low < high).any():
        middle = (low + high) >> 1
        reals = _reals(middle, source, result, terms).astype(np.float64)
        reached = np.copysign(np.floor(np.abs(reals) + 0.5), reals) >= wanted
        low, high = np.where(reached, low, middle + 1), np.where(reached, middle, high)
    return low.astype(np.int32)
