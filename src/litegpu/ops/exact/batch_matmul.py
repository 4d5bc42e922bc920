"""BATCH_MATMUL of quantized tensors: sums in int32, requantized by one multiplier."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from litegpu.graph import ABSENT, DType, EpilogueOp, Graph, Node
from litegpu.ops.base import Exact, NewValue
from litegpu.ops.common import checks
from litegpu.ops.common.matmul_spec import MatmulAttributes
from litegpu.ops.common.window import POINT
from litegpu.ops.exact import numbers
from litegpu.ops.exact.numbers import Multiplier
from litegpu.ops.quantized_conv import QUANTIZED_CONV, QuantizedConvAttributes
from litegpu.ops.quantized_matmul import QUANTIZED_MATMUL, QuantizedMatmulAttributes


class OfMatrices(Exact):
    """Products of two computed matrices.

    `geometry` checks the shapes, `attributes` works them out.
    """

    def __init__(
        self,
        geometry: Callable[[Graph, Node], str],
        attributes: Callable[[Graph, Node], MatmulAttributes],
    ) -> None:
        self._geometry = geometry
        self._attributes = attributes


class ExactBatchMatmul(OfMatrices):
    """Halves are rounded away from zero; the CPU has it for int8 only."""

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            checks.input_count(node, 2, 2),
            checks.operands(graph, node, (1, 2)),
            lambda: numbers.check_tensors(
                graph, (*node.inputs, *node.outputs), frozenset({DType.INT8})
            ),
            lambda: self._geometry(graph, node),
            lambda: numbers.check_multiplier(_multiplier(graph, node)),
        )

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        left, right = (graph.values[v] for v in node.inputs)
        matmul = self._attributes(graph, node)
        zeros = (numbers.zero_point(left), numbers.zero_point(right))
        product = Node(
            node.index,
            QUANTIZED_MATMUL,
            1,
            node.inputs,
            node.outputs,
            attributes=QuantizedMatmulAttributes(
                matmul.transposed, matmul.batches, matmul.batch, zeros
            ),
            epilogue=_requantized(graph, node, new_value),
        )
        if right.data is None or matmul.batches[1] != (1, 1, 1) or matmul.transposed[0]:
            return (product,)
        # All rows are multiplied with one matrix, as those of a fully connected layer are.
        matrix = np.asarray(right.data).reshape(right.shape[-2:])
        array = matrix if matmul.transposed[1] else np.ascontiguousarray(matrix.T)
        shape = (len(array), 1, 1, array.shape[1])
        weights = new_value(shape, array.reshape(shape), dtype=DType.INT8)
        attributes = QuantizedConvAttributes(POINT, weights, ABSENT, shape, 1, zeros[0], zeros[1])
        return (replace(product, op=QUANTIZED_CONV, inputs=(left.id,), attributes=attributes),)


def _multiplier(graph: Graph, node: Node) -> Multiplier:
    left, right, result = (numbers.scale(graph.values[v]) for v in (*node.inputs, *node.outputs))
    return Multiplier.of(numbers.float32(left * right) / result)


def _requantized(graph: Graph, node: Node, new_value: NewValue) -> tuple[EpilogueOp, ...]:
    result = graph.values[node.outputs[0]]
    return numbers.requantize(
        new_value,
        [_multiplier(graph, node)],
        [True],
        numbers.zero_point(result),
        numbers.LIMITS[result.dtype],
    )
