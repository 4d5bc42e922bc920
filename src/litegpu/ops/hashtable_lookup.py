"""HASHTABLE_LOOKUP: finds rows of a table by their keys."""

from __future__ import annotations

import math
from collections.abc import Sequence

from litegpu.codegen import INT, register_of
from litegpu.graph import DType, Graph, Node
from litegpu.ops.base import (
    InternalOp,
    KernelRequest,
    LowerContext,
    NewValue,
    Op,
    Shape,
    register,
)
from litegpu.ops.common import checks
from litegpu.ops.common.types import MOVED, Types
from litegpu.ops.reshape import reshape_node, reshaped

_FIND = "FIND_KEYS"
_KEYS = Types(frozenset({DType.INT32}))


@register
class HashtableLookup(Op):
    """Finds rows in a table with sorted keys (zeros for missing keys), and reports found keys."""

    name = "HASHTABLE_LOOKUP"
    max_version = 1
    cpu_bytes_per_second = 15e9
    takes = (_KEYS, _KEYS, Types(MOVED.dtypes))
    gives = Types(MOVED.dtypes)

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            checks.input_count(node, 3, 3),
            checks.operands(graph, node, (1, 2, 3), outputs=2),
            checks.integers(
                graph, node, 0, "The wanted keys", constant=False, kinds=(DType.INT32,)
            ),
            checks.integers(graph, node, 1, "The keys", constant=False, kinds=(DType.INT32,)),
            checks.operand(graph, node, 2, "The table", (*MOVED.dtypes,)),
            lambda: _check_table(graph, node),
        )

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        wanted, _, table = (graph.values[v].shape for v in node.inputs)
        return (*wanted, *table[1:]), wanted

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        wanted, keys, table = node.inputs
        count, *inner = graph.values[table].shape
        shape = (count, math.prod(inner))
        (flat,), nodes = reshaped(graph, node, [table], [shape], new_value)
        (found_count,) = graph.values[wanted].shape
        found = new_value((found_count, shape[1]), dtype=graph.values[table].dtype)
        rows, hits = node.outputs
        return (
            *nodes,
            Node(node.index, _FIND, 1, (wanted, keys, flat), (found,)),
            Node(node.index, _FIND, 1, (wanted, keys), (hits,)),
            reshape_node(node, found, rows),
        )


def _check_table(graph: Graph, node: Node) -> str:
    wanted, keys, table, rows, hits = (graph.values[v] for v in (*node.inputs, *node.outputs))
    if len(wanted.shape) != 1 or len(keys.shape) != 1 or table.shape[:1] != keys.shape:
        shapes = [list(each.shape) for each in (wanted, keys, table)]
        return f"Keys of {shapes[0]} are looked up by those of {shapes[1]} in {shapes[2]}."
    if rows.dtype is not table.dtype or hits.dtype is not DType.UINT8:
        return f"A table of {table.dtype.name} gives {rows.dtype.name} and {hits.dtype.name}."
    return ""


@register
class FindKeys(InternalOp):
    """Returns the found rows of the third input, or without a third input, which keys exist."""

    name = _FIND

    def lower(self, node: Node, ctx: LowerContext) -> Sequence[KernelRequest]:
        dst = ctx.storage(node.outputs[0])
        request = KernelRequest(
            template="find_keys",
            grid=(dst.channel_blocks, dst.rows, 1),
            output=node.outputs[0],
            reads=dict(zip(("wanted", "keys", "table"), node.inputs, strict=False)),
            variables={"count": ctx.storage(node.inputs[1]).channels, "rows": len(node.inputs) > 2},
            accumulator=register_of(dst.dtype) if len(node.inputs) > 2 else INT,
        )
        return (request,)
