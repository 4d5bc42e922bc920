"""BATCH_MATMUL of floats and int8 (dynamic-range quantization), which quantizes rows of floats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from litegpu.graph import ABSENT, DType, Graph, Node, Value
from litegpu.ops.base import NewValue
from litegpu.ops.common import checks
from litegpu.ops.common.matmul_spec import MatmulAttributes
from litegpu.ops.common.window import POINT
from litegpu.ops.exact import numbers
from litegpu.ops.exact.batch_matmul import OfMatrices
from litegpu.ops.exact.conv import quantized_node
from litegpu.ops.exact.float_rows import FloatRows
from litegpu.ops.exact.hybrid import (
    check_even,
    check_floats,
    is_asymmetric,
    less_zero_point,
    scaled_sums,
)
from litegpu.ops.index_map import Source, index_map_node, plain
from litegpu.ops.quantized_conv import QUANTIZED_CONV, QuantizedConvAttributes
from litegpu.ops.quantized_matmul import QUANTIZED_MATMUL, QuantizedMatmulAttributes


class HybridBatchMatmul(OfMatrices):
    """BATCH_MATMUL that quantizes rows of left matrices, symmetrically unless `is_asymmetric`."""

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            checks.input_count(node, 2, 2),
            checks.operands(graph, node, (1, 2)),
            lambda: check_floats(graph, (node.inputs[0], *node.outputs)),
            lambda: numbers.check_tensors(graph, node.inputs[1:], frozenset({DType.INT8})),
            lambda: check_even(graph.values[node.inputs[1]]),
            lambda: self._geometry(graph, node),
            lambda: _check_batch(self._attributes(graph, node)),
            lambda: _check_row_sums(graph, node),
        )

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        left, right = (graph.values[v] for v in node.inputs)
        matmul = self._attributes(graph, node)
        nodes: list[Node] = []
        if matmul.transposed[0]:
            left, transpose = _transposed(graph, node, new_value)
            nodes.append(transpose)
        rows = FloatRows(node.index, left, 1, not is_asymmetric(node), new_value)
        columns = _columns(right, matmul.transposed[1])
        epilogue = scaled_sums(rows, (numbers.scale(right),), ("SCALE_SUM",))
        if columns is not None:
            sums = columns.sum(axis=-1, dtype=np.int64).astype(np.int32)[..., None, :]
            epilogue = (*less_zero_point(rows, sums), *epilogue)
        if columns is not None and matmul.batches[1] == (1, 1, 1):
            outputs, depth = columns.shape[-2:]
            shape = (outputs, 1, 1, depth)
            weights = new_value(shape, columns.reshape(shape), dtype=DType.INT8)
            conv = QuantizedConvAttributes(POINT, weights, ABSENT, shape, 1, 0, 0)
            product = quantized_node(node, QUANTIZED_CONV, rows.stored(), conv, epilogue)
        else:
            attributes = QuantizedMatmulAttributes(
                (False, matmul.transposed[1]), matmul.batches, matmul.batch, (0, 0)
            )
            product = quantized_node(node, QUANTIZED_MATMUL, rows.stored(), attributes, epilogue)
            product = replace(product, inputs=(*product.inputs, right.id))
        return (*nodes, *rows.nodes, product)


def _check_batch(matmul: MatmulAttributes) -> str:
    """Reject several batch dimensions, for which the CPU uses the scales of wrong rows."""
    if sum(size > 1 for size in matmul.batch) < 2:
        return ""
    return (
        f"The batch is {list(matmul.batch)}: if several batch dimensions are above 1, the CPU "
        "uses the scales of wrong rows."
    )


def _check_row_sums(graph: Graph, node: Node) -> str:
    if graph.values[node.inputs[1]].is_constant or not is_asymmetric(node):
        return ""
    return f"tensor {node.inputs[1]} is computed, but asymmetric quantization needs constants."


def _transposed(graph: Graph, node: Node, new_value: NewValue) -> tuple[Value, Node]:
    """Return the transposed left operand, and the node that transposes it."""
    left = graph.values[node.inputs[0]]
    shape = (*left.shape[:-2], left.shape[-1], left.shape[-2])
    swapped = new_value(shape, dtype=DType.FLOAT32, precise=True)
    order = (*range(len(shape) - 2), len(shape) - 1, len(shape) - 2)
    sources = [Source(((axis, 1),)) for axis in order]
    move = replace(node, inputs=(left.id,), outputs=(swapped,))
    return replace(left, id=swapped, shape=shape), index_map_node(
        graph, move, plain(shape), sources
    )


def _columns(right: Value, transposed: bool) -> npt.NDArray[np.int8] | None:
    """Return columns of constant matrices, [..., columns, depth]; None for computed matrices."""
    if right.data is None:
        return None
    matrices = np.asarray(right.data).reshape(right.shape)
    return np.ascontiguousarray(matrices if transposed else np.swapaxes(matrices, -1, -2))
