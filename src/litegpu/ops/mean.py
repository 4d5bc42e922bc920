"""MEAN over height and width: global average pooling, or along one of the two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from litegpu.graph import Graph, Node
from litegpu.ops import checks
from litegpu.ops.base import (
    KernelRequest,
    LowerContext,
    NewValue,
    Op,
    Shape,
    constant_list,
    register,
)
from litegpu.ops.pool_2d import PoolAttributes, pool_kernel
from litegpu.ops.window import Window

_SPATIAL = (1, 2)


@register
class Mean(Op):
    """The average over H, W or both of [N, H, W, C], with or without keeping the dimensions."""

    name = "MEAN"
    max_version = 3

    def check(self, graph: Graph, node: Node) -> str:
        reason = checks.first_of(
            checks.input_count(node, 2, 2),
            checks.operands(graph, node, (1,)),
            checks.integers(graph, node, 1, "The axes"),
        )
        if reason:
            return reason
        shape = graph.values[node.inputs[0]].shape
        axes = constant_list(graph, node.inputs[1])
        if any(not -len(shape) <= axis < len(shape) for axis in axes):
            return f"Index for axis out of range: {axes} with {len(shape)} dimensions."
        if any(axis + 4 - len(shape) not in _SPATIAL for axis in _axes(graph, node)):
            return f"MEAN over axes {axes} of {list(shape)}: only height and width are averaged."
        return ""

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        kept = _kept(graph, node)
        if node.params["keep_dims"]:
            return (kept,)
        axes = _axes(graph, node)
        return (tuple(size for axis, size in enumerate(kept) if axis not in axes),)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        source = graph.values[node.inputs[0]]
        lead = 4 - len(source.shape)
        averaged = {axis + lead for axis in _axes(graph, node)}
        height, width = (source.shape4[a] if a in averaged else 1 for a in _SPATIAL)
        attributes = PoolAttributes(Window((height, width), (height, width)))
        pool = replace(node, inputs=node.inputs[:1], attributes=attributes)
        kept = _kept(graph, node)
        if kept == graph.values[node.outputs[0]].shape:
            return (pool,)
        whole = new_value(kept)
        reshape = Node(node.index, "RESHAPE", 1, (whole,), node.outputs)
        return (replace(pool, outputs=(whole,)), reshape)

    def lower(self, node: Node, ctx: LowerContext) -> Sequence[KernelRequest]:
        return (pool_kernel(node, ctx, node.attributes, maximum=False),)


def _axes(graph: Graph, node: Node) -> set[int]:
    """Return the averaged axes of the input's own shape, counted from 0."""
    rank = len(graph.values[node.inputs[0]].shape)
    return {axis % rank for axis in constant_list(graph, node.inputs[1])}


def _kept(graph: Graph, node: Node) -> Shape:
    """Return the output's shape with the averaged dimensions kept as 1."""
    axes = _axes(graph, node)
    shape = graph.values[node.inputs[0]].shape
    return tuple(1 if axis in axes else size for axis, size in enumerate(shape))
