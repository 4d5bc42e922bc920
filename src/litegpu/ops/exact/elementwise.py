"""Quantized elementwise ops of two inputs with broadcasting; one input may be a constant."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np

from litegpu.graph import SELF, DType, EpilogueOp, Graph, Node, Value
from litegpu.ops.base import COPY, Exact, NewValue
from litegpu.ops.common import checks
from litegpu.ops.common.broadcast import check_broadcast, check_slopes, fitted, running_input
from litegpu.ops.common.functions import of_integers
from litegpu.ops.common.types import BYTES, QUANTIZED_TYPES
from litegpu.ops.exact import float_sums, numbers, tables
from litegpu.ops.exact.functions import lookup_name
from litegpu.ops.exact.loops import Body, Loop, Walk, walk
from litegpu.ops.exact.numbers import Multiplier, float32

_INT8 = frozenset({DType.INT8})
_INT16_MAX = 2**15 - 1


class _Pairs(Exact):
    """An op on two inputs of equal type; the result has the same type, or BOOL if `truth`."""

    def __init__(self, dtypes: frozenset[DType] = BYTES, truth: bool = False) -> None:
        self._dtypes, self._truth = dtypes, truth

    def check(self, graph: Graph, node: Node) -> str:
        tensors = node.inputs if self._truth else (*node.inputs, *node.outputs)
        return checks.first_of(
            checks.input_count(node, 2, 2),
            checks.operands(graph, node, (1, 2)),
            lambda: self.check_types(graph, node, tensors),
            lambda: numbers.check_bounds(graph, node),
            lambda: check_broadcast(graph, node),
            lambda: self.check_scales(graph, node),
        )

    def check_types(self, graph: Graph, node: Node, tensors: Sequence[int]) -> str:
        """Require tensors (value ids) of one type, each with a scale."""
        return checks.first_of(
            numbers.check_tensors(graph, tensors, self._dtypes),
            lambda: numbers.check_same_types(graph, tensors),
        )

    def check_scales(self, graph: Graph, node: Node) -> str:
        """Return why the CPU rejects the scales, or an empty text if it accepts them."""
        return ""

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        fit, position = fitted(graph, node, new_value), running_input(graph, node)
        running, other = fit.inputs[position], fit.inputs[1 - position]
        unnamed = EpilogueOp("", (SELF if running == other else other,), position)
        epilogue = self.epilogue(graph, node, unnamed, new_value)
        return fit.around(Node(node.index, COPY, 1, (running,), node.outputs, epilogue=epilogue))

    @abstractmethod
    def epilogue(
        self, graph: Graph, node: Node, unnamed: EpilogueOp, new_value: NewValue
    ) -> tuple[EpilogueOp, ...]:
        """Return the epilogue ops; `unnamed` is the first epilogue op without its function."""


def _values(graph: Graph, node: Node) -> list[Value]:
    return [graph.values[v] for v in (*node.inputs, *node.outputs)]


def _walk(graph: Graph, node: Node) -> Walk:
    first, second = (graph.values[v].shape for v in node.inputs)
    return walk(first, second)


def _named(unnamed: EpilogueOp, function: str, **numbers: int) -> EpilogueOp:
    return replace(unnamed, function=function, attributes=tuple(numbers.items()))


def _on_one_scale(
    unnamed: EpilogueOp,
    function: str,
    values: Sequence[Value],
    left: int,
    multipliers: Sequence[Multiplier],
) -> EpilogueOp:
    """Return the epilogue op that rescales both inputs to one scale, times 2^`left`."""
    attributes = {"left": left}
    for name, value, multiplier in zip("ab", values, multipliers, strict=False):
        attributes[f"zero_{name}"] = numbers.zero_point(value)
        attributes[f"number_{name}"] = multiplier.number
        attributes[f"right_{name}"] = multiplier.right
    return _named(unnamed, function, **attributes)


def _half_of_larger(values: Sequence[Value]) -> tuple[float, list[Multiplier]]:
    """Return twice the larger input scale, and the multipliers of both inputs to that scale."""
    scales = [numbers.scale(value) for value in values[:2]]
    twice = float32(2 * max(scales))
    return twice, [Multiplier.of(scale / twice) for scale in scales]


def _result_multiplier(values: Sequence[Value], left: int) -> Multiplier:
    """Return the multiplier from sums, shifted left by `left` bits, to the result's scale."""
    return Multiplier.of(_result_factor(values, left))


def _result_factor(values: Sequence[Value], left: int) -> float:
    twice, _ = _half_of_larger(values)
    divisor = float32(2**left * numbers.scale(values[2]))
    return twice / divisor if divisor else math.inf


_NO_VECTORS = Body(1, 0)


def _finished(
    node: Node,
    result: Value,
    multiplier: Multiplier,
    new_value: NewValue,
    body: Body = _NO_VECTORS,
    cut: str = "WRAP_INT16",
    largest: float = 0.0,
) -> tuple[EpilogueOp, ...]:
    """Return the epilogue ops that requantize a sum or a product.

    The CPU's vector code stores intermediate results as int16. The function named by `cut`
    reproduces the overflow of intermediate int16 results. `largest` is the greatest magnitude of
    results, in steps of the result's scale.
    """
    limits = numbers.bounds(node.params.get("activation", "none"), result)
    zero = numbers.zero_point(result)
    requantize, *shift, clamp = numbers.requantize(new_value, [multiplier], [True], zero, limits)
    if result.dtype is DType.INT16 or largest < _INT16_MAX - 256:
        return (requantize, *shift, clamp)
    wraps = body.epilogue("WRAP_INT16", EpilogueOp("WRAP_INT16"))
    return (requantize, *body.epilogue(cut, EpilogueOp(cut)), *shift, *wraps, clamp)


_LEFT = {DType.INT8: 20, DType.UINT8: 20, DType.INT16: 15}
"""The number of bits by which ADD and SUB shift their inputs left."""


def _sum_of(node: Node, values: Sequence[Value], functions: tuple[str, ...]) -> float_sums.Sum:
    """Return the CPU's computation of ADD or SUB of two stored integers by `functions`."""
    *inputs, result = values
    first, second = (
        float_sums.Side(
            numbers.LIMITS[value.dtype],
            numbers.zero_point(value),
            multiplier,
            numbers.scale(value) / numbers.scale(result),
        )
        for value, multiplier in zip(inputs, _half_of_larger(values)[1], strict=True)
    )
    left = _LEFT[result.dtype]
    return float_sums.Sum(
        functions,
        left,
        (first, second),
        _result_multiplier(values, left),
        numbers.zero_point(result),
        numbers.bounds(node.params.get("activation", "none"), result),
    )


class _Sum(_Pairs):
    """ADD and SUB: rescale both inputs to a common scale, then add or subtract."""

    def is_possible(self, factor: float) -> bool:
        """Whether the CPU rescales sums by a factor, which should be less than 1."""
        return Multiplier.of(factor).shift <= 0

    def check_scales(self, graph: Graph, node: Node) -> str:
        values = _values(graph, node)
        left = _LEFT[values[2].dtype]
        powers = all(math.frexp(numbers.scale(value))[0] == 0.5 for value in values)
        if values[2].dtype is DType.INT16 and node.params.get("pot_scale_int16", False) and powers:
            return "The scales are powers of two, for which the CPU adds INT16 in another way."
        factor = _result_factor(values, left)
        if self.is_possible(factor):
            return ""
        return f"The scale of its result is so small that sums have {factor:g} times as many steps."

    def epilogue(
        self, graph: Graph, node: Node, unnamed: EpilogueOp, new_value: NewValue
    ) -> tuple[EpilogueOp, ...]:
        values = _values(graph, node)
        left = _LEFT[values[2].dtype]
        plain = _on_one_scale(
            unnamed, f"RESCALED_{node.op}", values, left, _half_of_larger(values)[1]
        )
        function, body = self.body(graph, node)
        largest = 255 * sum(map(numbers.scale, values[:2])) / numbers.scale(values[2]) + 1
        if values[2].dtype in BYTES and largest < _INT16_MAX - 256:
            functions = ((function,) if body.end else ()) + ((plain.function,) * (not body.is_all))
            wanted = _sum_of(node, values, functions)
            if (found := float_sums.find(wanted)) is not None:
                return found.epilogue_op(unnamed), numbers.clamp(wanted.limits)
        first = body.epilogue(function, plain, plain)
        multiplier = _result_multiplier(values, left)
        if multiplier.left:
            walked = _walk(graph, node)
            return (*first, *_overshifted(node, values[2], multiplier, new_value, walked))
        last = _finished(node, values[2], multiplier, new_value, body, largest=largest)
        return (*first, *last)

    def body(self, graph: Graph, node: Node) -> tuple[str, Body]:
        """Return the function of the vectorized part of the CPU's loop, and that part."""
        return "", _NO_VECTORS


class _Sub(_Sum):
    """Quantized SUB; for results of a very small scale it repeats the CPU's wrong arithmetic."""

    def is_possible(self, factor: float) -> bool:
        return super().is_possible(factor) or (factor > 1 and Multiplier.of(factor).shift < 32)


def _overshifted(
    node: Node, result: Value, multiplier: Multiplier, new_value: NewValue, found: Walk
) -> tuple[EpilogueOp, ...]:
    """Return the epilogue ops that rescale differences by a factor above 1, as the CPU does.

    The CPU shifts right by a negative number of bits. Its scalar code shifts by this number modulo
    32, and its vector code by so much that only the sign remains. Both add 1 to positive numbers.
    """
    limits = numbers.bounds(node.params.get("activation", "none"), result)
    high, *_ = numbers.requantize(new_value, [Multiplier(multiplier.number, 0)], [False], 0, limits)
    bytes_in_runs = result.dtype in BYTES and found.run < result.elements
    body = found.body(4) if found.loop is Loop.BOTH and not bytes_in_runs else _NO_VECTORS
    scalar = EpilogueOp("SHIFT_MODULO", attributes=(("right", 32 - multiplier.left),))
    shifts = body.epilogue("SIGN_OF", scalar, scalar)
    zero = numbers.zero_point(result)
    return (high, *shifts, *numbers.shifted(new_value, zero), numbers.clamp(limits))


class _Add(_Sum):
    """Quantized ADD, for which the CPU's vector code truncates, or shifts before it multiplies."""

    _VECTORS: ClassVar[Mapping[tuple[DType, Loop], tuple[str, int]]] = {
        (DType.INT8, Loop.BOTH): ("RESCALED_ADD_WHOLE", 16),
        (DType.INT8, Loop.ONE): ("RESCALED_ADD_FLOORED", 8),
        (DType.UINT8, Loop.BOTH): ("RESCALED_ADD_FLOORED", 8),
        (DType.UINT8, Loop.ONE): ("RESCALED_ADD_FLOORED", 8),
    }

    def body(self, graph: Graph, node: Node) -> tuple[str, Body]:
        found, (first, _, result) = _walk(graph, node), _values(graph, node)
        if first.dtype is DType.INT16:
            same = found == Walk(Loop.BOTH, result.elements)
            return "RESCALED_ADD_WHOLE", found.body(16) if same else _NO_VECTORS
        function, vector = self._VECTORS.get((first.dtype, found.loop), ("", 0))
        return function, found.body(vector) if vector else _NO_VECTORS


class _Mul(_Pairs):
    """Quantized MUL: subtracts the zero points, then multiplies both inputs."""

    def check_scales(self, graph: Graph, node: Node) -> str:
        return numbers.check_multiplier(Multiplier.of(_product_factor(_values(graph, node))))

    def epilogue(
        self, graph: Graph, node: Node, unnamed: EpilogueOp, new_value: NewValue
    ) -> tuple[EpilogueOp, ...]:
        first, second, result = values = _values(graph, node)
        zeros = {"zero_a": numbers.zero_point(first), "zero_b": numbers.zero_point(second)}
        product = _named(unnamed, "CENTRED_MUL", **zeros)
        found, factor = _walk(graph, node), _product_factor(values)
        vector = 16 if first.dtype is DType.INT8 else 8
        body = _NO_VECTORS if found.loop is Loop.ANY else found.body(vector)
        wraps = first.dtype is DType.UINT8 and found.loop is Loop.ONE
        cut = "WRAP_INT16" if wraps else "SATURATE_INT16"
        multiplier = Multiplier.of(factor)
        last = _finished(
            node, result, multiplier, new_value, body, cut, largest=255 * 255 * factor + 1
        )
        return (product, *last)


def _product_factor(values: Sequence[Value]) -> float:
    """Return the factor that converts products of both inputs to the scale of the result."""
    first, second, result = map(numbers.scale, values)
    return float32(float32(first * second) / result)


class _Div(_Pairs):
    """Quantized DIV: a lookup table of all pairs of bytes, computed by the runtime's kernel.

    The CPU multiplies by an approximate inverse, and its shift amounts may exceed 31.
    """

    def check_scales(self, graph: Graph, node: Node) -> str:
        first, second, result = values = _values(graph, node)
        divisor = float32(numbers.scale(second) * numbers.scale(result))
        factor = numbers.scale(first) / divisor if divisor else math.inf
        if reason := numbers.check_multiplier(Multiplier.of(factor)):
            return reason
        if tables.by_pairs(node, *values) is not None:
            return ""
        return f"The CPU's kernel does not divide {first.dtype.name}."

    def epilogue(
        self, graph: Graph, node: Node, unnamed: EpilogueOp, new_value: NewValue
    ) -> tuple[EpilogueOp, ...]:
        first, second, result = _values(graph, node)
        entries = tables.by_pairs(node, first, second, result)
        assert entries is not None, "checked"
        table = new_value(entries.shape, entries.astype(np.int32))
        return (_named(unnamed, "ADD_HIGH_SUM"), EpilogueOp(lookup_name(DType.INT16), (table,)))


class _SquaredDifference(_Pairs):
    """SQUARED_DIFFERENCE: rescales both inputs to a common scale, subtracts and squares."""

    _LEFT = 7

    def _factor(self, values: Sequence[Value]) -> Multiplier:
        twice, _ = _half_of_larger(values)
        divisor = float32(2 ** (2 * self._LEFT) * numbers.scale(values[2]))
        return Multiplier.of(twice * twice / divisor)

    def check_scales(self, graph: Graph, node: Node) -> str:
        return numbers.check_multiplier(self._factor(_values(graph, node)))

    def epilogue(
        self, graph: Graph, node: Node, unnamed: EpilogueOp, new_value: NewValue
    ) -> tuple[EpilogueOp, ...]:
        values = _values(graph, node)
        multipliers = _half_of_larger(values)[1]
        difference = _on_one_scale(unnamed, "RESCALED_SUB", values, self._LEFT, multipliers)
        square = EpilogueOp(of_integers("MUL"), (SELF,))
        return (
            difference,
            square,
            *_finished(node, values[2], self._factor(values), new_value),
        )


class _Comparison(_Pairs):
    """A quantized comparison, which rescales both inputs with 8 additional bits.

    For INT16, the CPU ignores the scales in order comparisons and compares stored integers.
    """

    def check_scales(self, graph: Graph, node: Node) -> str:
        if self._is_plain(graph, node):
            return ""
        for v in node.inputs:
            if numbers.scale(graph.values[v]) >= 1:
                return f"tensor {v} has a scale of 1 or more, which the CPU cannot compare."
        return ""

    def epilogue(
        self, graph: Graph, node: Node, unnamed: EpilogueOp, new_value: NewValue
    ) -> tuple[EpilogueOp, ...]:
        if self._is_plain(graph, node):
            return (_named(unnamed, of_integers(node.op)),)
        values = [graph.values[v] for v in node.inputs]
        multipliers = [Multiplier.of(numbers.scale(value)) for value in values]
        return (_on_one_scale(unnamed, f"RESCALED_{node.op}", values, 8, multipliers),)

    @staticmethod
    def _is_plain(graph: Graph, node: Node) -> bool:
        is_short = graph.values[node.inputs[0]].dtype is DType.INT16
        return is_short and node.op not in ("EQUAL", "NOT_EQUAL")


class _Larger(_Pairs):
    """MAXIMUM and MINIMUM, which compare stored integers and ignore the scales."""

    def epilogue(
        self, graph: Graph, node: Node, unnamed: EpilogueOp, new_value: NewValue
    ) -> tuple[EpilogueOp, ...]:
        return (_named(unnamed, of_integers(node.op)),)


class _Prelu(_Pairs):
    """Quantized PRELU: multiplies negative elements by slopes; each sign has a multiplier.

    The slopes of an INT16 input are INT8.
    """

    def check_types(self, graph: Graph, node: Node, tensors: Sequence[int]) -> str:
        if graph.values[node.inputs[0]].dtype is not DType.INT16:
            return super().check_types(graph, node, tensors)
        return checks.first_of(
            numbers.check_tensors(graph, node.inputs[1:], _INT8),
            lambda: numbers.check_io(graph, node, QUANTIZED_TYPES),
        )

    def check_scales(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            check_slopes(graph, node),
            *map(numbers.check_multiplier, _slope_multipliers(_values(graph, node))),
        )

    def epilogue(
        self, graph: Graph, node: Node, unnamed: EpilogueOp, new_value: NewValue
    ) -> tuple[EpilogueOp, ...]:
        *inputs, result = values = _values(graph, node)
        attributes = {}
        for name, value, each in zip("ab", inputs, _slope_multipliers(values), strict=True):
            attributes[f"zero_{name}"] = numbers.zero_point(value)
            attributes[f"number_{name}"] = each.number
            attributes[f"left_{name}"] = each.left
            attributes[f"right_{name}"] = each.right
        slopes = _named(unnamed, "REQUANTIZE_SLOPES", **attributes)
        zero = numbers.zero_point(result)
        return (
            slopes,
            *numbers.shifted(new_value, zero),
            numbers.clamp(numbers.LIMITS[result.dtype]),
        )


def _slope_multipliers(values: Sequence[Value]) -> tuple[Multiplier, Multiplier]:
    """Return the multipliers of non-negative elements and of products with slopes."""
    first, _, result = map(numbers.scale, values)
    return Multiplier.of(float32(first / result)), Multiplier.of(_product_factor(values))


EXACT_BINARY: Mapping[str, Exact] = {
    "ADD": _Add(QUANTIZED_TYPES),
    "DIV": _Div(),
    "MAXIMUM": _Larger(QUANTIZED_TYPES),
    "MINIMUM": _Larger(QUANTIZED_TYPES),
    "MUL": _Mul(QUANTIZED_TYPES),
    "PRELU": _Prelu(),
    "SQUARED_DIFFERENCE": _SquaredDifference(_INT8),
    "SUB": _Sub(QUANTIZED_TYPES),
    **{
        name: _Comparison(QUANTIZED_TYPES, truth=True)
        for name in ("EQUAL", "GREATER", "GREATER_EQUAL", "LESS", "LESS_EQUAL", "NOT_EQUAL")
    },
}
"""The exact implementation of each elementwise op with two inputs, by op name."""
