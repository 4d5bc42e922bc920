"""MATRIX_DIAG and MATRIX_SET_DIAG: create diagonal matrices, or replace diagonals."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from litegpu.graph import DType, EpilogueOp, Graph, Node
from litegpu.ops.base import COPY, NewValue, Op, Shape, register
from litegpu.ops.common import checks
from litegpu.ops.common.types import MOVED, Types
from litegpu.ops.index_map import INDEX_MAP, IndexMapAttributes, Source, plain
from litegpu.ops.reshape import reshape_node, reshaped

_MAX_ELEMENTS = 1 << 24
"""Maximum number of elements of the diagonal's mask."""


_TYPES = Types(MOVED.dtypes - {DType.COMPLEX64}, common=True)
"""Types without complex numbers, which the CPU's kernels take for floats."""


@register
class MatrixDiag(Op):
    """Creates square matrices with the input as diagonals and zeros elsewhere."""

    name = "MATRIX_DIAG"
    max_version = 1
    takes = (_TYPES,)
    gives = None

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            checks.input_count(node, 1, 1),
            checks.operands(graph, node, (1,)),
            lambda: _check_mask((0, *graph.values[node.inputs[0]].shape)[-1], 1),
        )

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        shape = graph.values[node.inputs[0]].shape
        return ((*shape, shape[-1]),)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        source = graph.values[node.inputs[0]]
        outer, size = math.prod(source.shape[:-1]), source.shape[-1]
        (rows,), nodes = reshaped(graph, node, node.inputs, [(outer, 1, size)], new_value)
        target = new_value((outer, size, size))
        zero = new_value((1, 1, 1), np.zeros((1, 1, 1), source.dtype.value))
        choice = EpilogueOp("SELECT", (_mask(size, size, new_value), zero), 1)
        return (
            *nodes,
            Node(node.index, COPY, 1, (rows,), (target,), epilogue=(choice,)),
            reshape_node(node, target, node.outputs[0]),
        )


@register
class MatrixSetDiag(Op):
    """Replaces the diagonals of matrices by the second input."""

    name = "MATRIX_SET_DIAG"
    max_version = 1
    takes = (_TYPES, _TYPES)
    gives = None

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            checks.input_count(node, 2, 2),
            checks.operands(graph, node, (2,)),
            lambda: _check_diagonal(graph, node),
        )

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        return (graph.values[node.inputs[0]].shape,)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        shape = graph.values[node.inputs[0]].shape
        outer, (height, width) = math.prod(shape[:-2]), shape[-2:]
        views = [(outer, height, width), (outer, 1, min(height, width))]
        (matrix, diagonal), nodes = reshaped(graph, node, node.inputs, views, new_value)
        if height < width:
            wide = new_value((outer, 1, width))
            sources = (Source(((0, 1),)), Source(), Source(((2, 1),), bounded=True))
            attributes = IndexMapAttributes(plain((outer, 1, width)), sources)
            nodes.append(
                Node(node.index, INDEX_MAP, 1, (diagonal,), (wide,), attributes=attributes)
            )
            diagonal = wide
        target = new_value((outer, height, width))
        choice = EpilogueOp("SELECT", (_mask(height, width, new_value), diagonal), 2)
        return (
            *nodes,
            Node(node.index, COPY, 1, (matrix,), (target,), epilogue=(choice,)),
            reshape_node(node, target, node.outputs[0]),
        )


def _mask(height: int, width: int, new_value: NewValue) -> int:
    """Return a constant that is true on the diagonal."""
    return new_value((1, height, width), np.eye(height, width, dtype=np.bool_)[None])


def _check_mask(height: int, width: int) -> str:
    if 0 < max(height, width) ** 2 <= _MAX_ELEMENTS:
        return ""
    return f"Matrices of {height} x {width} elements are not supported."


def _check_diagonal(graph: Graph, node: Node) -> str:
    shape, diagonal = (graph.values[v].shape for v in node.inputs)
    if len(shape) < 2 or diagonal != (*shape[:-2], min(shape[-2:])):
        return f"A diagonal of {list(diagonal)} does not fit {list(shape)}."
    return _check_mask(*shape[-2:])
