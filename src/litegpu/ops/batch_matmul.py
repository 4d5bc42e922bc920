"""BATCH_MATMUL: computes one matrix product for each index of the leading dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from litegpu.graph import DType, Graph, Node, Value
from litegpu.ops.base import (
    NewValue,
    Op,
    Shape,
    SpecContext,
    as_float32,
    register,
)
from litegpu.ops.common import checks, facts
from litegpu.ops.common.conv_spec import ConvSpec
from litegpu.ops.common.matmul_spec import Batch, MatmulAttributes, MatmulSpec
from litegpu.ops.common.traits import Trait
from litegpu.ops.common.types import Types
from litegpu.ops.common.weights import Weights
from litegpu.ops.common.window import POINT
from litegpu.ops.exact.batch_matmul import ExactBatchMatmul
from litegpu.ops.exact.hybrid import OrHybrid
from litegpu.ops.exact.hybrid_matmul import HybridBatchMatmul

_BATCH_DIMS = 3
"""Maximum number of batch dimensions: tensors have at most 5 dimensions."""


@register
class BatchMatmul(Op):
    """Multiplies matrices of 2 to 5 dimensions, with broadcast batches and optional transposes."""

    name = "BATCH_MATMUL"
    max_version = 4
    traits = Trait.SUMS_PRODUCTS
    takes = (Types(frozenset({DType.FLOAT32, DType.INT8}), common=True),)
    gives = Types(frozenset({DType.FLOAT32, DType.INT32}))
    exact = OrHybrid(
        ExactBatchMatmul(
            lambda graph, node: _check_shapes(graph, node),
            lambda graph, node: _attributes(graph, node),
        ),
        HybridBatchMatmul(
            lambda graph, node: _check_shapes(graph, node),
            lambda graph, node: _attributes(graph, node),
        ),
    )

    def flops(self, graph: Graph, node: Node) -> int:
        value = graph.values.get(facts.operand(node.inputs, 0))
        inner = -2 if node.params.get("adj_x") else -1
        depth = value.shape[inner] if value is not None and len(value.shape) > 1 else 0
        return 2 * facts.elements(graph, facts.operand(node.outputs, 0)) * depth

    def check(self, graph: Graph, node: Node) -> str:
        if _is_of_integers(graph, node):
            return self.exact.check(graph, node)
        return checks.first_of(
            checks.input_count(node, 2, 2),
            checks.operands(graph, node, (1, 2)),
            checks.constants(graph, node, "The matrix"),
            lambda: _check_result(graph, node),
            lambda: _check_shapes(graph, node),
        )

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        (batch, other), (rows, _, columns) = _batches(graph, node), _sizes(graph, node)
        return ((*np.broadcast_shapes(batch, other), rows, columns),)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        if _is_of_integers(graph, node):
            return self.exact.normalize(graph, node, new_value)
        return (replace(node, attributes=_attributes(graph, node)),)

    def specs(self, node: Node, ctx: SpecContext) -> Sequence[ConvSpec | MatmulSpec]:
        attributes: MatmulAttributes = node.attributes
        transposed, batches, batch = attributes.transposed, attributes.batches, attributes.batch
        left, dst = ctx.storage(node.inputs[0]), ctx.storage(node.outputs[0])
        right = ctx.value(node.inputs[1])
        if right.is_constant and batches[1] == (1, 1, 1) and not transposed[0]:
            operand = _dense(right, transposed[1])
            return (ConvSpec(left, dst, operand, POINT, image=False),)
        other = ctx.storage(node.inputs[1])
        return (MatmulSpec(left, other, dst, transposed, batches, batch),)


def _is_of_integers(graph: Graph, node: Node) -> bool:
    """Whether the first matrix has integers without a scale."""
    return bool(node.inputs) and graph.values[node.inputs[0]].dtype is DType.INT8


def _check_result(graph: Graph, node: Node) -> str:
    """Require a float result for float operands, since the CPU always writes floats."""
    result = graph.values[node.outputs[0]]
    if result.dtype is DType.FLOAT32:
        return ""
    return f"tensor {result.id} is {result.dtype.name} instead of FLOAT32."


def _attributes(graph: Graph, node: Node) -> MatmulAttributes:
    first, second = _batches(graph, node)
    return MatmulAttributes(
        _transposed(node),
        (_three(first), _three(second)),
        _three(np.broadcast_shapes(first, second)),
    )


def _dense(right: Value, transposed: bool) -> Weights:
    """Return the constant right matrix of an unbatched product as weights [O, 1, 1, I]."""
    matrix = as_float32(right).reshape(right.shape[-2:])
    array = matrix if transposed else np.ascontiguousarray(matrix.T)
    outputs, inputs = array.shape
    return Weights((outputs, 1, 1, inputs), array=array[:, None, None, :])


def _check_shapes(graph: Graph, node: Node) -> str:
    shapes = [list(graph.values[v].shape) for v in node.inputs]
    if not all(2 <= len(shape) <= _BATCH_DIMS + 2 for shape in shapes):
        return f"Matrices must have 2 to 5 dimensions, not {shapes[0]} and {shapes[1]}."
    (first, second), (_, depth, _) = _batches(graph, node), _sizes(graph, node)
    pairs = zip(_three(first), _three(second), strict=True)
    if depth < 0 or any(a != b and 1 not in (a, b) for a, b in pairs):
        return (
            f"Matrices of {shapes[0]} and {shapes[1]} (adj_x={node.params['adj_x']}, "
            f"adj_y={node.params['adj_y']}) cannot be multiplied."
        )
    return ""


def _transposed(node: Node) -> tuple[bool, bool]:
    return node.params["adj_x"], node.params["adj_y"]


def _batches(graph: Graph, node: Node) -> tuple[Shape, Shape]:
    """Return the batch dimensions of both operands."""
    first, second = (graph.values[v].shape[:-2] for v in node.inputs)
    return first, second


def _sizes(graph: Graph, node: Node) -> tuple[int, int, int]:
    """Return the product's rows, inner dimension (-1 if the operands differ in it) and columns."""
    (rows, depth), (other, columns) = (
        graph.values[v].shape[-2:][:: -1 if adjoint else 1]
        for v, adjoint in zip(node.inputs, _transposed(node), strict=True)
    )
    return rows, depth if depth == other else -1, columns


def _three(batch: Shape) -> Batch:
    outer, middle, inner = (1,) * (_BATCH_DIMS - len(batch)) + batch
    return outer, middle, inner
