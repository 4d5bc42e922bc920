"""DYNAMIC_UPDATE_SLICE: replaces a part of a value at a computed position."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from litegpu.codegen import LONG, register_of
from litegpu.graph import Graph, Node
from litegpu.ops.base import KernelRequest, LowerContext, NewValue, Op, Shape, register
from litegpu.ops.common import checks
from litegpu.ops.common.facts import Array, Folded
from litegpu.ops.common.traits import Trait
from litegpu.ops.common.types import INTEGERS, MOVED
from litegpu.ops.index_map import axis_texts, mixed_radix_texts, strides


@dataclass(frozen=True, slots=True)
class UpdateAttributes:
    """The shape of the replaced part; the second input has its elements, in any shape."""

    parts: Shape


@register
class DynamicUpdateSlice(Op):
    """Replaces a part of the first input by the second, at the third input's clamped position."""

    name = "DYNAMIC_UPDATE_SLICE"
    max_version = 6
    traits = Trait.UPDATES_INPUT
    cpu_bytes_per_second = 15e9
    takes = (MOVED, MOVED, INTEGERS)
    gives = None

    def fold(self, graph: Graph, node: Node, operands: Sequence[Array]) -> Folded | None:
        value, update, begin = operands

        def make() -> list[Array]:
            room = np.subtract(value.shape, update.shape)
            first = np.clip(begin.ravel(), 0, room)
            found = value.copy()
            found[tuple(map(slice, first, first + update.shape))] = update
            return [found]

        return Folded(value.size, make)

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            checks.input_count(node, 3, 3),
            checks.operands(graph, node, (1, 2, 3)),
            checks.operand(graph, node, 0, "The value", _VALUES),
            checks.operand(graph, node, 1, "The update", _VALUES),
            checks.integers(graph, node, 2, "Where it begins", constant=False),
            lambda: _check_shapes(graph, node),
        )

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        return (graph.values[node.inputs[0]].shape,)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        return (replace(node, attributes=UpdateAttributes(graph.values[node.inputs[1]].shape)),)

    def lower(self, node: Node, ctx: LowerContext) -> Sequence[KernelRequest]:
        dst = ctx.storage(node.outputs[0])
        sizes, parts = ctx.value(node.inputs[0]).shape, node.attributes.parts
        if ctx.storage(node.inputs[0]).base == dst.base:
            return [_in_place(node, ctx)]
        texts = axis_texts(sizes)[:-1]
        steps = [step // parts[-1] for step in strides(parts)[:-1]]
        terms = [f"(i{i} - b{i}) * {step}" for i, step in enumerate(steps)]
        request = KernelRequest(
            template="dynamic_update_slice",
            grid=(dst.channel_blocks, dst.rows, 1),
            output=node.outputs[0],
            reads=dict(zip(("src", "update", "begin"), node.inputs, strict=True)),
            variables={
                "sizes": sizes,
                "parts": parts,
                "outer": texts,
                "row": " + ".join(terms) or "0",
                "as_index": _as_index(node, ctx),
            },
            accumulator=register_of(ctx.storage(node.inputs[0]).dtype),
        )
        return (request,)


def _in_place(node: Node, ctx: LowerContext) -> KernelRequest:
    """Return a kernel that writes only the channel blocks that the part touches."""
    dst = ctx.storage(node.outputs[0])
    sizes, parts = ctx.value(node.inputs[0]).shape, node.attributes.parts
    whole = sizes[-1] == parts[-1]
    blocks = dst.channel_blocks if whole else min(dst.channel_blocks, (parts[-1] + 2) // 4 + 1)
    rows = math.prod(parts[:-1])
    steps = [step // sizes[-1] for step in strides(sizes)[:-1]]
    return KernelRequest(
        template="update_in_place",
        grid=(blocks, rows, 1),
        output=node.outputs[0],
        reads=dict(zip(("update", "begin"), node.inputs[1:], strict=True)),
        variables={
            "sizes": sizes,
            "parts": parts,
            "blocks": blocks,
            "rows": rows,
            "outer": mixed_radix_texts("r", parts[:-1]),
            "steps": steps,
            "as_index": _as_index(node, ctx),
        },
        written=rows * parts[-1],
        accumulator=register_of(dst.dtype),
    )


def _as_index(node: Node, ctx: LowerContext) -> str:
    places = register_of(ctx.storage(node.inputs[2]).dtype)
    return "NEAREST_INT(%s)" if places is LONG else "%s"


_VALUES = (*checks.READABLE_CONSTANTS, *MOVED.dtypes)


def _check_shapes(graph: Graph, node: Node) -> str:
    value, update, begin = (graph.values[v].shape for v in node.inputs)
    fits = len(update) == len(value) and all(map(int.__le__, update, value))
    if value and fits and begin == (len(value),):
        return ""
    return f"A part of {list(update)}, at {list(begin)} numbers, does not fit {list(value)}."
