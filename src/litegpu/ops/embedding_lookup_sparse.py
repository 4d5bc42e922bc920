"""EMBEDDING_LOOKUP_SPARSE: adds weighted rows of a table, with one sum for each bucket."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from litegpu.graph import DType, Graph, Node
from litegpu.ops.base import (
    InternalOp,
    KernelRequest,
    LowerContext,
    NewValue,
    Op,
    Shape,
    Values,
    constant_list,
    one_of,
    register,
)
from litegpu.ops.common import checks, facts
from litegpu.ops.common.types import FLOATS, Types
from litegpu.ops.common.units import Unit
from litegpu.ops.index_map import strides
from litegpu.ops.reshape import reshape_node, reshaped
from litegpu.ops.segments import MAX_ROWS

_SUM, _MEAN = range(2)
_BUCKETS = "EMBEDDING_BUCKETS"
_INT32 = Types(frozenset({DType.INT32}))


@dataclass(frozen=True, slots=True)
class BucketAttributes:
    """The sizes of the indexed axes, and the divisor: none, the weights' sum, or their norm."""

    sizes: Shape
    combiner: int


@register
class EmbeddingLookupSparse(Op):
    """Adds weighted rows per bucket, and optionally divides by the weights' sum or norm."""

    name = "EMBEDDING_LOOKUP_SPARSE"
    max_version = 1
    shape_operands = (2,)
    cpu_bytes_per_second = 15e9
    takes = (_INT32, _INT32, _INT32, FLOATS, FLOATS)
    accepts: ClassVar[Mapping[str, Values]] = {"combiner": one_of(0, 1, 2)}

    def flops(self, graph: Graph, node: Node) -> int:
        table = graph.values.get(facts.operand(node.inputs, 4))
        width = math.prod(table.shape[1:]) if table is not None else 0
        return 2 * width * facts.elements(graph, facts.operand(node.inputs, 0))

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            checks.input_count(node, 5, 5),
            checks.operands(graph, node, (1, 2, 3, 4)),
            checks.integers(graph, node, 0, "The rows", constant=False, kinds=(DType.INT32,)),
            checks.integers(graph, node, 1, "The indices", constant=False, kinds=(DType.INT32,)),
            checks.integers(graph, node, 2, "The shape", kinds=(DType.INT32,)),
            checks.operand(graph, node, 3, "The weights"),
            checks.operand(graph, node, 4, "The table"),
            lambda: _check_shapes(graph, node),
        )

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        axes = constant_list(graph, node.inputs[2])[:-1]
        return ((*axes, *graph.values[node.inputs[4]].shape[1:]),)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        rows, indices, _, weights, table = node.inputs
        axes = tuple(constant_list(graph, node.inputs[2])[:-1])
        count, *inner = graph.values[table].shape
        width = math.prod(inner)
        (flat,), nodes = reshaped(graph, node, [table], [(count, width)], new_value)
        target = new_value((math.prod(axes), width), dtype=DType.FLOAT32)
        attributes = BucketAttributes(axes, node.params["combiner"])
        inputs = (rows, indices, weights, flat)
        buckets = replace(
            node, op=_BUCKETS, inputs=inputs, outputs=(target,), attributes=attributes
        )
        return (*nodes, buckets, reshape_node(node, target, node.outputs[0]))


def _check_shapes(graph: Graph, node: Node) -> str:
    rows, indices, _, weights, table = (graph.values[v].shape for v in node.inputs)
    shape = constant_list(graph, node.inputs[2])
    if (
        len(rows) != 1
        or weights != rows
        or indices != (*rows, len(shape))
        or len(shape) < 2
        or len(table) < 2
    ):
        return (
            f"Rows of {list(rows)} with weights of {list(weights)} at indices of {list(indices)} "
            f"do not produce {shape} from {list(table)}."
        )
    if rows[0] > MAX_ROWS:
        return f"The node combines {rows[0]} rows; at most {MAX_ROWS} are supported."
    return ""


@register
class EmbeddingBuckets(InternalOp):
    """Adds weighted rows per bucket; only EMBEDDING_LOOKUP_SPARSE creates this op."""

    name = _BUCKETS

    def lower(self, node: Node, ctx: LowerContext) -> Sequence[KernelRequest]:
        attributes: BucketAttributes = node.attributes
        dst, rows = ctx.storage(node.outputs[0]), ctx.storage(node.inputs[0]).channels
        divisor = "" if attributes.combiner == _SUM else "weight"
        if attributes.combiner > _MEAN:
            divisor = "square"
        request = KernelRequest(
            template="embedding_buckets",
            grid=(dst.channel_blocks, dst.rows, 1),
            output=node.outputs[0],
            reads=dict(zip(("rows", "indices", "weights", "table"), node.inputs, strict=True)),
            variables={
                "count": rows,
                "steps": strides(attributes.sizes),
                "depth": len(attributes.sizes) + 1,
                "divisor": divisor,
                "last_row": ctx.storage(node.inputs[3]).rows - 1,
            },
            work={Unit.FP32: 2 * rows * dst.channels},
        )
        return (request,)
