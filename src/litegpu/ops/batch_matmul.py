"""BATCH_MATMUL: matrix products, one for each place in the leading dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from litegpu.graph import DType, Graph, Node, Value
from litegpu.ops import checks, facts
from litegpu.ops.base import (
    KernelRequest,
    LowerContext,
    NewValue,
    Op,
    Shape,
    SpecContext,
    as_float32,
    register,
)
from litegpu.ops.conv_spec import ConvSpec
from litegpu.ops.portable_tiles import TileProblem, choose_tile
from litegpu.ops.traits import Trait
from litegpu.ops.weights import Weights
from litegpu.ops.window import POINT

_BATCH_DIMS = 3
"""Dimensions before those of the matrices: at most 5 in all."""
_TILE = 64
"""Rows and columns that a block makes on tensor cores."""
_SMALLEST = 16
"""Smaller matrices leave most of a tile empty."""


@dataclass(frozen=True, slots=True)
class MatmulAttributes:
    """Which operands are transposed, the batch [a, b, c] of each and that of the result."""

    transposed: tuple[bool, bool]
    batches: tuple[Shape, Shape]
    batch: Shape


@register
class BatchMatmul(Op):
    """Product of matrices, transposed or not, of 2 to 5 dimensions; batches are broadcast."""

    name = "BATCH_MATMUL"
    max_version = 4
    traits = Trait.SUMS_PRODUCTS

    def flops(self, graph: Graph, node: Node) -> int:
        value = graph.values.get(facts.operand(node.inputs, 0))
        inner = -2 if node.params.get("adj_x") else -1
        depth = value.shape[inner] if value is not None and len(value.shape) > 1 else 0
        return 2 * facts.elements(graph, facts.operand(node.outputs, 0)) * depth

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            checks.input_count(node, 2, 2),
            checks.operands(graph, node, (1, 2)),
            checks.constants(graph, node, "The matrix"),
            lambda: _check_shapes(graph, node),
        )

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        (batch, other), (rows, _, columns) = _batches(graph, node), _sizes(graph, node)
        return ((*np.broadcast_shapes(batch, other), rows, columns),)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        first, second = _batches(graph, node)
        attributes = MatmulAttributes(
            _transposed(node),
            (_three(first), _three(second)),
            _three(np.broadcast_shapes(first, second)),
        )
        return (replace(node, attributes=attributes),)

    def specs(self, node: Node, ctx: SpecContext) -> Sequence[ConvSpec]:
        attributes: MatmulAttributes = node.attributes
        right = ctx.value(node.inputs[1])
        one_matrix = right.is_constant and attributes.batches[1] == (1, 1, 1)
        if not one_matrix or attributes.transposed[0]:
            return ()
        held = _dense(right, attributes.transposed[1])
        src, dst = ctx.storage(node.inputs[0]), ctx.storage(node.outputs[0])
        return (ConvSpec(src, dst, held, POINT, image=False),)

    def lower(self, node: Node, ctx: LowerContext) -> Sequence[KernelRequest]:
        plans = ctx.plans(node)
        if plans:
            return [plan.lower(node, ctx) for plan in plans]
        if _on_tensor_cores(node, ctx):
            return (_tensor_core_kernel(node, ctx),)
        return (_kernel(node, ctx),)


def _dense(right: Value, transposed: bool) -> Weights:
    """Return the one matrix that all rows are multiplied with as weights [O, 1, 1, I]."""
    matrix = as_float32(right).reshape(right.shape[-2:])
    array = matrix if transposed else np.ascontiguousarray(matrix.T)
    outputs, inputs = array.shape
    return Weights((outputs, 1, 1, inputs), array=array[:, None, None, :])


def _depth(node: Node, ctx: LowerContext) -> int:
    """Return the size of the inner dimension."""
    left = ctx.storage(node.inputs[0])
    return left.shape[2] if node.attributes.transposed[0] else left.channels


def _on_tensor_cores(node: Node, ctx: LowerContext) -> bool:
    """Whether the matrices fill enough of a tile of 64 x 64 x 16."""
    _, _, rows, columns = ctx.storage(node.outputs[0]).shape
    return ctx.target.model.tensor_cores and min(rows, columns, _depth(node, ctx)) >= _SMALLEST


def _tensor_core_kernel(node: Node, ctx: LowerContext) -> KernelRequest:
    attributes: MatmulAttributes = node.attributes
    dst = ctx.storage(node.outputs[0])
    splits = [ctx.storage(v).dtype is DType.FLOAT32 for v in node.inputs]
    _, _, rows, columns = dst.shape
    blocks = -(-rows // _TILE)
    depth = _depth(node, ctx)
    flops = 2 * dst.rows * columns * depth
    return KernelRequest(
        template="cuda/matmul",
        grid=(-(-columns // _TILE) * 128, blocks * dst.shape[0] * dst.shape[1], 1),
        local=(128, 1, 1),
        output=node.outputs[0],
        reads={"left": node.inputs[0], "right": node.inputs[1]},
        variables={
            "SPLIT_A": splits[0],
            "SPLIT_B": splits[1],
            "blocks": blocks,
            "depth": depth,
            "transposed": attributes.transposed,
            "places": [_place(each, attributes.batch) for each in attributes.batches],
        },
        shared=(("uint4", "scratch", _TILE * (_TILE + 4) // 4),),
        flops=flops,
        # An instruction of tf32 does half the work of one of halves, in as much time.
        matrix_flops=2 * (1 + sum(splits)) * flops,
    )


def _kernel(node: Node, ctx: LowerContext) -> KernelRequest:
    attributes: MatmulAttributes = node.attributes
    dst = ctx.storage(node.outputs[0])
    _, _, rows, columns = dst.shape
    depth = _depth(node, ctx)
    terms = (rows, depth, *map(int, attributes.transposed))
    stored = ctx.storage(node.inputs[0]).dtype.value
    problem = TileProblem("batch_matmul", dst.rows, dst.slices, terms, stored)
    pixels, slices = choose_tile(problem, ctx)
    pixels = min(pixels, rows)
    blocks = -(-rows // pixels)
    return KernelRequest(
        template="batch_matmul",
        grid=(-(-dst.slices // slices), blocks * dst.shape[0] * dst.shape[1], 1),
        local=(8, 8, 1),
        output=node.outputs[0],
        reads={"left": node.inputs[0], "right": node.inputs[1]},
        variables={
            "PIXELS": pixels,
            "SLICES": slices,
            "blocks": blocks,
            "depth": depth,
            "transposed": attributes.transposed,
            "places": [_place(each, attributes.batch) for each in attributes.batches],
        },
        flops=2 * dst.rows * columns * depth,
    )


def _place(own: Shape, batch: Shape) -> tuple[str, str]:
    """Return kernel text of an operand's N and H for number `b` of the result's batch."""
    _, middle, inner = batch
    numbers = (f"b / {middle * inner}", f"b / {inner} % {middle}", f"b % {inner}")
    first, second, third = (
        f"({text})" if size > 1 else "0" for text, size in zip(numbers, own, strict=True)
    )
    return (f"({first} * {own[1]} + {second})", third)


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
    """Return the dimensions of both operands before those of the matrices."""
    first, second = (graph.values[v].shape[:-2] for v in node.inputs)
    return first, second


def _sizes(graph: Graph, node: Node) -> tuple[int, int, int]:
    """Return rows, inner size (-1 if the operands differ) and columns of the product."""
    (rows, depth), (other, columns) = (
        graph.values[v].shape[-2:][:: -1 if adjoint else 1]
        for v, adjoint in zip(node.inputs, _transposed(node), strict=True)
    )
    return rows, depth if depth == other else -1, columns


def _three(batch: Shape) -> Shape:
    return (1,) * (_BATCH_DIMS - len(batch)) + batch
