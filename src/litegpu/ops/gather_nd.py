"""GATHER_ND: selects each slice of a value by a row of indices into the leading axes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from litegpu.graph import Graph, Node
from litegpu.ops.base import NewValue, Op, Shape, register
from litegpu.ops.common import checks
from litegpu.ops.common.facts import Array, Folded
from litegpu.ops.common.types import INDICES, MOVED
from litegpu.ops.index_map import Source, index_map_node, plain, strides


@register
class GatherNd(Op):
    """Selects slices of a value by rows of constant or computed indices into the leading axes."""

    name = "GATHER_ND"
    max_version = 6
    cpu_bytes_per_second = 15e9
    takes = (MOVED, INDICES)
    gives = None

    def fold(self, graph: Graph, node: Node, operands: Sequence[Array]) -> Folded | None:
        data, indices = operands
        depth = indices.shape[-1]
        count = indices.size // max(depth, 1) * int(np.prod(data.shape[depth:]))
        return Folded(count, lambda: [data[tuple(np.moveaxis(indices, -1, 0))]])

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            checks.input_count(node, 2, 2),
            checks.operands(graph, node, (1, 2)),
            checks.constants(graph, node, "The value", MOVED),
            checks.integers(
                graph, node, 1, "The indices", constant=False, kinds=(*INDICES.dtypes,)
            ),
            lambda: _check_indices(graph, node),
        )

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        shape, indices = (graph.values[v].shape for v in node.inputs)
        return ((*indices[:-1], *shape[indices[-1] :]),)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        shape = graph.values[node.inputs[0]].shape
        indices = graph.values[node.inputs[1]]
        rows, depth = indices.shape[:-1], indices.shape[-1]
        terms = tuple((i, step * depth) for i, step in enumerate(strides(rows)))
        table = None if indices.data is None else tuple(indices.data.ravel().tolist())
        sources = [Source(terms, k, table=table, operand=table is None) for k in range(depth)]
        rest = range(depth, len(shape))
        sources += [Source(((len(rows) + i - depth, 1),)) for i in rest]
        return (index_map_node(graph, node, plain((*rows, *shape[depth:])), sources),)


def _check_indices(graph: Graph, node: Node) -> str:
    shape, indices = (graph.values[v].shape for v in node.inputs)
    if not indices or indices[-1] > len(shape):
        return f"Indices of {list(indices)} do not fit {list(shape)}."
    found = graph.values[node.inputs[1]].data
    if found is None or ((found >= 0) & (found < shape[: indices[-1]])).all():
        return ""
    return f"The indices are between {found.min()} and {found.max()}; the value has {list(shape)}."
