"""RESHAPE and its kin: a view wherever the rows allow it, a lane-wise copy elsewhere."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from litegpu.graph import ABSENT, DType, Graph, Node
from litegpu.ops import checks
from litegpu.ops.base import KernelRequest, LowerContext, NewValue, Op, Shape, register

RESHAPE = "RESHAPE"


@register
class Reshape(Op):
    """The same elements under another shape."""

    name = RESHAPE
    max_version = 1

    def check(self, graph: Graph, node: Node) -> str:
        reason = checks.first_of(checks.input_count(node, 1, 2), checks.operands(graph, node, (1,)))
        if reason:
            return reason
        source = graph.values[node.inputs[0]]
        wanted = self._wanted(graph, node)
        if wanted is None:
            return "The new shape is neither a constant tensor nor a parameter of the node."
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

    def lower(self, node: Node, ctx: LowerContext) -> Sequence[KernelRequest]:
        src, dst = ctx.storage(node.inputs[0]), ctx.storage(node.outputs[0])
        if src.reshaped(dst.shape) == dst:
            return ()
        request = KernelRequest(
            template="reshape",
            grid=(dst.slices, dst.rows, 1),
            local=(8, 8, 1),
            output=node.outputs[0],
            reads={"src": node.inputs[0]},
        )
        return (request,)

    def _wanted(self, graph: Graph, node: Node) -> Shape | None:
        """Return the requested shape (-1 = what is left), or None when it is not known."""
        if len(node.inputs) > 1 and node.inputs[1] != ABSENT:
            shape = graph.values[node.inputs[1]]
            if shape.data is not None and shape.dtype is DType.INT32:
                return tuple(int(size) for size in np.ravel(shape.data))
            return None
        sizes: Shape | None = node.params.get("shape")
        # A lone 0 is how old converters wrote the shape of a scalar.
        return () if sizes == (0,) else sizes


@register
class Squeeze(Reshape):
    """Drops dimensions of size 1."""

    name = "SQUEEZE"
    max_version = 2

    def check(self, graph: Graph, node: Node) -> str:
        reason = checks.first_of(checks.input_count(node, 1, 1), checks.operands(graph, node, (1,)))
        if reason:
            return reason
        shape = graph.values[node.inputs[0]].shape
        dims = node.params.get("squeeze_dims", ())
        if any(not -len(shape) <= axis < len(shape) or shape[axis] != 1 for axis in dims):
            return f"The dimensions {list(dims)} of {list(shape)} are not all 1."
        return ""

    def _wanted(self, graph: Graph, node: Node) -> Shape:
        shape = graph.values[node.inputs[0]].shape
        chosen = {axis % len(shape) for axis in node.params.get("squeeze_dims", ())}
        drop = chosen or {axis for axis, size in enumerate(shape) if size == 1}
        return tuple(size for axis, size in enumerate(shape) if axis not in drop)
