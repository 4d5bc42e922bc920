"""STRIDED_SLICE: returns a strided part of a value, as a view if kernels can read it in place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from litegpu.codegen import Storage
from litegpu.codegen.storage import Shape4
from litegpu.graph import DType, Graph, Node
from litegpu.ops.base import (
    Cuts,
    KernelRequest,
    LowerContext,
    NewValue,
    Op,
    Shape,
    constant_list,
    register,
)
from litegpu.ops.common import checks, facts
from litegpu.ops.common.facts import Array, Folded
from litegpu.ops.common.traits import Trait
from litegpu.ops.common.types import INTEGERS, MOVED
from litegpu.ops.copy import CopyAttributes, copy_kernel, four, merge_ranges
from litegpu.ops.index_map import Source, index_map_node, plain
from litegpu.ops.reshape import reshape_node, reshaped

STRIDED_SLICE = "STRIDED_SLICE"
_MASKS = ("begin", "end", "shrink_axis")


def part_nodes(
    graph: Graph, node: Node, source: int, ranges: Sequence[range], target: int, new_value: NewValue
) -> tuple[Node, ...]:
    """Return the nodes that copy the elements of `source` in the ranges to value `target`.

    The list has one range per axis of `source`; the shape of `target` may lack axes of size 1.
    """
    shape = graph.values[source].shape
    merged = merge_ranges(shape, ranges) if len(shape) > 4 else None
    views: list[Node] = []
    if merged is not None:
        flat, ranges = zip(*merged, strict=True)
        (source,), views = reshaped(graph, node, [source], [flat], new_value)
    whole = tuple(map(len, ranges))
    unsqueezed = target if whole == graph.values[target].shape else new_value(whole)
    part = replace(node, op=STRIDED_SLICE, inputs=(source,), outputs=(unsqueezed,))
    if len(whole) <= 4:
        lead = 4 - len(whole)
        begin = four([0] * lead + [r.start for r in ranges])
        step = four([1] * lead + [r.step for r in ranges])
        part = replace(part, attributes=CopyAttributes(begin, step))
    else:
        sources = [Source(((axis, r.step),), r.start) for axis, r in enumerate(ranges)]
        part = index_map_node(graph, part, plain(whole), sources)
    if unsqueezed == target:
        return (*views, part)
    return (*views, part, reshape_node(node, unsqueezed, target))


@register
class StridedSlice(Op):
    """Returns a strided slice, with support for all masks and negative strides."""

    name = STRIDED_SLICE
    max_version = 8
    traits = Trait.CONVEX | Trait.RESIZES | Trait.VIEWS_INPUT
    shape_operands = (1, 2, 3)
    takes = (MOVED, INTEGERS)
    gives = None

    def fold(self, graph: Graph, node: Node, operands: Sequence[Array]) -> Folded | None:
        return folded_slice(operands, _ranges(graph, node), self.infer(graph, node)[0])

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            checks.input_count(node, 4, 4),
            checks.operands(graph, node, (1,)),
            checks.integers(graph, node, 1, "begin"),
            checks.integers(graph, node, 2, "end"),
            checks.integers(graph, node, 3, "strides"),
            lambda: _check_bounds(graph, node),
        )

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        ranges = iter(_ranges(graph, node))
        shape: list[int] = []
        for entry in _entries(graph, node):
            if entry is not None and _bit(node, "new_axis", entry):
                shape.append(1)
                continue
            size = len(next(ranges))
            if entry is None or not _bit(node, "shrink_axis", entry):
                shape.append(size)
        return (tuple(shape),)

    def cuts(self, graph: Graph, node: Node) -> Cuts:
        return Cuts(node.inputs[0], (_ranges(graph, node),))

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        ranges = _ranges(graph, node)
        return part_nodes(graph, node, node.inputs[0], ranges, node.outputs[0], new_value)

    def result_storage(self, node: Node, source: Storage, shape: Shape4) -> Storage | None:
        return _view(node, source, shape)

    def lower(self, node: Node, ctx: LowerContext) -> Sequence[KernelRequest]:
        dst = ctx.storage(node.outputs[0])
        if _view(node, ctx.storage(node.inputs[0]), dst.shape) == dst:
            return ()
        return (copy_kernel(node, ctx),)


def _view(node: Node, source: Storage, shape: Shape4) -> Storage | None:
    """Return the storage of a slice within its source; None if kernels cannot read it there."""
    attributes: CopyAttributes = node.attributes
    step = attributes.step
    if node.epilogue or step[0] != 1 or step[3] != 1 or min(step) < 1 or not source.vector:
        return None
    first, size = attributes.begin[3], shape[3]
    last = first + size == source.channels
    width = 8 if source.dtype is DType.FLOAT16 else 4  # channels that kernels read at a time
    if first % width or not (last or size % width == 0):
        return None
    view = source
    for axis, begin in enumerate(attributes.begin):
        padded_channels = source.padded_channels - first if last else size
        extent = (shape[axis] - 1) * step[axis] + 1
        part = (*view.shape[:axis], extent, *view.shape[axis + 1 :])
        view = view.region(four(part), axis, begin, padded_channels)
    if step != (1, 1, 1, 1):
        view = view.every((step[1], step[2]), (0, 0))
    return view


def folded_slice(operands: Sequence[Array], ranges: Sequence[range], shape: Shape) -> Folded:
    """Return a folded slice of the first operand, by one range per axis, with this `shape`."""
    data = operands[0]
    for chosen, size in zip(ranges, data.shape, strict=True):
        if chosen and not 0 <= min(chosen[0], chosen[-1]) <= max(chosen[0], chosen[-1]) < size:
            raise ValueError("the slice exceeds its input")
    return facts.as_many(operands, lambda: [data[np.ix_(*ranges)].reshape(shape)])


def _bit(node: Node, mask: str, entry: int) -> bool:
    return bool(node.params.get(f"{mask}_mask", 0) >> entry & 1)


def _entries(graph: Graph, node: Node) -> list[int | None]:
    """Return the entry number of begin, end and strides for each axis.

    The returned list has one item per input axis and per new axis; None selects an axis completely.
    """
    rank = len(graph.values[node.inputs[0]].shape)
    count = graph.values[node.inputs[1]].elements
    ellipsis = next((i for i in range(count) if _bit(node, "ellipsis", i)), None)
    added = sum(_bit(node, "new_axis", i) for i in range(count) if i != ellipsis)
    whole: list[int | None] = [None] * (rank + added - count)
    if ellipsis is None:
        return [*range(count), *whole]
    # As on the CPU, an ellipsis covers at least one axis, and surplus entries are ignored.
    whole.append(None)
    return [*range(ellipsis), *whole, *range(ellipsis + 1, count)][: rank + added]


def _check_bounds(graph: Graph, node: Node) -> str:
    rank = len(graph.values[node.inputs[0]].shape)
    counts = [graph.values[v].elements for v in node.inputs[1:]]
    ellipses = [i for i in range(counts[0]) if _bit(node, "ellipsis", i)]
    added = sum(_bit(node, "new_axis", i) for i in range(counts[0]) if i not in ellipses)
    if len(set(counts)) > 1 or counts[0] - added - len(ellipses) > rank:
        return f"begin, end and strides have {counts} entries for {rank} dimensions."
    if len(ellipses) > 1:
        return f"The ellipsis mask {node.params['ellipsis_mask']} has more than one bit."
    begin, end, strides = (constant_list(graph, v) for v in node.inputs[1:])
    new_axes = node.params.get("new_axis_mask", 0)
    if new_axes >> counts[0]:
        return f"The new axis mask {new_axes} has bits beyond {counts[0]} entries."
    if 0 in strides:
        return f"stride values must be non-zero, not {strides}."
    offset = node.params.get("offset", False)
    if offset and (ellipses or node.params.get("end_mask", 0)):
        return "offset = True with an ellipsis or an end mask."
    if offset and _leaves(graph, node):
        return f"With begin {begin} and offset = True, the ends {end} exceed the input."
    if min(map(len, _ranges(graph, node)), default=1) < 1:
        return f"The slice from {begin} to {end} with strides {strides} is empty."
    return ""


def _leaves(graph: Graph, node: Node) -> bool:
    """Whether an end relative to its begin is outside the input, which the CPU does not clamp."""
    shape = graph.values[node.inputs[0]].shape
    bounds = [constant_list(graph, v) for v in node.inputs[1:4]]
    for entry, size in zip(_axis_entries(graph, node), shape, strict=True):
        if entry is None:
            continue
        begin, end, stride = (bound[entry] for bound in bounds)
        first = _first(node, entry, size, begin, stride)
        if not 0 <= first <= first + end <= size:
            return True
    return False


def _axis_entries(graph: Graph, node: Node) -> list[int | None]:
    """Return the entry number of each input axis, or None for axes without an entry."""
    return [e for e in _entries(graph, node) if e is None or not _bit(node, "new_axis", e)]


def _first(node: Node, entry: int, size: int, begin: int, stride: int) -> int:
    """Return the begin of a range, or the default if the begin is masked."""
    if not _bit(node, "begin", entry):
        return begin
    return 0 if stride > 0 else size - 1


def _ranges(graph: Graph, node: Node) -> list[range]:
    """Return the input indices of a slice, one range per input axis."""
    shape = graph.values[node.inputs[0]].shape
    bounds = [constant_list(graph, v) for v in node.inputs[1:4]]
    entries = _axis_entries(graph, node)
    return [
        range(size) if entry is None else _range(node, entry, size, *(b[entry] for b in bounds))
        for entry, size in zip(entries, shape, strict=True)
    ]


def _range(node: Node, entry: int, size: int, begin: int, end: int, stride: int) -> range:
    masked = {mask: _bit(node, mask, entry) for mask in _MASKS}
    start = None if masked["begin"] else begin
    if masked["shrink_axis"]:
        first = 0 if start is None else start
        first += size if first < 0 else 0
        return range(first, first + 1) if 0 <= first < size else range(0)
    if node.params.get("offset", False):  # ends are relative to the begins
        end += _first(node, entry, size, begin, stride)
    stop = None if masked["end"] else end
    return range(size)[slice(start, stop, stride)]
