"""MEAN, SUM and the REDUCE ops, which reduce any axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from litegpu.codegen import FLOAT, INT, Register, literal, register_of
from litegpu.graph import DType, EpilogueOp, Graph, Node
from litegpu.ops.base import (
    COPY,
    KernelRequest,
    LowerContext,
    NewValue,
    Op,
    Shape,
    add,
    constant_list,
)
from litegpu.ops.common import checks, facts
from litegpu.ops.common.facts import Array, Folded
from litegpu.ops.common.functions import cast_name
from litegpu.ops.common.traits import Trait
from litegpu.ops.common.types import (
    BOOLS,
    FLOATS,
    INTEGER_TYPES,
    INTEGERS,
    NUMBERS,
    QUANTIZED_TYPES,
    SCALED,
    Types,
    is_quantized,
)
from litegpu.ops.common.units import Unit
from litegpu.ops.common.work_groups import shared_items
from litegpu.ops.exact.reduce import ExactMean, ExactProduct, ExactSum
from litegpu.ops.index_map import mixed_radix_texts
from litegpu.ops.reshape import merge_axes, merged_shape, reshape_node

_MAX_TERMS = 1 << 15
"""Maximum number of elements that one kernel reduces. A larger reduction in a single kernel would
leave most of a GPU idle, and Mesa's software devices abort loops after 65535 steps.
"""


@dataclass(frozen=True, slots=True)
class Kind:
    """The expression by which a reduction combines two float4 {a} and {b}; its initial value."""

    combine: str
    start: float
    average: bool = False
    in_order: bool = False
    """Whether one work item combines all elements in the CPU's order. The order matters because a
    product of large, tiny and zero numbers overflows in one order but not in another.
    """
    max_version: int = 3
    types: Types = FLOATS
    traits: Trait = Trait.NONE
    exact: Callable[..., Any] | None = None
    """The equivalent NumPy function, for integers and bools."""
    integer: str = ""
    """The expression that combines two integer registers, in which macro names end in {k}."""
    partial: Mapping[DType, DType] = field(default_factory=dict)
    """The accumulator type for integers, if this differs from the result's type."""


def _mean(data: Array, axis: tuple[int, ...], keepdims: bool) -> Array:
    """Return the mean of integers, rounded towards zero; sums wrap around."""
    sums = np.sum(data, axis=axis, keepdims=keepdims, dtype=np.int64)
    count = data.size // max(sums.size, 1)
    return np.asarray(np.where(sums < 0, -(-sums // count), sums // count))


_COMPARED = Types(SCALED.dtypes | INTEGER_TYPES, common=True)

KINDS: Mapping[str, Kind] = {
    "MEAN": Kind(
        "{a} + {b}",
        0.0,
        average=True,
        types=NUMBERS,
        traits=Trait.CONVEX,
        exact=_mean,
        partial=dict.fromkeys(INTEGER_TYPES, DType.INT64),
    ),
    "REDUCE_ALL": Kind("MIN4({a}, {b})", 1.0, max_version=1, types=BOOLS, exact=np.all),
    "REDUCE_ANY": Kind("MAX4({a}, {b})", 0.0, max_version=1, types=BOOLS, exact=np.any),
    "REDUCE_MAX": Kind(
        "MAX4({a}, {b})",
        -math.inf,
        types=_COMPARED,
        traits=Trait.CONVEX,
        exact=np.max,
        integer="MAX4{k}({a}, {b})",
    ),
    "REDUCE_MIN": Kind(
        "MIN4({a}, {b})",
        math.inf,
        types=_COMPARED,
        traits=Trait.CONVEX,
        exact=np.min,
        integer="MIN4{k}({a}, {b})",
    ),
    "REDUCE_PROD": Kind(
        "{a} * {b}",
        1.0,
        in_order=True,
        max_version=2,
        types=_COMPARED,
        exact=np.prod,
        integer="MUL4{k}({a}, {b})",
        partial=dict.fromkeys(QUANTIZED_TYPES, DType.INT32),
    ),
    "SUM": Kind(
        "{a} + {b}",
        0.0,
        max_version=2,
        types=NUMBERS,
        exact=np.sum,
        integer="ADD4{k}({a}, {b})",
    ),
}


@dataclass(frozen=True, slots=True)
class ReduceAttributes:
    """The axes of [N, H, W, C] that are reduced to 1.

    If `steps` is set (2^n - 1 ascending integers), the result is the number of steps that do not
    exceed the reduced number.
    """

    axes: tuple[int, ...]
    steps: tuple[int, ...] = ()


class Reduction(Op):
    """Reduces the elements along axes to one element; `keep_dims` keeps axes of size 1."""

    shape_operands = (1,)
    may_be_empty = (1,)  # no axes: each element is its own sum

    def __init__(self, name: str, kind: Kind) -> None:
        self.name = name  # type: ignore[misc]
        self.max_version = kind.max_version  # type: ignore[misc]
        self.traits = kind.traits  # type: ignore[misc]
        self.takes = (kind.types, INTEGERS)  # type: ignore[misc]
        self.gives = None if kind.types.common else kind.types  # type: ignore[misc]
        sums = {"MEAN": ExactMean, "SUM": ExactSum}
        if name in sums:
            self.exact = sums[name](self.check, reduced)  # type: ignore[misc]
        if name == "REDUCE_PROD":
            self.exact = ExactProduct(self.check)  # type: ignore[misc]
        self.kind = kind

    def flops(self, graph: Graph, node: Node) -> int:
        return facts.of_input(graph, node)

    def fold(self, graph: Graph, node: Node, operands: Sequence[Array]) -> Folded | None:
        data, axes = operands
        function = self.kind.exact
        if function is None or data.dtype.kind not in "iub" or is_quantized(graph, node):
            return None  # sums of floats depend on their order
        axis, keep = tuple(np.ravel(axes)), bool(node.params["keep_dims"])
        return facts.as_many(
            operands, lambda: [np.asarray(function(data, axis=axis, keepdims=keep), data.dtype)]
        )

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
        shape, axes = graph.values[node.inputs[0]].shape, _axes(graph, node)
        if node.params["keep_dims"]:
            return (tuple(1 if i in axes else size for i, size in enumerate(shape)),)
        return (tuple(size for i, size in enumerate(shape) if i not in axes),)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        source, result = (graph.values[v] for v in (node.inputs[0], node.outputs[0]))
        partial = self.kind.partial.get(source.dtype)
        if partial is None:
            return reduced(graph, node, new_value, result.dtype)
        whole = replace(source, id=new_value(source.shape, dtype=partial), dtype=partial)
        total = replace(result, id=new_value(result.shape, dtype=partial), dtype=partial)
        values = {**graph.values, whole.id: whole, total.id: total}
        inner = replace(node, inputs=(whole.id, *node.inputs[1:]), outputs=(total.id,))
        end: tuple[EpilogueOp, ...] = ()
        if self.kind.average:
            inner, terms = replace(inner, op="SUM"), source.elements // max(result.elements, 1)
            count = new_value((), np.array(terms, partial.value), dtype=partial)
            end = (EpilogueOp("INTEGER_MEAN", (count,)),)
        if partial is not result.dtype:
            end += (EpilogueOp(cast_name(register_of(partial), result.dtype)),)
        begin = (EpilogueOp(cast_name(register_of(source.dtype), partial)),)
        return (
            Node(node.index, COPY, 1, (source.id,), (whole.id,), epilogue=begin),
            *reduced(replace(graph, values=values), inner, new_value, partial),
            Node(node.index, COPY, 1, (total.id,), node.outputs, epilogue=end),
        )

    def lower(self, node: Node, ctx: LowerContext) -> Sequence[KernelRequest]:
        src, dst = ctx.storage(node.inputs[0]), ctx.storage(node.outputs[0])
        axes: tuple[int, ...] = node.attributes.axes
        taps = math.prod(src.shape[axis] for axis in axes if axis != 3)
        channel_blocks = -(-src.channels // 4) if 3 in axes else 1
        whole = register_of(src.dtype)
        in_order = self.kind.in_order and whole is FLOAT
        terms = 1 if in_order else taps * channel_blocks // 2
        items = shared_items(dst.rows * dst.channel_blocks, terms, ctx)
        count = taps * (src.channels if 3 in axes else 1)
        rows = [axis for axis in axes if axis != 3]
        steps: tuple[int, ...] = node.attributes.steps
        texts = mixed_radix_texts("k", [src.shape[axis] for axis in rows])
        request = KernelRequest(
            template="reduce",
            grid=(dst.channel_blocks * items, dst.rows, 1),
            local=(items, 1, 1) if items > 1 else (8, 8, 1),
            output=node.outputs[0],
            reads={"src": node.inputs[0]},
            variables={
                "ITEMS": items,
                "combine": self.kind.combine if whole is FLOAT else self.kind.integer,
                "k": whole.ending,
                "start": _start(self.kind.start, whole),
                "half_of_steps": (len(steps) + 1) // 2,
                "taps": taps,
                "channel_blocks": channel_blocks,
                "over_channels": 3 in axes,
                "in_order": in_order,
                "along": dict(zip(rows, texts, strict=True)),
                "divisor": literal(count) if self.kind.average else "",
            },
            constants={"steps": np.array((*steps, 0), np.int32)} if steps else {},
            shared=((whole.type, "scratch", items),) if items > 1 else (),
            work={Unit.FP32: src.rows * src.channels},
            accumulator=whole,
        )
        return (request,)


def _start(number: float, register: Register) -> str:
    """Return the text of the initial value; integer types have limits instead of infinities."""
    bits = 31 if register is INT else 63
    ends = {-math.inf: -(2**bits), math.inf: 2**bits - 1}
    return register.literal(number if register is FLOAT else ends.get(number, number))


def reduced(graph: Graph, node: Node, new_value: NewValue, partial: DType) -> Sequence[Node]:
    """Return the reduction nodes of a node; results before the last have the type `partial`."""
    shape, axes = graph.values[node.inputs[0]].shape, _axes(graph, node)
    nodes: list[Node] = []
    source, present = node.inputs[0], shape
    steps = _steps(shape, axes)
    if not steps and partial is not graph.values[source].dtype:
        rows_of_channels = (1, 1, math.prod(shape[:-1]), math.prod(shape[-1:]))
        steps = [(rows_of_channels, rows_of_channels, (0,))]  # sums of one term, of another type
    for before, after, over in steps:
        if present != before:
            view = new_value(before, dtype=partial if nodes else graph.values[source].dtype)
            nodes.append(reshape_node(node, source, view))
            source = nodes[-1].outputs[0]
        target, attributes = new_value(after, dtype=partial), ReduceAttributes(over)
        nodes.append(replace(node, inputs=(source,), outputs=(target,), attributes=attributes))
        source, present = target, after
    if nodes and present == graph.values[node.outputs[0]].shape:
        return (*nodes[:-1], replace(nodes[-1], outputs=node.outputs))
    return (*nodes, reshape_node(node, source, node.outputs[0]))


def _axes(graph: Graph, node: Node) -> set[int]:
    """Return the reduced axes of the input's original shape, counted from 0."""
    rank = len(graph.values[node.inputs[0]].shape)
    return {axis % rank for axis in constant_list(graph, node.inputs[1])}


def _steps(shape: Shape, axes: set[int]) -> list[tuple[Shape, Shape, tuple[int, ...]]]:
    """Return for each reduction the shapes before and after, and the axes of [N, H, W, C].

    The function merges adjacent axes if the shape has more than 4 axes. If more than 4 axes remain,
    each run of reduced axes is a separate reduction.
    """
    if len(shape) <= 4:
        return direct_steps(shape, axes)
    runs = merge_axes(shape, [axis in axes for axis in range(len(shape))])
    if runs is not None:
        reduced_sizes = {axis for axis in axes if shape[axis] > 1}
        over = {i for i, run in enumerate(runs) if not reduced_sizes.isdisjoint(run)}
        return direct_steps(merged_shape(shape, runs), over)
    sizes = list(shape)
    steps: list[tuple[Shape, Shape, tuple[int, ...]]] = []
    for first in sorted(axis for axis in axes if axis - 1 not in axes):
        end = next(axis for axis in range(first, len(shape) + 1) if axis not in axes)
        outer, run = math.prod(sizes[:first]), math.prod(sizes[first:end])
        sizes[first:end] = [1] * (end - first)
        if end == len(shape):
            steps.append(((1, 1, outer, run), (1, 1, outer, 1), (3,)))
        else:
            inner = math.prod(sizes[end:-1]), sizes[-1]
            steps.append(((outer, run, *inner), (outer, 1, *inner), (1,)))
    return steps


def direct_steps(shape: Shape, axes: set[int]) -> list[tuple[Shape, Shape, tuple[int, ...]]]:
    """Return one reduction as in `_steps`, or one per axis if many elements are reduced."""
    large = math.prod(shape[axis] for axis in axes) > _MAX_TERMS
    groups = [{axis} for axis in sorted(axes, reverse=True)] if large else [axes]
    steps, before = [], shape
    for group in filter(None, groups):
        after = tuple(1 if axis in group else size for axis, size in enumerate(before))
        padded_axes = tuple(axis + 4 - len(shape) for axis in sorted(group))
        steps.append((before, after, padded_axes))
        before = after
    return steps


for _name, _kind in KINDS.items():
    add(Reduction(_name, _kind))
