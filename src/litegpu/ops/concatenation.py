"""CONCATENATION: needs no kernel if the producers can write in place; otherwise kernels copy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

import numpy as np

from litegpu.codegen import Storage, register_of
from litegpu.codegen.storage import Shape4
from litegpu.graph import Graph, Node
from litegpu.ops.base import COPY, KernelRequest, LowerContext, NewValue, Op, Shape, register
from litegpu.ops.common import checks, facts
from litegpu.ops.common.facts import Array, Folded
from litegpu.ops.common.functions import activation_epilogue
from litegpu.ops.common.traits import Trait
from litegpu.ops.common.types import MOVED
from litegpu.ops.copy import copy_kernel
from litegpu.ops.exact.parts import check_parts, rescaled_parts, same_scales
from litegpu.ops.reshape import around_axis, reshape_node, reshaped


@dataclass(frozen=True, slots=True)
class ConcatAttributes:
    """The concatenation axis of [N, H, W, C]."""

    axis: int


@register
class Concatenation(Op):
    """Concatenates values along one axis; the other axes have equal sizes."""

    name = "CONCATENATION"
    max_version = 7
    traits = Trait.CONVEX | Trait.RESIZES | Trait.HOLDS_INPUTS
    takes = (MOVED,)
    gives = None

    def fold(self, graph: Graph, node: Node, operands: Sequence[Array]) -> Folded | None:
        if not same_scales(graph, node):
            return None
        return facts.as_many(operands, lambda: [np.concatenate(operands, node.params["axis"])])

    def check(self, graph: Graph, node: Node) -> str:
        reason = checks.first_of(
            checks.input_count(node, 1, 1 << 16),
            checks.operands(graph, node, tuple(range(1, len(node.inputs) + 1))),
            checks.activation(node),
            checks.constants(graph, node, "The part", MOVED),
        )
        if reason := reason or check_parts(graph, node):
            return reason
        shapes = [graph.values[v].shape for v in node.inputs]
        rank = len(shapes[0])
        reason = checks.axis(graph, node.inputs[0], node.params["axis"])
        if reason:
            return reason
        axis = _axis(node, rank)
        rests = {shape[:axis] + shape[axis + 1 :] for shape in shapes}
        if len(rests) > 1 or any(len(shape) != rank for shape in shapes):
            return (
                f"The shapes {[list(s) for s in shapes]} cannot be concatenated along axis {axis}."
            )
        return ""

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        shapes = [graph.values[v].shape for v in node.inputs]
        axis = _axis(node, len(shapes[0]))
        total = sum(shape[axis] for shape in shapes)
        return ((*shapes[0][:axis], total, *shapes[0][axis + 1 :]),)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        if same_scales(graph, node):
            return self._join(graph, node, new_value)
        graph, node, rescaling = rescaled_parts(graph, node, new_value)
        return (*rescaling, *self._join(graph, node, new_value))

    def _join(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        shape = graph.values[node.outputs[0]].shape
        shapes = [graph.values[v].shape for v in node.inputs]
        axis = _axis(node, len(shape))
        epilogue = activation_epilogue(node.params)
        if not epilogue:
            return joined_nodes(graph, node, shapes, axis, new_value)
        joined = new_value(shape)
        return (
            *joined_nodes(graph, replace(node, outputs=(joined,)), shapes, axis, new_value),
            Node(node.index, COPY, 1, (joined,), node.outputs, epilogue=epilogue),
        )

    def input_storages(
        self, node: Node, result: Storage, shapes: Sequence[Shape4]
    ) -> Sequence[Storage] | None:
        return regions(result, shapes, node.attributes.axis)

    def lower(self, node: Node, ctx: LowerContext) -> Sequence[KernelRequest]:
        axis: int = node.attributes.axis
        dst = ctx.storage(node.outputs[0])
        sources = [ctx.storage(v) for v in node.inputs]
        storages = regions(dst, [s.shape for s in sources], axis)
        if storages is None:
            return _gather(node, ctx, dst)
        return tuple(
            copy_kernel(replace(node, inputs=(v,)), ctx, destination=storage)
            for v, source, storage in zip(node.inputs, sources, storages, strict=True)
            if source != storage
        )


def joined_nodes(
    graph: Graph, node: Node, shapes: Sequence[Shape], axis: int, new_value: NewValue
) -> Sequence[Node]:
    """Return the nodes that join the inputs, reshaped to `shapes`, along `axis`."""
    rank = len(shapes[0])
    if rank <= 4:
        parts, nodes = reshaped(graph, node, node.inputs, shapes, new_value)
        attributes = ConcatAttributes(axis + 4 - rank)
        return (*nodes, replace(node, inputs=tuple(parts), attributes=attributes))
    flat = [around_axis(shape, axis) for shape in shapes]
    joined_axis = 1 if axis < rank - 1 else 3
    total = sum(shape[joined_axis] for shape in flat)
    whole = new_value((*flat[0][:joined_axis], total, *flat[0][joined_axis + 1 :]))
    joined = joined_nodes(graph, replace(node, outputs=(whole,)), flat, joined_axis, new_value)
    return (*joined, reshape_node(node, whole, node.outputs[0]))


def regions(dst: Storage, shapes: Sequence[Shape4], axis: int) -> list[Storage] | None:
    """Return each part's storage in the result; None if a part starts inside a channel block."""
    sizes = [shape[axis] for shape in shapes]
    starts = [0, *accumulate(sizes)]
    if axis == 3 and dst.vector and any(start % 4 for start in starts[:-1]):
        return None
    storages = []
    for shape, start, size in zip(shapes, starts, sizes, strict=False):
        last = start + size == dst.channels
        padded_channels = (
            dst.padded_channels - start if axis == 3 and last and dst.vector else shape[3]
        )
        storages.append(dst.region(shape, axis, start, padded_channels))
    return storages


def _gather(node: Node, ctx: LowerContext, dst: Storage) -> tuple[KernelRequest, ...]:
    """Return kernels that concatenate parts along channels, within the limit on buffers.

    A kernel writes the channel blocks of its parts. If the first channel block also has channels of
    an earlier kernel, the kernel preserves those channels.
    """
    channels = [ctx.storage(v).channels for v in node.inputs]
    starts = [0, *accumulate(channels)]
    requests = []
    first = 0
    while first < len(node.inputs):
        end = _end_of_parts(starts, first, ctx.target.max_arguments - 1)
        begin = starts[first] // 4
        last = end == len(node.inputs)
        stop = dst.channel_blocks if last else -(-starts[end] // 4)
        requests.append(
            KernelRequest(
                template="concat",
                grid=(stop - begin, dst.rows, 1),
                output=node.outputs[0],
                parts=node.inputs[first:end],
                variables={
                    "begin": begin,
                    "stop": stop,
                    "lanes": [_parts_of_lane(starts[first : end + 1], lane) for lane in range(4)],
                    "before": starts[first] if starts[first] % 4 else 0,
                },
                accumulator=register_of(ctx.storage(node.inputs[0]).dtype),
            )
        )
        first = end
    return tuple(requests)


def _end_of_parts(starts: Sequence[int], first: int, most: int) -> int:
    """Return the end of at most `most` parts, preferably where a channel block ends."""
    end = min(first + most, len(starts) - 1)
    if end == len(starts) - 1:
        return end
    aligned = (each for each in range(end, first + most // 2, -1) if starts[each] % 4 == 0)
    return next(aligned, end)


def _parts_of_lane(starts: Sequence[int], lane: int) -> list[tuple[int, int, int]]:
    """Return index, start and end of each part that has a channel c with c % 4 == lane."""
    return [
        (index, start, end)
        for index, (start, end) in enumerate(pairwise(starts))
        if start + (lane - start) % 4 < end
    ]


def _axis(node: Node, rank: int) -> int:
    axis: int = node.params["axis"]
    return axis + rank if axis < 0 else axis
