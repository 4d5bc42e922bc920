"""BATCH_MATMUL of quantized tensors, with integer sums that one multiplier requantizes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from litegpu.graph import ABSENT, DType, EpilogueOp, Graph, Node
from litegpu.ops.base import Exact, NewValue
from litegpu.ops.common import checks
from litegpu.ops.common.matmul_spec import MatmulAttributes
from litegpu.ops.common.window import POINT
from litegpu.ops.exact import numbers, wide_sums
from litegpu.ops.exact.numbers import Multiplier
from litegpu.ops.quantized_conv import QUANTIZED_CONV, QuantizedConvAttributes
from litegpu.ops.quantized_matmul import QUANTIZED_MATMUL, QuantizedMatmulAttributes


class OfMatrices(Exact):
    """BATCH_MATMUL of two computed tensors, without constant weights.

    The callback `geometry` checks the shapes. The callback `attributes` derives the attributes of
    the matrix product.
    """

    def __init__(
        self,
        geometry: Callable[[Graph, Node], str],
        attributes: Callable[[Graph, Node], MatmulAttributes],
    ) -> None:
        self._geometry = geometry
        self._attributes = attributes


class ExactBatchMatmul(OfMatrices):
    """Quantized BATCH_MATMUL: int8 rounds half away from zero, int16 (64-bit sums) half up.

    If an int8 product has an int32 result, the result is the sum of products without rescaling.
    """

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            checks.input_count(node, 2, 2),
            checks.operands(graph, node, (1, 2)),
            lambda: (self._geometry if _is_plain(graph, node) else self._check_scales)(graph, node),
        )

    def _check_scales(self, graph: Graph, node: Node) -> str:
        ends = (*node.inputs, *node.outputs)
        return checks.first_of(
            numbers.check_tensors(graph, ends, frozenset({DType.INT8, DType.INT16})),
            lambda: _check_types(graph, node),
            lambda: self._geometry(graph, node),
            lambda: self._check_sums(graph, node),
        )

    def _check_sums(self, graph: Graph, node: Node) -> str:
        if graph.values[node.inputs[0]].dtype is DType.INT8:
            return numbers.check_multiplier(_multiplier(graph, node))
        rows = graph.values[node.inputs[0]].shape
        depth = rows[-2] if node.params["adj_x"] else rows[-1]
        return checks.first_of(
            numbers.check_no_zeros(graph, (*node.inputs, *node.outputs)),
            wide_sums.check_multiplier(_multiplier(graph, node)),
            wide_sums.check_terms(depth, wide_sums.MAX_PAIRS),
        )

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        left, right = (graph.values[v] for v in node.inputs)
        matmul = self._attributes(graph, node)
        plain = _is_plain(graph, node)
        zeros = (0, 0) if plain else (numbers.zero_point(left), numbers.zero_point(right))
        product = Node(
            node.index,
            QUANTIZED_MATMUL,
            1,
            node.inputs,
            node.outputs,
            attributes=QuantizedMatmulAttributes(
                matmul.transposed, matmul.batches, matmul.batch, zeros
            ),
            epilogue=() if plain else _requantized(graph, node, new_value),
        )
        if left.dtype is DType.INT16:
            return _sums_of_pairs(graph, product, new_value)
        if right.data is None or matmul.batches[1] != (1, 1, 1) or matmul.transposed[0]:
            return (product,)
        # All rows are multiplied by one matrix, as in a fully connected layer.
        matrix = np.asarray(right.data).reshape(right.shape[-2:])
        array = matrix if matmul.transposed[1] else np.ascontiguousarray(matrix.T)
        shape = (len(array), 1, 1, array.shape[1])
        weights = new_value(shape, array.reshape(shape), dtype=DType.INT8)
        attributes = QuantizedConvAttributes(POINT, weights, ABSENT, shape, 1, zeros[0], zeros[1])
        return (replace(product, op=QUANTIZED_CONV, inputs=(left.id,), attributes=attributes),)


def _is_plain(graph: Graph, node: Node) -> bool:
    """Whether the result is the plain int32 sum of int8 products."""
    types = [graph.values[v].dtype for v in (*node.inputs, *node.outputs)]
    return types == [DType.INT8, DType.INT8, DType.INT32]


def _check_types(graph: Graph, node: Node) -> str:
    """Require two matrices of equal type, or INT16 on the left and INT8 on the right."""
    left, right, result = (graph.values[v].dtype for v in (*node.inputs, *node.outputs))
    if left is result and (left is right or left is DType.INT16):
        return ""
    return f"Products of {left.name} and {right.name} as {result.name} are not supported."


def _sums_of_pairs(graph: Graph, product: Node, new_value: NewValue) -> Sequence[Node]:
    """Return the nodes that multiply high and low bytes; the last node adds all partial sums."""
    left, right = (graph.values[v] for v in product.inputs)
    shape = graph.values[product.outputs[0]].shape
    nodes: list[Node] = []
    factors: list[list[tuple[int, int, int]]] = []
    for value in (left, right):
        if value.dtype is DType.INT8:
            factors.append([(value.id, 0, 1)])
            continue
        parts = wide_sums.split(product.index, value, new_value)
        nodes += parts.nodes
        factors.append([(parts.high.id, 0, 2**8), (parts.low.id, wide_sums.LOW_ZERO, 1)])
    epilogue: list[EpilogueOp] = [wide_sums.WIDENED]
    for (one, zero, weight), (other, other_zero, other_weight) in itertools.product(*factors):
        zeros = (zero, other_zero)
        pair = replace(
            product,
            inputs=(one, other),
            attributes=replace(product.attributes, zeros=zeros),
            epilogue=(),
        )
        if weight * other_weight == 1:
            nodes.append(replace(pair, epilogue=(*epilogue, *product.epilogue)))
            break
        total = new_value(shape, dtype=DType.INT32)
        nodes.append(replace(pair, outputs=(total,)))
        epilogue.append(wide_sums.weighted(total, weight * other_weight))
    return nodes


def _multiplier(graph: Graph, node: Node) -> Multiplier:
    left, right, result = (numbers.scale(graph.values[v]) for v in (*node.inputs, *node.outputs))
    return Multiplier.of(numbers.float32(left * right) / result)


def _requantized(graph: Graph, node: Node, new_value: NewValue) -> tuple[EpilogueOp, ...]:
    result = graph.values[node.outputs[0]]
    if result.dtype is DType.INT16:
        scaled = wide_sums.requantize_long(new_value, [_multiplier(graph, node)])
        return (scaled, numbers.clamp(numbers.LIMITS[result.dtype]))
    return numbers.requantize(
        new_value,
        [_multiplier(graph, node)],
        [True],
        numbers.zero_point(result),
        numbers.LIMITS[result.dtype],
    )
