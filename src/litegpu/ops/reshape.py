"""RESHAPE: a view if the layout of rows permits it, otherwise a channel-wise copy."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import replace

import numpy as np

from litegpu.codegen import Storage, register_of
from litegpu.codegen.storage import Shape4
from litegpu.graph import ABSENT, DType, Graph, Node
from litegpu.ops.base import KernelRequest, LowerContext, NewValue, Op, Shape, register
from litegpu.ops.common import checks, facts
from litegpu.ops.common.facts import Array, Folded
from litegpu.ops.common.traits import Trait
from litegpu.ops.common.types import INTEGERS, MOVED

RESHAPE = "RESHAPE"


def reshape_node(node: Node, source: int, target: int) -> Node:
    """Return a node that replaces `node` and reshapes value `source` to `target`."""
    return Node(node.index, RESHAPE, 1, (source,), (target,))


def reshaped(
    graph: Graph, node: Node, sources: Sequence[int], shapes: Sequence[Shape], new_value: NewValue
) -> tuple[list[int], list[Node]]:
    """Return value ids of the reshaped sources, and the nodes that reshape them."""
    found, nodes = [], []
    for v, shape in zip(sources, shapes, strict=True):
        source = graph.values[v]
        if source.shape == shape:
            found.append(v)
        elif source.data is not None:
            found.append(new_value(shape, np.reshape(source.data, shape)))
        else:
            found.append(new_value(shape, dtype=source.dtype))
            nodes.append(reshape_node(node, v, found[-1]))
    return found, nodes


def around_axis(shape: Shape, axis: int) -> Shape:
    """Return a 4-D shape in which the axis stays separate, as axis 1 or as the last axis."""
    if axis == len(shape) - 1:
        return (1, 1, math.prod(shape[:axis]), shape[axis])
    return (math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 : -1]), shape[-1])


def merge_axes(shape: Shape, kinds: Sequence[Hashable]) -> list[range] | None:
    """Return runs of adjacent axes that kernels can index as one; the last axis stays separate.

    The function merges adjacent axes of the same kind; axes of size 1 merge with any axis. The
    result is None if more than 4 runs remain.
    """
    runs: list[range] = []
    found: list[Hashable] = []
    for axis, (size, kind) in enumerate(zip(shape[:-1], kinds, strict=False)):
        if runs and size == 1:
            runs[-1] = range(runs[-1].start, axis + 1)
        elif runs and (found[-1] == kind or math.prod(shape[runs[-1].start : axis]) == 1):
            runs[-1], found[-1] = range(runs[-1].start, axis + 1), kind
        else:
            runs.append(range(axis, axis + 1))
            found.append(kind)
    return [*runs, range(len(shape) - 1, len(shape))] if len(runs) < 4 else None


def merged_shape(shape: Shape, runs: Sequence[range]) -> Shape:
    """Return a shape in which each run of axes is one axis."""
    return tuple(math.prod(shape[run.start : run.stop]) for run in runs)


def four_dimensions(
    graph: Graph, node: Node, shape: Shape, axis: int, new_value: NewValue
) -> tuple[int, Shape, int, list[Node]]:
    """Reshape the first input to at most 4 axes: return value id, shape, axis and nodes.

    The returned axis is the position of the parameter `axis` in the returned shape.
    """
    if len(shape) <= 4:
        return node.inputs[0], shape, axis, []
    flat = around_axis(shape, axis)
    (view,), nodes = reshaped(graph, node, node.inputs[:1], [flat], new_value)
    return view, flat, 1 if axis < len(shape) - 1 else 3, nodes


@register
class Reshape(Op):
    """Returns the same elements in another shape."""

    name = RESHAPE
    max_version = 1
    traits = Trait.CONVEX | Trait.RESIZES | Trait.HOLDS_INPUTS | Trait.COMPLEX_PAIRS
    launches = 0
    shape_operands = (1,)
    may_be_empty = (1,)  # the shape of a scalar
    takes = (MOVED, INTEGERS)
    gives = None

    def fold(self, graph: Graph, node: Node, operands: Sequence[Array]) -> Folded | None:
        (shape,) = self.infer(graph, node)
        return facts.as_many(operands, lambda: [operands[0].reshape(shape)])

    def check(self, graph: Graph, node: Node) -> str:
        wanted = self._wanted(graph, node)
        computed = (1,) if wanted is None else (1, 2)
        reason = checks.first_of(
            checks.input_count(node, 1, 2), checks.operands(graph, node, computed)
        )
        if reason:
            return reason
        source = graph.values[node.inputs[0]]
        if wanted is None:
            return "The new shape is neither a constant nor a parameter of the node."
        known = math.prod(size for size in wanted if size != -1)
        if wanted.count(-1) > 1 or known < 1 or source.elements % known:
            return f"{list(source.shape)} cannot be reshaped to {list(wanted)}."
        if -1 not in wanted and known != source.elements:
            return f"{list(source.shape)} cannot be reshaped to {list(wanted)}."
        return ""

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        elements = graph.values[node.inputs[0]].elements
        wanted = self._wanted(graph, node) or ()
        known = math.prod(size for size in wanted if size != -1)
        return (tuple(elements // known if size == -1 else size for size in wanted),)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        return (replace(node, op=RESHAPE, inputs=node.inputs[:1]),)

    def input_storages(
        self, node: Node, result: Storage, shapes: Sequence[Shape4]
    ) -> Sequence[Storage] | None:
        # If rows are not contiguous, writing them in place would interleave with other rows.
        view = result.reshaped(shapes[0]) if result.contiguous else None
        return None if view is None else (view,)

    def result_storage(self, node: Node, source: Storage, shape: Shape4) -> Storage | None:
        return source.reshaped(shape)

    def lower(self, node: Node, ctx: LowerContext) -> Sequence[KernelRequest]:
        src, dst = ctx.storage(node.inputs[0]), ctx.storage(node.outputs[0])
        if src.reshaped(dst.shape) == dst:
            return ()
        request = KernelRequest(
            template="reshape",
            grid=(dst.channel_blocks, dst.rows, 1),
            output=node.outputs[0],
            reads={"src": node.inputs[0]},
            accumulator=register_of(src.dtype),
        )
        return (request,)

    def _wanted(self, graph: Graph, node: Node) -> Shape | None:
        """Return the requested shape (with -1 resolved), or None if the shape is not known."""
        if len(node.inputs) > 1 and node.inputs[1] != ABSENT:
            shape = graph.values[node.inputs[1]]
            # The CPU only accepts 1-D int32 tensors as shapes.
            if shape.dtype is DType.INT32 and len(shape.shape) == 1:
                return None if shape.data is None else tuple(map(int, shape.data))
        sizes: Shape | None = node.params.get("shape")
        # Old converters wrote the shape of a scalar as a single 0.
        return () if sizes == (0,) else sizes
