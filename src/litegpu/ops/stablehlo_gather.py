"""STABLEHLO_GATHER and STABLEHLO_SCATTER: read or update slices at computed positions.

The indices contain a position for each slice; the attributes list the axes to which the numbers of
a position refer. A slice with several elements along an indexed axis is split into several rows
with separate indices.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from litegpu.codegen import register_of
from litegpu.graph import DType, EpilogueOp, Graph, Node
from litegpu.ops.base import (
    COPY,
    KernelRequest,
    LowerContext,
    NewValue,
    Op,
    Shape,
    Values,
    register,
)
from litegpu.ops.common import checks
from litegpu.ops.common.facts import Array
from litegpu.ops.common.functions import cast_name, of_integers
from litegpu.ops.common.types import INTEGERS, MOVED, NUMBERS, VIEWED_AS, computed_as
from litegpu.ops.index_map import (
    INDEX_MAP,
    IndexMapAttributes,
    MixedRadix,
    Source,
    index_map_node,
    plain,
    strides,
)
from litegpu.ops.segments import MAX_ROWS, SegmentAttributes, segments_kernel

_VALUES = (*checks.READABLE_CONSTANTS, *MOVED.dtypes)


@dataclass(frozen=True, slots=True)
class _Part:
    """The geometry of slices: `sizes` elements of a value of `shape`.

    A position has one number for each axis in `mapped`. Axis `vector` of the indices enumerates the
    numbers of a position.
    """

    shape: Shape
    sizes: Shape
    mapped: Shape
    positions: Shape
    vector: int

    @property
    def batch(self) -> tuple[int, ...]:
        """The axes of the indices that enumerate positions."""
        return tuple(axis for axis in range(len(self.positions)) if axis != self.vector)

    @property
    def fits(self) -> bool:
        """Whether all attributes refer to existing axes and elements."""
        rank, axes = len(self.shape), len(self.positions)
        numbers = (*self.positions, 1)[self.vector] if 0 <= self.vector <= axes else 0
        return (
            len(self.sizes) == rank
            and all(0 < size <= n for size, n in zip(self.sizes, self.shape, strict=True))
            and len({*self.mapped}) == len(self.mapped) == numbers
            and all(0 <= axis < rank for axis in self.mapped)
        )


@dataclass(frozen=True, slots=True)
class _Rows:
    """The indices of single rows; `axes` lists axes of the indices, or -1 - axis for slice axes.

    `columns` are the axes of the value that a row's indices refer to.
    """

    part: _Part
    axes: tuple[int, ...]
    columns: tuple[int, ...]

    @property
    def sizes(self) -> Shape:
        """Number of rows along each entry of `axes`."""
        part = self.part
        return tuple(part.positions[a] if a >= 0 else part.sizes[-1 - a] for a in self.axes)

    @property
    def shape(self) -> Shape:
        """The shape of the indices: rows and columns."""
        return math.prod(self.sizes), len(self.columns)

    def offsets(self) -> Array:
        """Return the indices of each row relative to the start of its slice."""
        grid = np.indices(self.sizes).reshape(len(self.sizes), self.shape[0])
        zeros = np.zeros(self.shape[0], int)
        found = [
            grid[self.axes.index(-1 - axis)] if -1 - axis in self.axes else zeros
            for axis in self.columns
        ]
        return np.stack(found, -1)

    def nodes(
        self, graph: Graph, node: Node, clipped: bool, new_value: NewValue
    ) -> tuple[int, list[Node]]:
        """Return the value id of the rows' indices, and the nodes that compute these indices.

        If `clipped`, the nodes clamp positions so that slices are inside the value.
        """
        part, value = self.part, graph.values[node.inputs[1]]
        columns = [part.mapped.index(a) if a in part.mapped else -1 for a in self.columns]
        number, count = tuple(max(column, 0) for column in columns), len(self.axes)
        unsorted = number != tuple(range(count))
        sources = [
            Source(((count, 1),), table=number if unsorted else None)
            if axis == part.vector
            else Source(((self.axes.index(axis), 1),))
            for axis in range(len(part.positions))
        ]
        digits = (MixedRadix(self.sizes), MixedRadix((len(self.columns),)))
        picked, found = (new_value(self.shape, dtype=kind) for kind in (value.dtype, DType.INT32))
        steps: list[tuple[str, Array]] = []
        if -1 in columns:
            steps.append(("MUL", np.array([min(column + 1, 1) for column in columns])))
        room = [part.shape[axis] - part.sizes[axis] * clipped for axis in self.columns]
        steps.append(("MINIMUM", np.array(room)))
        if clipped:
            steps.append(("MAXIMUM", np.zeros(1, int)))
        if (offsets := self.offsets()).any():
            steps.append(("ADD", offsets))
        epilogue = [
            EpilogueOp(of_integers(name), (new_value(data.shape, data.astype(value.dtype.value)),))
            for name, data in steps
        ]
        if value.dtype is not DType.INT32:
            epilogue.append(EpilogueOp(cast_name(register_of(value.dtype), DType.INT32)))
        clip = Node(node.index, COPY, 1, (picked,), (found,), epilogue=tuple(epilogue))
        pick = Node(node.index, node.op, 1, (value.id,), (picked,))
        return found, [index_map_node(graph, pick, digits, sources), clip]


_ABOUT = {
    name: Values(about=about)
    for name, about in {
        "offset_dims": "dimensions of the result",
        "collapsed_slice_dims": "dimensions of the value",
        "start_index_map": "dimensions of the value",
        "index_vector_dim": "a dimension of the indices, or one more",
        "slice_sizes": "at most those of the value",
        "update_window_dims": "dimensions of the updates",
        "inserted_window_dims": "dimensions of the value",
        "scatter_dims_to_operand_dims": "dimensions of the value",
        "update_computation_subgraph_index": "a graph of one sum, product or extreme, or of none",
    }.items()
}


@register
class StablehloGather(Op):
    """Gathers slices at computed positions, clamped so that slices are inside the value."""

    name = "STABLEHLO_GATHER"
    max_version = 1
    cpu_bytes_per_second = 15e9
    takes = (MOVED, INTEGERS)
    gives = None
    accepts: ClassVar[Mapping[str, Values]] = {
        name: _ABOUT[name]
        for name in ("offset_dims", "collapsed_slice_dims", "start_index_map", "index_vector_dim")
    } | {"slice_sizes": _ABOUT["slice_sizes"]}

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            checks.input_count(node, 2, 2),
            checks.operands(graph, node, (1, 2)),
            checks.operand(graph, node, 0, "The value", _VALUES),
            checks.integers(graph, node, 1, "The indices", constant=False),
            lambda: _check_gather(graph, node),
        )

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        part, (batch, offsets) = _gathered(graph, node), _result_axes(graph, node)
        found = {
            **{axis: part.positions[i] for axis, i in zip(batch, part.batch, strict=True)},
            **{axis: part.sizes[i] for axis, i in offsets.items()},
        }
        return (tuple(size for _, size in sorted(found.items())),)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        part, (batch, offsets) = _gathered(graph, node), _result_axes(graph, node)
        wide = {axis for axis in part.mapped if part.sizes[axis] > 1}
        rows = _Rows(part, (*part.batch, *(-1 - axis for axis in sorted(wide))), part.mapped)
        found, nodes = rows.nodes(graph, node, clipped=True, new_value=new_value)
        of_part = {i: axis for axis, i in offsets.items()}
        axes = [*batch, *(of_part[axis] for axis in sorted(wide))]
        steps = [step * len(part.mapped) for step in strides(rows.sizes)]
        terms = tuple(zip(axes, steps, strict=True))
        sources = [
            Source(terms, part.mapped.index(axis), operand=True)
            if axis in part.mapped
            else Source(((of_part[axis], 1),) if axis in of_part else ())
            for axis in range(len(part.shape))
        ]
        target = Node(node.index, node.op, 1, (node.inputs[0], found), node.outputs)
        whole = plain(graph.values[node.outputs[0]].shape)
        return (*nodes, index_map_node(graph, target, whole, sources))


def _gathered(graph: Graph, node: Node) -> _Part:
    shape, positions = (graph.values[v].shape for v in node.inputs)
    params = node.params
    return _Part(
        *(shape, params["slice_sizes"], params["start_index_map"]),
        *(positions, params["index_vector_dim"]),
    )


def _result_axes(graph: Graph, node: Node) -> tuple[list[int], dict[int, int]]:
    """Return the result axes that enumerate positions, and a map from the others to value axes."""
    part, collapsed = _gathered(graph, node), node.params["collapsed_slice_dims"]
    offsets = sorted(node.params["offset_dims"])
    rest = [axis for axis in range(len(part.shape)) if axis not in collapsed]
    batch = [axis for axis in range(len(offsets) + len(part.batch)) if axis not in offsets]
    return batch, dict(zip(offsets, rest, strict=True))


def _check_gather(graph: Graph, node: Node) -> str:
    part, params = _gathered(graph, node), node.params
    collapsed, offsets = params["collapsed_slice_dims"], {*params["offset_dims"]}
    rank = len(offsets) + len(part.batch)
    if (
        part.fits
        and len(offsets) + len({*collapsed}) == len(part.shape)
        and all(0 <= axis < len(part.shape) and part.sizes[axis] == 1 for axis in collapsed)
        and all(0 <= axis < rank for axis in offsets)
    ):
        return ""
    return _do_not_fit(part)


def _do_not_fit(part: _Part) -> str:
    return (
        f"The dimension parameters do not fit a value of {list(part.shape)} with indices of "
        f"{list(part.positions)}."
    )


@register
class StablehloScatter(Op):
    """Replaces slices of a value at computed positions, or combines slices with updates."""

    name = "STABLEHLO_SCATTER"
    max_version = 1
    cpu_bytes_per_second = 15e9
    takes = (MOVED, INTEGERS, MOVED)
    gives = None
    accepts: ClassVar[Mapping[str, Values]] = {
        name: _ABOUT[name]
        for name in (
            *("update_window_dims", "inserted_window_dims", "scatter_dims_to_operand_dims"),
            *("index_vector_dim", "update_computation_subgraph_index"),
        )
    }

    def flops(self, graph: Graph, node: Node) -> int:
        return sum(graph.values[v].elements for v in node.inputs[2:] if v in graph.values)

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            checks.input_count(node, 3, 3),
            checks.operands(graph, node, (1, 2, 3)),
            checks.operand(graph, node, 0, "The value", _VALUES),
            checks.operand(graph, node, 2, "The update", _VALUES),
            checks.integers(graph, node, 1, "The indices", constant=False),
            lambda: _check_scatter(graph, node),
        )

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        return (graph.values[node.inputs[0]].shape,)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        """Scatter rows of the update into rows of the value; rows span the unindexed axes."""
        part, of_update = _scattered(graph, node)
        dtype, update = (
            computed_as(graph.values[node.inputs[0]]),
            graph.values[node.inputs[2]].shape,
        )
        indexed = [
            axis
            for axis, size in enumerate(part.shape)
            if axis in part.mapped or part.sizes[axis] != size
        ]
        inner = [axis for axis in range(len(part.shape)) if axis not in indexed]
        positions = iter(part.batch)
        places = {  # of the update's axes among those of the rows
            axis: -1 - of_update[axis] if axis in of_update else next(positions)
            for axis in range(len(update))
            if of_update.get(axis) not in inner
        }
        rows = _Rows(part, tuple(places.values()), tuple(indexed))
        found, nodes = rows.nodes(graph, node, clipped=False, new_value=new_value)

        def flat(v: int, outer: Sequence[int], last: Sequence[int]) -> int:
            """Return the value transposed to rows: first the axes `outer`, then the axes `last`."""
            shape = graph.values[v].shape
            parts = ([shape[a] for a in outer], [shape[a] for a in last])
            target = new_value((math.prod(parts[0]), math.prod(parts[1])), dtype=dtype)
            order = [*outer, *last]
            sources = [Source(((order.index(axis), 1),)) for axis in range(len(shape))]
            each = Node(node.index, node.op, 1, (v,), (target,))
            digits = tuple(MixedRadix(tuple(sizes)) for sizes in parts)
            nodes.append(index_map_node(graph, each, digits, sources))
            return target

        last = [next(a for a, axis in of_update.items() if axis == each) for each in inner]
        updates = flat(node.inputs[2], list(places), last)
        initial = flat(node.inputs[0], indexed, inner)
        sizes = tuple(part.shape[axis] for axis in indexed)
        inner_sizes = [part.shape[axis] for axis in inner]
        joined = new_value((math.prod(sizes), math.prod(inner_sizes)), dtype=dtype)
        nodes.append(
            Node(
                *(node.index, node.op, 1, (updates, found, initial), (joined,)),
                attributes=SegmentAttributes(tuple(strides(sizes)), sizes, _combination(node)),
            )
        )
        terms = [
            tuple(zip(axes, strides(lengths), strict=True))
            for axes, lengths in ((indexed, sizes), (inner, inner_sizes))
        ]
        attributes = IndexMapAttributes(plain(part.shape), tuple(map(Source, terms)))
        back = Node(node.index, INDEX_MAP, 1, (joined,), node.outputs, attributes=attributes)
        return (*nodes, back)

    def lower(self, node: Node, ctx: LowerContext) -> Sequence[KernelRequest]:
        return (segments_kernel(node, ctx),)


def _scattered(graph: Graph, node: Node) -> tuple[_Part, dict[int, int]]:
    """Return the slices, and the value's axis of each update axis that is a slice axis."""
    shape, positions, update = (graph.values[v].shape for v in node.inputs)
    params = node.params
    inserted = params["inserted_window_dims"]
    rest = [axis for axis in range(len(shape)) if axis not in inserted]
    of_update = dict(zip(params["update_window_dims"], rest, strict=True))
    found = {of_update[axis]: update[axis] for axis in of_update}
    sizes = tuple(found.get(axis, 1) for axis in range(len(shape)))
    mapped, vector = params["scatter_dims_to_operand_dims"], params["index_vector_dim"]
    return _Part(shape, sizes, mapped, positions, vector), of_update


def _combination(node: Node) -> str:
    """Return the function that combines elements; "" if new elements replace old elements."""
    ops = [each.op for body in node.graphs for each in body.nodes]
    return ops[0] if ops else ""


def _check_scatter(graph: Graph, node: Node) -> str:
    ops = [each.op for body in node.graphs for each in body.nodes]
    if len(node.graphs) != 1 or len(ops) > 1 or not {*ops} <= {*_JOINING}:
        return "The update graph cannot be read, or is not a sum, product, minimum or maximum."
    part, of_update = _scattered(graph, node)
    update, dtype = graph.values[node.inputs[2]].shape, graph.values[node.inputs[0]].dtype
    batch = tuple(size for axis, size in enumerate(update) if axis not in of_update)
    if not part.fits or not part.mapped or batch != tuple(part.positions[a] for a in part.batch):
        return _do_not_fit(part)
    grows = {*ops} & {"STABLEHLO_ADD", "STABLEHLO_MULTIPLY"} and dtype not in NUMBERS.dtypes
    if grows or (ops and dtype in VIEWED_AS):
        return f"{ops[0]} of {dtype.name} is not supported."
    if math.prod(update) > MAX_ROWS:
        return f"The node scatters {math.prod(update)} elements; at most {MAX_ROWS} are supported."
    return ""


_JOINING = ("STABLEHLO_ADD", "STABLEHLO_MULTIPLY", "STABLEHLO_MAXIMUM", "STABLEHLO_MINIMUM")
