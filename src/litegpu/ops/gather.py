"""GATHER: slices of a value, selected by indices along an axis."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from litegpu.graph import Graph, Node
from litegpu.ops.base import NewValue, Op, Shape, constant_list, register
from litegpu.ops.common import checks
from litegpu.ops.common.facts import Array, Folded
from litegpu.ops.common.types import INDICES, MOVED
from litegpu.ops.index_map import Source, index_map_node, plain, strides

_VALUES = (*checks.READABLE_CONSTANTS, *MOVED.dtypes)


@register
class Gather(Op):
    """Slices along `axis`, selected by constant or computed indices; `batch_dims` pairs batches."""

    name = "GATHER"
    max_version = 8
    cpu_bytes_per_second = 15e9
    takes = (MOVED, INDICES)
    gives = None

    def fold(self, graph: Graph, node: Node, operands: Sequence[Array]) -> Folded | None:
        if node.params.get("batch_dims", 0):
            return None
        data, indices = operands
        axis = node.params["axis"]
        count = int(data.size // max(data.shape[axis], 1) * indices.size)
        return Folded(count, lambda: [np.take(data, indices, axis=axis)])

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            checks.input_count(node, 2, 2),
            checks.operands(graph, node, (1, 2)),
            checks.operand(graph, node, 0, "The value", _VALUES),
            checks.integers(
                graph, node, 1, "The indices", constant=False, kinds=(*INDICES.dtypes,)
            ),
            lambda: checks.axis(graph, node.inputs[0], node.params["axis"]),
            lambda: _check_shapes(graph, node),
            lambda: _check_indices(graph, node),
        )

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        shape, indices = (graph.values[v].shape for v in node.inputs)
        axis, batch = _axis(graph, node), _batch_dims(graph, node)
        return ((*shape[:axis], *indices[batch:], *shape[axis + 1 :]),)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        shape, indices = (graph.values[v].shape for v in node.inputs)
        axis, batch = _axis(graph, node), _batch_dims(graph, node)
        inner = len(indices) - batch
        axes = (*range(batch), *range(axis, axis + inner))
        terms = tuple(zip(axes, strides(indices), strict=True))
        fixed = graph.values[node.inputs[1]].is_constant
        table = tuple(constant_list(graph, node.inputs[1])) if fixed else None
        sources = [
            *(Source(((i, 1),)) for i in range(axis)),
            Source(terms, table=table, operand=not fixed),
            *(Source(((i + inner - 1, 1),)) for i in range(axis + 1, len(shape))),
        ]
        return (index_map_node(graph, node, plain(graph.values[node.outputs[0]].shape), sources),)


def _axis(graph: Graph, node: Node) -> int:
    axis: int = node.params["axis"]
    return axis % len(graph.values[node.inputs[0]].shape)


def _batch_dims(graph: Graph, node: Node) -> int:
    batch: int = node.params.get("batch_dims", 0)
    return batch + len(graph.values[node.inputs[1]].shape) if batch < 0 else batch


def _check_shapes(graph: Graph, node: Node) -> str:
    shape, indices = (graph.values[v].shape for v in node.inputs)
    batch = _batch_dims(graph, node)
    if 0 <= batch <= min(_axis(graph, node), len(indices)) and shape[:batch] == indices[:batch]:
        return ""
    return f"{list(shape)} and indices {list(indices)} do not share {batch} batch dimensions."


def _check_indices(graph: Graph, node: Node) -> str:
    size = graph.values[node.inputs[0]].shape[_axis(graph, node)]
    found = graph.values[node.inputs[1]].data
    if found is None or (found.min() >= 0 and found.max() < size):
        return ""
    return f"The indices reach from {found.min()} to {found.max()}; the axis has {size} elements."
