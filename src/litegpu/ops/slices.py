"""Ops that take parts: STRIDED_SLICE, SLICE, SPLIT, SPLIT_V, UNPACK and REVERSE_V2."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from litegpu.codegen import Storage
from litegpu.codegen.storage import Shape4
from litegpu.graph import DType, Graph, Node
from litegpu.ops import checks
from litegpu.ops.base import (
    KernelRequest,
    LowerContext,
    NewValue,
    Op,
    Shape,
    Values,
    constant_list,
    register,
)
from litegpu.ops.copy import CopyAttributes, copy_kernel, four
from litegpu.ops.move import Source, move_node, plain
from litegpu.ops.reshape import reshape_node
from litegpu.ops.types import HELD

STRIDED_SLICE = "STRIDED_SLICE"
_MASKS = ("begin", "end", "shrink_axis")


def part_nodes(
    graph: Graph, node: Node, source: int, ranges: Sequence[range], target: int, new_value: NewValue
) -> tuple[Node, ...]:
    """Return the nodes that give value `target` the elements of `source` in the ranges.

    There is one range per dimension of `source`; the shape of `target` may lack some of size 1.
    """
    whole = tuple(map(len, ranges))
    kept = target if whole == graph.values[target].shape else new_value(whole)
    part = replace(node, op=STRIDED_SLICE, inputs=(source,), outputs=(kept,))
    if len(whole) <= 4:
        lead = 4 - len(whole)
        begin = four([0] * lead + [r.start for r in ranges])
        step = four([1] * lead + [r.step for r in ranges])
        part = replace(part, attributes=CopyAttributes(begin, step))
    else:
        sources = [Source(((axis, r.step),), r.start) for axis, r in enumerate(ranges)]
        part = move_node(graph, part, plain(whole), sources)
    if kept == target:
        return (part,)
    return part, reshape_node(node, kept, target)


def along(shape: Shape, axis: int, chosen: range) -> list[range]:
    """Return ranges that take `chosen` along one axis and all of the others."""
    return [chosen if i == axis else range(size) for i, size in enumerate(shape)]


@register
class StridedSlice(Op):
    """STRIDED_SLICE with all masks; strides may be negative."""

    name = STRIDED_SLICE
    max_version = 8
    takes = (HELD,)
    gives = None

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
        ranges = iter(ranges_of(graph, node))
        shape: list[int] = []
        for entry in _entries(graph, node):
            if entry is not None and _bit(node, "new_axis", entry):
                shape.append(1)
                continue
            size = len(next(ranges))
            if entry is None or not _bit(node, "shrink_axis", entry):
                shape.append(size)
        return (tuple(shape),)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        ranges = ranges_of(graph, node)
        return part_nodes(graph, node, node.inputs[0], ranges, node.outputs[0], new_value)

    def lower(self, node: Node, ctx: LowerContext) -> Sequence[KernelRequest]:
        dst = ctx.storage(node.outputs[0])
        if slice_view(node, ctx.storage(node.inputs[0]), dst.shape) == dst:
            return ()
        return (copy_kernel(node, ctx),)


def slice_view(node: Node, source: Storage, shape: Shape4) -> Storage | None:
    """Return where a normalized slice lies in its source; None if kernels cannot read it there."""
    attributes: CopyAttributes = node.attributes
    step = attributes.step
    if node.stages or step[0] != 1 or step[3] != 1 or min(step) < 1 or not source.vector:
        return None
    first, size = attributes.begin[3], shape[3]
    last = first + size == source.channels
    width = 8 if source.dtype is DType.FLOAT16 else 4  # channels that kernels read at a time
    if first % width or not (last or size % width == 0):
        return None
    view = source
    for axis, begin in enumerate(attributes.begin):
        lanes = source.lanes - first if last else size
        extent = (shape[axis] - 1) * step[axis] + 1
        part = (*view.shape[:axis], extent, *view.shape[axis + 1 :])
        view = view.region(four(part), axis, begin, lanes)
    if step != (1, 1, 1, 1):
        view = view.every((step[1], step[2]), (0, 0))
    return view


def _bit(node: Node, mask: str, entry: int) -> bool:
    return bool(node.params.get(f"{mask}_mask", 0) >> entry & 1)


def _entries(graph: Graph, node: Node) -> list[int | None]:
    """Return which entry of begin, end and strides says what happens to each dimension.

    There is one item per dimension of the input and per new one; None takes a dimension whole.
    """
    rank = len(graph.values[node.inputs[0]].shape)
    count = graph.values[node.inputs[1]].elements
    ellipsis = next((i for i in range(count) if _bit(node, "ellipsis", i)), None)
    added = sum(_bit(node, "new_axis", i) for i in range(count) if i != ellipsis)
    whole: list[int | None] = [None] * (rank + added - count)
    if ellipsis is None:
        return [*range(count), *whole]
    # As on the CPU, the ellipsis stands for one dimension at least; what is too much goes.
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
        return f"From {begin} on, the ends {end} (offset = True) reach beyond the input."
    if min(map(len, ranges_of(graph, node)), default=1) < 1:
        return f"The slice from {begin} to {end} with strides {strides} is empty."
    return ""


def _leaves(graph: Graph, node: Node) -> bool:
    """Whether an end that counts from its begin is none of the input: the CPU does not clamp it."""
    shape = graph.values[node.inputs[0]].shape
    begin, end = (constant_list(graph, v) for v in node.inputs[1:3])
    kept = [e for e in _entries(graph, node) if e is None or not _bit(node, "new_axis", e)]
    return any(
        entry is not None and not 0 <= begin[entry] <= begin[entry] + end[entry] <= size
        for entry, size in zip(kept, shape, strict=True)
    )


def ranges_of(graph: Graph, node: Node) -> list[range]:
    """Return the input indices that a slice takes, one range per input dimension."""
    shape = graph.values[node.inputs[0]].shape
    if node.op == "SLICE":
        begin, size = (constant_list(graph, v) for v in node.inputs[1:3])
        return [
            range(first, extent if count == -1 else first + count)
            for first, count, extent in zip(begin, size, shape, strict=True)
        ]
    bounds = [constant_list(graph, v) for v in node.inputs[1:4]]
    entries = [e for e in _entries(graph, node) if e is None or not _bit(node, "new_axis", e)]
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
    offset = begin if node.params.get("offset", False) else 0  # ends count from the begins
    stop = None if masked["end"] else end + offset
    return range(size)[slice(start, stop, stride)]


@register
class Slice(Op):
    """SLICE: `size` elements from `begin` on in each dimension; -1 takes all that follow."""

    name = "SLICE"
    max_version = 6
    takes = (HELD,)
    gives = None

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            checks.input_count(node, 3, 3),
            checks.operands(graph, node, (1,)),
            checks.integers(graph, node, 1, "begin"),
            checks.integers(graph, node, 2, "size"),
            lambda: self._check_bounds(graph, node),
        )

    def _check_bounds(self, graph: Graph, node: Node) -> str:
        shape = graph.values[node.inputs[0]].shape
        begin, size = (constant_list(graph, v) for v in node.inputs[1:])
        if len(begin) != len(shape) or len(size) != len(shape):
            return f"begin {begin} and size {size} do not fit {len(shape)} dimensions."
        for first, count, extent in zip(begin, size, shape, strict=True):
            if count == 0 or count < -1 or not 0 <= first < extent or first + count > extent:
                return f"begin {begin} and size {size} reach out of {list(shape)}, or are empty."
        return ""

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        return (tuple(map(len, ranges_of(graph, node))),)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        ranges = ranges_of(graph, node)
        return part_nodes(graph, node, node.inputs[0], ranges, node.outputs[0], new_value)


class Parts(Op):
    """Cuts a value into parts that lie side by side along one axis."""

    takes = (HELD,)
    gives = None

    def parts(self, graph: Graph, node: Node) -> tuple[int, int, list[int]]:
        """Return the value that is cut, the axis and the sizes along it of a checked node."""
        raise NotImplementedError

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        source, axis, sizes = self.parts(graph, node)
        shape = graph.values[source].shape
        return tuple((*shape[:axis], size, *shape[axis + 1 :]) for size in sizes)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        source, axis, sizes = self.parts(graph, node)
        nodes: list[Node] = []
        start = 0
        for target, size in zip(node.outputs, sizes, strict=True):
            ranges = along(graph.values[source].shape, axis, range(start, start + size))
            nodes += part_nodes(graph, node, source, ranges, target, new_value)
            start += size
        return nodes


@register
class Split(Parts):
    """Cuts a value into parts of equal size along an axis."""

    name = "SPLIT"
    max_version = 4

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            checks.input_count(node, 2, 2),
            checks.integers(graph, node, 0, "The axis"),
            checks.operands(graph, node, (1,), len(node.outputs)),
            lambda: checks.constant_axis(graph, node, 0, of=1),
            lambda: self._check_sizes(graph, node),
        )

    def _check_sizes(self, graph: Graph, node: Node) -> str:
        shape = graph.values[node.inputs[1]].shape
        axis, count = constant_list(graph, node.inputs[0])[0], node.params["num_splits"]
        if count != len(node.outputs) or shape[axis] % count:
            return (
                f"{list(shape)} does not divide into num_splits = {count} equal parts along axis "
                f"{axis}."
            )
        return ""

    def parts(self, graph: Graph, node: Node) -> tuple[int, int, list[int]]:
        shape = graph.values[node.inputs[1]].shape
        axis = constant_list(graph, node.inputs[0])[0] % len(shape)
        count = len(node.outputs)
        return node.inputs[1], axis, [shape[axis] // count] * count


@register
class SplitV(Parts):
    """Cuts a value into parts of given sizes along an axis; one size may be -1."""

    name = "SPLIT_V"
    max_version = 2
    accepts: ClassVar = {"num_splits": Values(about="any: the sizes tell")}

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            checks.input_count(node, 3, 3),
            checks.operands(graph, node, (1,), len(node.outputs)),
            checks.integers(graph, node, 1, "The sizes"),
            checks.integers(graph, node, 2, "The axis"),
            lambda: checks.constant_axis(graph, node, 2),
            lambda: self._check_sizes(graph, node),
        )

    def _check_sizes(self, graph: Graph, node: Node) -> str:
        shape = graph.values[node.inputs[0]].shape
        _, axis, sizes = self.parts(graph, node)
        if len(sizes) != len(node.outputs) or min(sizes) < 1 or sum(sizes) != shape[axis]:
            wanted = constant_list(graph, node.inputs[1])
            return f"{list(shape)} does not divide into parts of {wanted} along axis {axis}."
        return ""

    def parts(self, graph: Graph, node: Node) -> tuple[int, int, list[int]]:
        shape = graph.values[node.inputs[0]].shape
        sizes = constant_list(graph, node.inputs[1])
        axis = constant_list(graph, node.inputs[2])[0] % len(shape)
        rest = shape[axis] - sum(size for size in sizes if size != -1)
        return node.inputs[0], axis, [rest if size == -1 else size for size in sizes]


@register
class Unpack(Parts):
    """Cuts a value into parts of size 1 along an axis, which the parts do not have."""

    name = "UNPACK"
    max_version = 4

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            checks.input_count(node, 1, 1),
            checks.operands(graph, node, (1,), len(node.outputs)),
            lambda: checks.axis(graph, node.inputs[0], node.params["axis"]),
            lambda: self._check_count(graph, node),
        )

    def _check_count(self, graph: Graph, node: Node) -> str:
        shape = graph.values[node.inputs[0]].shape
        size, wanted = shape[node.params["axis"]], node.params["num"]
        if size == wanted == len(node.outputs):
            return ""
        return f"num = {wanted} parts are wanted of {size} along axis {node.params['axis']}."

    def parts(self, graph: Graph, node: Node) -> tuple[int, int, list[int]]:
        axis = node.params["axis"] % len(graph.values[node.inputs[0]].shape)
        return node.inputs[0], axis, [1] * len(node.outputs)

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        _, axis, _ = self.parts(graph, node)
        return tuple((*s[:axis], *s[axis + 1 :]) for s in super().infer(graph, node))


@register
class ReverseV2(Op):
    """The elements in reverse order along some axes."""

    name = "REVERSE_V2"
    max_version = 3
    takes = (HELD,)
    gives = None

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            checks.input_count(node, 2, 2),
            checks.operands(graph, node, (1,)),
            checks.integers(graph, node, 1, "The axes"),
            lambda: checks.first_of(
                *(
                    checks.axis(graph, node.inputs[0], axis)
                    for axis in constant_list(graph, node.inputs[1])
                )
            ),
        )

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        return (graph.values[node.inputs[0]].shape,)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        shape = graph.values[node.inputs[0]].shape
        reversed_axes = {axis % len(shape) for axis in constant_list(graph, node.inputs[1])}
        ranges = [range(n)[::-1] if i in reversed_axes else range(n) for i, n in enumerate(shape)]
        return part_nodes(graph, node, node.inputs[0], ranges, node.outputs[0], new_value)
