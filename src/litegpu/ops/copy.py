"""Ops that only move elements: COPY (carrier of element-wise stages), PAD and STRIDED_SLICE."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from litegpu.codegen import Storage
from litegpu.graph import Graph, Node
from litegpu.ops import checks
from litegpu.ops.base import (
    COPY,
    KernelRequest,
    LowerContext,
    NewValue,
    Op,
    Shape,
    constant_list,
    register,
)
from litegpu.ops.elementwise import literal

_Four = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class CopyAttributes:
    """Output element d of an axis of [N, H, W, C] is input element d * step + begin, or `fill`."""

    begin: _Four = (0, 0, 0, 0)
    step: _Four = (1, 1, 1, 1)
    fill: float = 0.0

    @property
    def moves(self) -> bool:
        return self.begin != (0, 0, 0, 0) or self.step != (1, 1, 1, 1)


@register
class Copy(Op):
    """The identity, broadcast to the output's shape; the passes make it, no model holds it."""

    name = COPY
    max_version = 1
    internal = True

    def check(self, graph: Graph, node: Node) -> str:
        return ""

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        return (graph.values[node.inputs[0]].shape,)

    def lower(self, node: Node, ctx: LowerContext) -> Sequence[KernelRequest]:
        return (copy_kernel(node, ctx),)


@register
class Pad(Op):
    """PAD: surrounds the input with zeros."""

    name = "PAD"
    max_version = 2

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            checks.input_count(node, 2, 2),
            checks.operands(graph, node, (1,)),
            checks.integers(graph, node, 1, "The paddings"),
            lambda: _check_paddings(graph, node),
        )

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        shape = graph.values[node.inputs[0]].shape
        pads = _paddings(graph, node)
        return (tuple(b + n + a for n, (b, a) in zip(shape, pads, strict=True)),)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        return (pad_node(graph, node, 0.0),)

    def lower(self, node: Node, ctx: LowerContext) -> Sequence[KernelRequest]:
        return (copy_kernel(node, ctx),)


@register
class PadV2(Pad):
    """PADV2: surrounds the input with a constant value."""

    name = "PADV2"
    max_version = 2

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            checks.input_count(node, 3, 3),
            checks.operands(graph, node, (1,)),
            checks.integers(graph, node, 1, "The paddings"),
            checks.constant(graph, node, 2, "The padding value"),
            lambda: _check_paddings(graph, node),
        )

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        return (pad_node(graph, node, float(constant_list(graph, node.inputs[2])[0])),)


@register
class StridedSlice(Op):
    """STRIDED_SLICE with begin, end and shrink masks; strides may be negative."""

    name = "STRIDED_SLICE"
    max_version = 4

    def check(self, graph: Graph, node: Node) -> str:
        reason = checks.first_of(
            checks.input_count(node, 4, 4),
            checks.operands(graph, node, (1,)),
            checks.integers(graph, node, 1, "begin"),
            checks.integers(graph, node, 2, "end"),
            checks.integers(graph, node, 3, "strides"),
        )
        for mask in ("ellipsis_mask", "new_axis_mask"):
            if not reason and node.params.get(mask, 0):
                reason = f"StridedSlice does not support {mask}."
        if reason:
            return reason
        rank = len(graph.values[node.inputs[0]].shape)
        counts = [graph.values[v].elements for v in node.inputs[1:]]
        if len(set(counts)) > 1 or counts[0] > rank:
            return f"begin, end and strides have {counts} entries for {rank} dimensions."
        if 0 in constant_list(graph, node.inputs[3]):
            return "stride values must be non-zero"
        if min(map(len, _ranges(graph, node)), default=1) < 1:
            return "The slice is empty."
        return ""

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        shrink = node.params.get("shrink_axis_mask", 0)
        ranges = _ranges(graph, node)
        return (tuple(len(r) for i, r in enumerate(ranges) if not shrink >> i & 1),)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        ranges = _ranges(graph, node)
        lead = 4 - len(ranges)
        attributes = CopyAttributes(
            begin=_four([0] * lead + [r.start for r in ranges]),
            step=_four([1] * lead + [r.step for r in ranges]),
        )
        whole = tuple(map(len, ranges))
        sliced = replace(node, inputs=node.inputs[:1], attributes=attributes)
        if whole == graph.values[node.outputs[0]].shape:
            return (sliced,)
        kept = new_value(whole)
        return (
            replace(sliced, outputs=(kept,)),
            Node(node.index, "RESHAPE", 1, (kept,), node.outputs),
        )

    def lower(self, node: Node, ctx: LowerContext) -> Sequence[KernelRequest]:
        return (copy_kernel(node, ctx),)


def copy_kernel(node: Node, ctx: LowerContext, destination: Storage | None = None) -> KernelRequest:
    """Return the kernel that copies the node's input, into a part of the output if given."""
    dst = destination or ctx.storage(node.outputs[0])
    src = ctx.storage(node.inputs[0])
    moved = isinstance(node.attributes, CopyAttributes)
    attributes: CopyAttributes = node.attributes if moved else CopyAttributes()
    return KernelRequest(
        template="copy",
        grid=(dst.slices, dst.rows, 1),
        local=(8, 8, 1),
        output=node.outputs[0],
        reads={"src": node.inputs[0]},
        variables={
            "plain": not moved,
            "begin": attributes.begin,
            "step": attributes.step,
            "fill": literal(attributes.fill),
            "limits": _limits(attributes, src, dst),
            "channels_aligned": attributes.step[3] == 1 and attributes.begin[3] % 4 == 0,
            "real_slices": -(-src.channels // 4),
        },
        destination=destination,
        needed={"src": dst.rows * dst.lanes},
    )


def _limits(attributes: CopyAttributes, src: Storage, dst: Storage) -> list[str]:
    """Return the conditions under which a row of the output has one in the input."""
    conditions = []
    for axis, name in enumerate("nyx"):
        begin, step = attributes.begin[axis], attributes.step[axis]
        reached = (begin, begin + (dst.shape[axis] - 1) * step)
        if min(reached) < 0:
            conditions.append(f"{name} >= 0")
        if max(reached) >= src.shape[axis]:
            conditions.append(f"{name} < {src.shape[axis]}")
    return conditions


def pad_node(graph: Graph, node: Node, fill: float) -> Node:
    """Return a padding node with its attributes worked out."""
    pads = _paddings(graph, node)
    before = [0] * (4 - len(pads)) + [-b for b, _ in pads]
    attributes = CopyAttributes(begin=_four(before), fill=fill)
    return replace(node, inputs=node.inputs[:1], attributes=attributes)


def _paddings(graph: Graph, node: Node) -> list[tuple[int, int]]:
    table = np.asarray(graph.values[node.inputs[1]].data).reshape(-1, 2)
    return [(int(before), int(after)) for before, after in table]


def _check_paddings(graph: Graph, node: Node) -> str:
    rank = len(graph.values[node.inputs[0]].shape)
    shape = graph.values[node.inputs[1]].shape
    if shape != (rank, 2):
        got = "x".join(map(str, shape))
        return f"Invalid paddings tensor shape: expected {rank}x2, got {got}"
    if any(min(pair) < 0 for pair in _paddings(graph, node)):
        return f"The paddings {_paddings(graph, node)} must not be negative."
    return ""


def _ranges(graph: Graph, node: Node) -> list[range]:
    """Return the input indices that a STRIDED_SLICE takes, one range per input dimension."""
    shape = graph.values[node.inputs[0]].shape
    begin, end, strides = (constant_list(graph, v) for v in node.inputs[1:4])
    offset = int(node.params.get("offset", False))  # whether ends count from the begins
    ranges = []
    for axis, size in enumerate(shape):
        if axis >= len(begin):
            ranges.append(range(size))
            continue
        masked = {mask: node.params.get(f"{mask}_mask", 0) >> axis & 1 for mask in _MASKS}
        start = None if masked["begin"] else begin[axis]
        if masked["shrink_axis"]:
            first = 0 if start is None else start
            first += size if first < 0 else 0
            ranges.append(range(first, first + 1) if 0 <= first < size else range(0))
            continue
        stop = None if masked["end"] else end[axis] + offset * begin[axis]
        ranges.append(range(size)[slice(start, stop, strides[axis])])
    return ranges


_MASKS = ("begin", "end", "shrink_axis")


def _four(entries: Sequence[int]) -> _Four:
    a, b, c, d = entries
    return a, b, c, d
