"""EMBEDDING_LOOKUP: gathers rows of a table by index."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from litegpu.codegen import INT
from litegpu.graph import PACKED_TYPES, DType, EpilogueOp, Graph, Node, Value
from litegpu.ops.base import COPY, NewValue, Op, Shape, register
from litegpu.ops.common import checks
from litegpu.ops.common.facts import Array, Folded
from litegpu.ops.common.functions import cast_name
from litegpu.ops.common.types import MOVED, Types
from litegpu.ops.gather import Gather

_SCALED = (*PACKED_TYPES, DType.INT8)
_GATHER = Gather()


@register
class EmbeddingLookup(Op):
    """Gathers rows of a table by index, and dequantizes quantized rows."""

    name = "EMBEDDING_LOOKUP"
    max_version = 5
    cpu_bytes_per_second = 15e9
    takes = (Types(frozenset({DType.INT32})), Types(MOVED.dtypes))
    gives = Types(MOVED.dtypes)

    def fold(self, graph: Graph, node: Node, operands: Sequence[Array]) -> Folded | None:
        if _is_scaled(graph, node):
            return None
        rows, table = operands
        count = rows.size * (table.size // table.shape[0])
        return Folded(count, lambda: [table[rows]])

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            checks.input_count(node, 2, 2),
            checks.operands(graph, node, (1, 2)),
            checks.integers(graph, node, 0, "The rows", constant=False, kinds=(DType.INT32,)),
            checks.operand(graph, node, 1, "The table", (*MOVED.dtypes, *PACKED_TYPES)),
            lambda: _check_table(graph, node),
            lambda: "" if _is_scaled(graph, node) else _GATHER.check(graph, _gather(node)),
        )

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        rows, table = (graph.values[v].shape for v in node.inputs)
        return ((*rows, *table[1:]),)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        if not _is_scaled(graph, node):
            return _GATHER.normalize(graph, _gather(node), new_value)
        table, result = graph.values[node.inputs[1]], graph.values[node.outputs[0]]
        assert table.data is not None
        (count,) = graph.values[node.inputs[0]].shape
        scales = _scales(table)
        # A row has one scale, or one for each block.
        sizes = (scales.shape[1], -1) if table.blockwise else table.shape[1:]
        data = np.asarray(table.data).reshape(table.shape[0], *sizes)
        shape = (count, *data.shape[1:])
        stored = new_value(shape, dtype=DType.INT8)
        whole = table.dtype is DType.INT8
        source = table.id if whole else new_value(data.shape, data, dtype=DType.INT8)
        values = {v: graph.values[v] for v in node.inputs}
        values |= {v: replace(table, id=v, shape=shape, dtype=DType.INT8) for v in (stored, source)}
        values[source] = replace(values[source], shape=data.shape)
        rows = replace(node, inputs=(node.inputs[0], source), outputs=(stored,))
        nodes = [*_GATHER.normalize(replace(graph, values=values), _gather(rows), new_value)]
        factor = new_value(scales.shape, scales, precise=True)
        if len(scales) > 1:
            all_scales, factor = factor, new_value((count, *scales.shape[1:]), precise=True)
            values[all_scales] = replace(table, shape=scales.shape, dtype=DType.FLOAT32)
            values[factor] = replace(table, shape=(count, *scales.shape[1:]), data=None)
            rows = replace(node, inputs=(node.inputs[0], all_scales), outputs=(factor,))
            nodes += _GATHER.normalize(replace(graph, values=values), _gather(rows), new_value)
        epilogue = (EpilogueOp(cast_name(INT, DType.FLOAT32)), EpilogueOp("MUL", (factor,)))
        if shape == result.shape:
            return (*nodes, Node(node.index, COPY, 1, (stored,), node.outputs, epilogue=epilogue))
        scaled = new_value(shape)
        return (
            *nodes,
            Node(node.index, COPY, 1, (stored,), (scaled,), epilogue=epilogue),
            Node(node.index, "RESHAPE", 1, (scaled,), node.outputs),
        )


def _gather(node: Node) -> Node:
    """Return a GATHER along the first axis that performs the node's lookup."""
    return replace(node, inputs=node.inputs[::-1], params={"axis": 0})


def _is_scaled(graph: Graph, node: Node) -> bool:
    table, result = graph.values[node.inputs[1]], graph.values[node.outputs[0]]
    return table.dtype in _SCALED and result.dtype is DType.FLOAT32


def _scales(table: Value) -> Array:
    """Return the scales as [rows, ..., 1], or as [1, ..., 1] if all rows have the same scale."""
    if table.blockwise is not None:
        return table.blockwise.scales.astype(np.float32)[..., None]
    assert table.quantization is not None
    scales = np.asarray(table.quantization.scale, np.float32)
    return scales.reshape(-1, *(1 for _ in table.shape[1:]))


def _check_table(graph: Graph, node: Node) -> str:
    rows, table, result = (graph.values[v] for v in (*node.inputs, *node.outputs))
    if len(rows.shape) != 1 or len(table.shape) < 2:
        return f"Indices of the shape {list(rows.shape)} do not fit a table of {list(table.shape)}."
    if not _is_scaled(graph, node):
        if result.dtype is table.dtype or table.dtype is DType.FLOAT16:
            return ""
        return f"A table of {table.dtype.name} cannot produce {result.dtype.name}."
    if not table.is_constant:
        return "The table of quantized values is computed at run time."
    bits = table.dtype.packed_bits
    if table.blockwise is not None:
        if not bits:
            return "The INT8 table has a scale for each block, which the CPU rejects."
        columns = table.blockwise.size
    else:
        found = table.quantization
        scales = 0 if found is None else len(found.scale)
        if found is None or scales not in (1, table.shape[0]) or found.dimension != 0:
            return f"The table has {scales} scales for {table.shape[0]} rows."
        columns = math.prod(table.shape[1:])
    if columns * bits % 8:
        return f"Rows of {bits}-bit values end within a byte, which the CPU reads in a special way."
    return ""
