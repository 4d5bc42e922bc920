"""TOPK_V2: finds the largest elements of each row in descending order, and their indices."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from litegpu.codegen import INT
from litegpu.graph import DType, Graph, Node
from litegpu.ops.base import (
    InternalOp,
    KernelRequest,
    LowerContext,
    NewValue,
    Op,
    Shape,
    add,
    constant_list,
    register,
)
from litegpu.ops.common import checks, facts
from litegpu.ops.common.types import INTEGERS, MOVED, Types
from litegpu.ops.common.units import Unit
from litegpu.ops.index_map import INDEX_MAP, IndexMapAttributes, Source, plain
from litegpu.ops.reshape import reshape_node, reshaped

_SORTED = Types(MOVED.dtypes - {DType.BOOL, DType.COMPLEX64}, common=True)
_RANK, _FIND = "TOP_K_RANK", "TOP_K_FIND"
_MAX_ELEMENTS = 1 << 17
"""Maximum length of a row, since the kernel compares each element with all others."""


@register
class TopK(Op):
    """Returns the `k` largest elements along the last axis, descending, and their indices."""

    name = "TOPK_V2"
    max_version = 3
    shape_operands = (1,)
    cpu_bytes_per_second = 15e9
    takes = (_SORTED, INTEGERS)
    gives = Types(_SORTED.dtypes)

    def flops(self, graph: Graph, node: Node) -> int:
        return facts.of_input(graph, node)

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            checks.input_count(node, 2, 2),
            checks.operands(graph, node, (1,), outputs=2),
            checks.operand(graph, node, 0, "The input"),
            checks.integers(graph, node, 1, "The count", kinds=(DType.INT32,)),
            lambda: _check_count(graph, node),
        )

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        (count,) = constant_list(graph, node.inputs[1])
        shape = (*graph.values[node.inputs[0]].shape[:-1], count)
        return shape, shape

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        source = graph.values[node.inputs[0]]
        (count,) = constant_list(graph, node.inputs[1])
        rows, size = math.prod(source.shape[:-1]), source.shape[-1]
        (flat,), nodes = reshaped(graph, node, [source.id], [(rows, size)], new_value)
        ranks = new_value((rows, size), dtype=DType.INT32)
        places = new_value((rows, count), dtype=DType.INT32)
        values = new_value((rows, count), dtype=source.dtype)
        chosen = IndexMapAttributes(
            plain((rows, count)),
            (Source(((0, 1),)), Source(((0, count), (1, 1)), operand=True)),
        )
        return (
            *nodes,
            Node(node.index, _RANK, 1, (flat,), (ranks,)),
            Node(node.index, _FIND, 1, (ranks,), (places,)),
            Node(node.index, INDEX_MAP, 1, (flat, places), (values,), attributes=chosen),
            reshape_node(node, values, node.outputs[0]),
            reshape_node(node, places, node.outputs[1]),
        )


def _check_count(graph: Graph, node: Node) -> str:
    source, values, places = (graph.values[v] for v in (node.inputs[0], *node.outputs))
    count = constant_list(graph, node.inputs[1])
    if not source.shape or len(count) != 1 or not 0 < count[0] <= source.shape[-1]:
        return f"The {count} largest elements of {list(source.shape)} are requested."
    if source.shape[-1] > _MAX_ELEMENTS:
        return f"Rows have {source.shape[-1]} elements; at most {_MAX_ELEMENTS} are supported."
    if values.dtype is not source.dtype or places.dtype is not DType.INT32:
        return (
            f"The results are {values.dtype.name} and {places.dtype.name} for {source.dtype.name}."
        )
    return ""


@dataclass(frozen=True, slots=True)
class _Step(InternalOp):
    """A step that computes integers for each row; only TOPK_V2 creates this op."""

    name: str  # type: ignore[misc]
    template: str

    def lower(self, node: Node, ctx: LowerContext) -> Sequence[KernelRequest]:
        src, dst = ctx.storage(node.inputs[0]), ctx.storage(node.outputs[0])
        request = KernelRequest(
            template=self.template,
            grid=(dst.channel_blocks, dst.rows, 1),
            output=node.outputs[0],
            reads={"src": node.inputs[0]},
            variables={"blocks": -(-src.channels // 4)},
            work={Unit.INT32: 3 * dst.rows * dst.channels * src.channels},
            accumulator=INT,
        )
        return (request,)


add(_Step(_RANK, "top_k_rank"))
add(_Step(_FIND, "top_k_find"))
