"""PAD and PADV2: surround a value with zeros or with a constant."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np

from litegpu.graph import DType, Graph, Node
from litegpu.ops.base import (
    KernelRequest,
    LowerContext,
    NewValue,
    Op,
    Shape,
    constant_list,
    register,
)
from litegpu.ops.common import checks
from litegpu.ops.common.traits import Trait
from litegpu.ops.common.types import INTEGERS, MOVED, Types, stored_zero
from litegpu.ops.copy import CopyAttributes, copy_kernel, four, merge_ranges
from litegpu.ops.index_map import Source, index_map_node, plain
from litegpu.ops.reshape import reshape_node, reshaped

_PADDING_TYPES = (DType.INT8, DType.INT16, DType.INT32, DType.INT64)


@register
class Pad(Op):
    """PAD: surrounds the input with zeros, or a quantized input with the output's zero point."""

    name = "PAD"
    max_version = 6
    traits = Trait.CONVEX | Trait.RESIZES
    shape_operands = (1,)
    takes: ClassVar[tuple[Types, ...]] = (MOVED, INTEGERS)
    gives: ClassVar[Types | None] = None

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            checks.input_count(node, 2, 2),
            checks.operands(graph, node, (1,)),
            checks.integers(graph, node, 1, "The paddings", kinds=_PADDING_TYPES),
            lambda: check_paddings(graph, node),
        )

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        return (padded_shape(graph, node),)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        return pad_nodes(graph, node, stored_zero(graph.values[node.outputs[0]]), new_value)

    def lower(self, node: Node, ctx: LowerContext) -> Sequence[KernelRequest]:
        return (copy_kernel(node, ctx),)


@register
class PadV2(Pad):
    """PADV2: surrounds the input with a constant value."""

    name = "PADV2"
    max_version = 6
    takes = (MOVED, INTEGERS, MOVED)

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            checks.input_count(node, 3, 3),
            checks.operands(graph, node, (1,)),
            checks.integers(graph, node, 1, "The paddings", kinds=_PADDING_TYPES),
            checks.constant(graph, node, 2, "The padding value", MOVED),
            lambda: check_paddings(graph, node),
        )

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        return pad_nodes(graph, node, constant_list(graph, node.inputs[2])[0], new_value)


def pad_nodes(graph: Graph, node: Node, fill: float, new_value: NewValue) -> Sequence[Node]:
    """Return a padding node with resolved attributes, and the RESHAPE nodes before and after it."""
    shape, whole = graph.values[node.inputs[0]].shape, padded_shape(graph, node)
    part = [range(-b, n + a) for n, (b, a) in zip(shape, paddings(graph, node), strict=True)]
    axes = list(zip(shape, part, strict=True))
    if len(axes) > 4:
        merged = merge_ranges(shape, part)
        if merged is None:
            sources = [Source(((axis, 1),), r.start, bounded=True) for axis, r in enumerate(part)]
            return (index_map_node(graph, node, plain(whole), sources, fill),)
        axes = merged
    flat = tuple(size for size, _ in axes)
    inputs, nodes = reshaped(graph, node, node.inputs[:1], [flat], new_value)
    begin = four([0] * (4 - len(axes)) + [r.start for _, r in axes])
    padded = replace(node, inputs=tuple(inputs), attributes=CopyAttributes(begin, fill=fill))
    result = tuple(len(r) for _, r in axes)
    if result == whole:
        return (*nodes, padded)
    target = new_value(result)
    view = reshape_node(node, target, node.outputs[0])
    return (*nodes, replace(padded, outputs=(target,)), view)


def padded_shape(graph: Graph, node: Node) -> Shape:
    """Return the shape of a checked padding node's result."""
    shape, pads = graph.values[node.inputs[0]].shape, paddings(graph, node)
    return tuple(b + n + a for n, (b, a) in zip(shape, pads, strict=True))


def paddings(graph: Graph, node: Node) -> list[tuple[int, int]]:
    """Return the padding before and after each dimension."""
    table = np.asarray(graph.values[node.inputs[1]].data).reshape(-1, 2)
    return [(int(before), int(after)) for before, after in table]


def check_paddings(graph: Graph, node: Node) -> str:
    """Require a pair of paddings for each dimension."""
    rank = len(graph.values[node.inputs[0]].shape)
    shape = graph.values[node.inputs[1]].shape
    if shape != (rank, 2):
        got = "x".join(map(str, shape))
        return f"Invalid paddings tensor shape: expected {rank}x2, got {got}"
    if any(min(pair) < 0 for pair in paddings(graph, node)):
        return f"The paddings {paddings(graph, node)} must not be negative."
    return ""
