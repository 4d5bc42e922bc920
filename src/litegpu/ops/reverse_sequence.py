"""REVERSE_SEQUENCE: reverses the first elements along an axis; each batch has a length."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from litegpu.graph import DType, EpilogueOp, Graph, Node
from litegpu.ops.base import COPY, NewValue, Op, Shape, Values, register
from litegpu.ops.common import checks
from litegpu.ops.common.types import INTEGERS, MOVED
from litegpu.ops.index_map import INDEX_MAP, IndexMapAttributes, Source, plain
from litegpu.ops.reshape import reshape_node


@register
class ReverseSequence(Op):
    """Reverses the first elements along `seq_dim`; their number may differ per batch."""

    name = "REVERSE_SEQUENCE"
    max_version = 1
    cpu_bytes_per_second = 15e9
    takes = (MOVED, INTEGERS)
    gives = None
    accepts: ClassVar = {
        "seq_dim": Values(about="a dimension, not batch_dim", wrong=(9, 0)),
        "batch_dim": Values(about="a dimension, not seq_dim", wrong=(9, 1)),
    }

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            checks.input_count(node, 2, 2),
            checks.operands(graph, node, (1, 2)),
            checks.computed(graph, node, 0, "The input"),
            checks.integers(graph, node, 1, "The lengths", constant=False),
            lambda: _check_dimensions(graph, node),
        )

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        return (graph.values[node.inputs[0]].shape,)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        shape, lengths = graph.values[node.inputs[0]].shape, graph.values[node.inputs[1]]
        along, batch = node.params["seq_dim"], node.params["batch_dim"]
        steps = np.arange(shape[along], dtype=lengths.dtype.value)
        table, inputs, nodes = None, node.inputs[:1], list[Node]()
        if lengths.data is not None:
            ends = lengths.data[:, None]
            table = tuple(np.where(steps < ends, ends - 1 - steps, steps).ravel().tolist())
        else:
            places, nodes = _places(node, lengths.dtype, shape[batch], steps, new_value)
            inputs = (*inputs, places)
        terms = ((batch, shape[along]), (along, 1))
        looked_up = Source(terms, table=table, operand=table is None)
        sources = tuple(
            looked_up if axis == along else Source(((axis, 1),)) for axis in range(len(shape))
        )
        attributes = IndexMapAttributes(plain(shape), sources)
        moved = Node(node.index, INDEX_MAP, 1, inputs, node.outputs, attributes=attributes)
        return (*nodes, moved)


def _places(
    node: Node,
    dtype: DType,
    batches: int,
    steps: np.ndarray[tuple[int], np.dtype[np.integer]],
    new_value: NewValue,
) -> tuple[int, list[Node]]:
    """Return the source index for each batch and step, from computed lengths."""
    shape = (batches, steps.size)
    column, mirrored, places = (new_value(s, dtype=dtype) for s in ((batches, 1), shape, shape))
    beyond = new_value(shape, dtype=DType.BOOL)
    one, zero = (new_value((1, 1), np.full((1, 1), n, steps.dtype)) for n in (1, 0))
    numbers = new_value((1, steps.size), steps[None])
    minus = (EpilogueOp("INTEGER_SUB", (one,)), EpilogueOp("INTEGER_SUB", (numbers,)))
    less, choice = EpilogueOp("INTEGER_LESS", (zero,)), EpilogueOp("SELECT", (numbers, mirrored))
    return places, [
        reshape_node(node, node.inputs[1], column),
        Node(node.index, COPY, 1, (column,), (mirrored,), epilogue=minus),
        Node(node.index, COPY, 1, (mirrored,), (beyond,), epilogue=(less,)),
        Node(node.index, COPY, 1, (beyond,), (places,), epilogue=(choice,)),
    ]


def _check_dimensions(graph: Graph, node: Node) -> str:
    shape, lengths = (graph.values[v].shape for v in node.inputs)
    along, batch = node.params["seq_dim"], node.params["batch_dim"]
    if not all(0 <= each < len(shape) for each in (along, batch)) or along == batch:
        return f"seq_dim = {along} and batch_dim = {batch} are not two of {len(shape)} dimensions."
    if lengths != (shape[batch],):
        return f"{list(lengths)} lengths do not fit {shape[batch]} batches."
    found = graph.values[node.inputs[1]].data
    if found is not None and not 0 <= found.min() <= found.max() <= shape[along]:
        return (
            f"The lengths are between {found.min()} and {found.max()}, but the dimension has "
            f"{shape[along]} elements."
        )
    return ""
