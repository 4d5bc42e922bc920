"""GATHER: selects slices of a value by indices along an axis."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from litegpu.graph import Graph, Node
from litegpu.ops.base import Cuts, NewValue, Op, Shape, constant_list, register
from litegpu.ops.common import checks
from litegpu.ops.common.facts import Array, Folded
from litegpu.ops.common.types import INDICES, MOVED
from litegpu.ops.index_map import MixedRadix, Source, index_map_node, plain, strides
from litegpu.ops.strided_slice import part_nodes

_VALUES = (*checks.READABLE_CONSTANTS, *MOVED.dtypes)

_MAX_DIGITS = 3
"""Maximum number of digits of an index, since each digit costs a division."""


@register
class Gather(Op):
    """Selects slices along `axis` by constant or computed indices; `batch_dims` pairs batches."""

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

    def cuts(self, graph: Graph, node: Node) -> Cuts | None:
        indices = graph.values[node.inputs[1]]
        if not indices.is_constant or len(indices.shape) > 1 or _batch_dims(graph, node):
            return None
        table = constant_list(graph, indices.id)
        chosen = range(table[0], table[0] + len(table)) if table else range(0)
        if list(chosen) != table:
            return None
        axis, shape = _axis(graph, node), graph.values[node.inputs[0]].shape
        ranges = [chosen if i == axis else range(size) for i, size in enumerate(shape)]
        return Cuts(node.inputs[0], (ranges,))

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        if cuts := self.cuts(graph, node):
            return part_nodes(graph, node, cuts.source, cuts.ranges[0], node.outputs[0], new_value)
        shape, indices = (graph.values[v].shape for v in node.inputs)
        axis, batch = _axis(graph, node), _batch_dims(graph, node)
        inner = len(indices) - batch
        axes = (*range(batch), *range(axis, axis + inner))
        terms = tuple(zip(axes, strides(indices), strict=True))
        fixed = graph.values[node.inputs[1]].is_constant
        table = tuple(constant_list(graph, node.inputs[1])) if fixed else None
        digits = plain(graph.values[node.outputs[0]].shape)
        source = Source(terms, table=table, operand=not fixed)
        if (steps := _steps(table or ())) and inner == 1 and batch == 0:
            digits = (*digits[:axis], MixedRadix(tuple(n for n, _ in steps)), *digits[axis + 1 :])
            numbered = tuple((axis + i, step) for i, (_, step) in enumerate(steps))
            source, inner = Source(numbered, offset=(table or (0,))[0]), len(steps)
        sources = [
            *(Source(((i, 1),)) for i in range(axis)),
            source,
            *(Source(((i + inner - 1, 1),)) for i in range(axis + 1, len(shape))),
        ]
        return (index_map_node(graph, node, digits, sources),)


def _steps(table: Sequence[int]) -> list[tuple[int, int]]:
    """Return digits (size, step), outermost first, whose sums are the table minus its first entry.

    Repeated indices have step 0. The list is empty if it would have too many digits, in which case
    a table lookup is cheaper.
    """
    steps: list[tuple[int, int]] = []
    rest = np.array(table, np.int64)
    while len(rest) > 1 and len(steps) < _MAX_DIGITS:
        change = np.diff(rest)
        size = int(np.argmax(change != change[0])) + 1 if (change != change[0]).any() else len(rest)
        runs = rest[: len(rest) // size * size].reshape(-1, size)
        if runs.size < len(rest) or (np.diff(runs, axis=1) != change[0]).any():
            return []
        steps.insert(0, (size, int(change[0])))
        rest = runs[:, 0]
    return steps if len(rest) == 1 else []


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
    return (
        f"The shape {list(shape)} and the indices {list(indices)} differ in the first {batch} "
        "(batch) dimensions."
    )


def _check_indices(graph: Graph, node: Node) -> str:
    size = graph.values[node.inputs[0]].shape[_axis(graph, node)]
    found = graph.values[node.inputs[1]].data
    if found is None or (found.min() >= 0 and found.max() < size):
        return ""
    return f"The indices are between {found.min()} and {found.max()}; the axis has {size} elements."
