"""INDEX_MAP: each output element is an input element at a computed index, or a constant.

INDEX_MAP is an internal op for TRANSPOSE, TILE, GATHER and similar ops. TRANSPOSE, TILE and GATHER
share one kernel, and differ only in a table of affine index expressions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from litegpu.codegen import LONG, register_of, round_up
from litegpu.graph import Graph, Node
from litegpu.ops.base import InternalOp, KernelRequest, LowerContext, Shape, register
from litegpu.ops.common.traits import Trait
from litegpu.ops.common.window import mirrored
from litegpu.ops.reshape import reshape_node

INDEX_MAP = "INDEX_MAP"
_NAMES = ("n", "y", "x", "c")


@dataclass(frozen=True, slots=True)
class MixedRadix:
    """The digits of the index along an output axis (mixed radix), after `begin` is added."""

    sizes: tuple[int, ...]
    begin: int = 0


@dataclass(frozen=True, slots=True)
class Source:
    """The index along one axis of the input: `offset` plus digit * factor for each of `terms`.

    Digits are numbered over all axes of the output. `mirror` reflects the index at both ends; the
    edge is repeated for -1, and not repeated for 0. If `bounded`, the result is `fill` for an index
    out of range. If `table` is set, the index selects an entry of the table as the final index. If
    `operand`, the index selects an element of the second input as the final index.
    """

    terms: tuple[tuple[int, int], ...] = ()
    offset: int = 0
    mirror: int | None = None
    bounded: bool = False
    table: tuple[int, ...] | None = None
    operand: bool = False

    @property
    def affine(self) -> bool:
        """Whether the index is only a sum of its terms."""
        looked_up = self.table is not None or self.operand
        return self.mirror is None and not looked_up and not self.bounded


@dataclass(frozen=True, slots=True)
class IndexMapAttributes:
    """The digits of each output axis, and the source of each input axis."""

    digits: tuple[MixedRadix, ...]
    sources: tuple[Source, ...]
    fill: float = 0.0

    @property
    def sizes(self) -> tuple[int, ...]:
        """The size of each digit: the number of values that the digit can have."""
        return tuple(size for axis in self.digits for size in axis.sizes)

    @property
    def whole_blocks(self) -> bool:
        """Whether each channel block of the output is a channel block of the input."""
        if not self.digits or not self.sources or self.digits[-1].begin:
            return False
        channel, lane = self.sources[-1], len(self.sizes) - 1
        blocks = [factor for digit, factor in channel.terms if digit != lane]
        together = self.only_digit or self.digits[-1].sizes[-1] % 4 == 0
        alone = not any(lane == digit for source in self.sources[:-1] for digit, _ in source.terms)
        even = not any(step % 4 for step in (channel.offset, *blocks))
        return alone and together and even and channel.affine and (lane, 1) in channel.terms

    @property
    def only_digit(self) -> bool:
        """Whether the channels of the output are a single digit."""
        return math.prod(self.digits[-1].sizes[:-1]) == 1

    @property
    def whole_block_start(self) -> int | None:
        """The first output channel after which blocks are consecutive input blocks, or None."""
        lane = len(self.sizes) - 1
        ordered = self.whole_blocks and self.only_digit
        return (
            self.sources[-1].offset if ordered and self.sources[-1].terms == ((lane, 1),) else None
        )


def plain(shape: Shape) -> tuple[MixedRadix, ...]:
    """Return the digits of an output with a single digit per axis."""
    return tuple(MixedRadix((size,)) for size in shape)


def index_map_node(
    graph: Graph,
    node: Node,
    digits: Sequence[MixedRadix],
    sources: Sequence[Source],
    fill: float = 0.0,
    cut: bool = False,
) -> Node:
    """Return an INDEX_MAP node for the first input, or a RESHAPE if the element order is the same.

    `cut` states that the output is smaller than the product of its digit sizes.
    """
    attributes = IndexMapAttributes(tuple(digits), tuple(sources), fill)
    if not cut and _keeps_order(attributes, graph.values[node.inputs[0]].shape):
        return reshape_node(node, node.inputs[0], node.outputs[0])
    inputs = node.inputs[: 2 if any(source.operand for source in sources) else 1]
    return Node(node.index, INDEX_MAP, 1, inputs, node.outputs, attributes=attributes)


def _keeps_order(attributes: IndexMapAttributes, shape: Shape) -> bool:
    """Whether all elements stay in row-major order."""
    sizes, steps = attributes.sizes, index_strides(attributes, shape)
    if steps is None or math.prod(sizes) != math.prod(shape):
        return False
    wanted = strides(sizes)
    return all(a == b for a, b, size in zip(steps, wanted, sizes, strict=True) if size > 1)


def index_strides(attributes: IndexMapAttributes, shape: Shape) -> list[int] | None:
    """Return the distance in input elements of one step of each digit.

    The result is None if the input index is not a sum of steps per digit.
    """
    begins = any(axis.begin for axis in attributes.digits)
    if begins or not all(s.affine and s.offset == 0 for s in attributes.sources):
        return None
    steps = [0] * len(attributes.sizes)
    for source, stride in zip(attributes.sources, strides(shape), strict=True):
        for digit, factor in source.terms:
            steps[digit] += factor * stride
    return steps


def strides(shape: Sequence[int]) -> list[int]:
    """Return the distance in elements of one step along each axis, in row-major order."""
    return [*accumulate(reversed(shape[1:]), lambda a, b: a * b, initial=1)][::-1] if shape else []


@register
class IndexMap(InternalOp):
    """Gathers elements by a table of index expressions; only other ops create this op."""

    name = INDEX_MAP
    traits = Trait.CONVEX

    def lower(self, node: Node, ctx: LowerContext) -> Sequence[KernelRequest]:
        attributes: IndexMapAttributes = node.attributes
        dst = ctx.storage(node.outputs[0])
        shape = ctx.value(node.inputs[0]).shape
        moved = register_of(ctx.storage(node.inputs[0]).dtype)
        indices = _indices(attributes, shape, ctx.value(node.outputs[0]).shape)
        start = attributes.whole_block_start
        if start is not None:
            indices.pop()  # the template iterates over channel blocks, not channels
        request = KernelRequest(
            template="index_map",
            grid=(dst.channel_blocks, dst.rows, 1),
            output=node.outputs[0],
            reads=dict(zip(("src", "operand"), node.inputs, strict=False)),
            constants=_tables(attributes),
            variables={
                "row_indices": [index for index in indices if not index.by_channel],
                "channel_indices": [index for index in indices if index.by_channel],
                "coordinates": _coordinates(shape),
                "fill": moved.literal(attributes.fill),
                "as_index": _as_index(node, ctx),
                "first_block": None if start is None else start // 4,
                "whole_blocks": attributes.whole_blocks,
            },
            accumulator=moved,
        )
        return (request,)


def _as_index(node: Node, ctx: LowerContext) -> str:
    """Return the text that converts an index in the second input, %s, to int."""
    if len(node.inputs) < 2 or register_of(ctx.storage(node.inputs[1]).dtype) is not LONG:
        return "%s"
    return "NEAREST_INT(%s)"


@dataclass(frozen=True, slots=True)
class _Index:
    """The text of an input index or, with `table` or `operand`, of a position in the index list."""

    name: str
    text: str
    by_channel: bool
    last: int
    table: str
    operand: bool
    conditions: tuple[str, ...]


def _indices(attributes: IndexMapAttributes, shape: Shape, out: Shape) -> list[_Index]:
    digits = _digit_texts(attributes.digits, out)
    sizes, lanes = attributes.sizes, len(attributes.digits[-1].sizes) if out else 0
    found = []
    for axis, (source, size) in enumerate(zip(attributes.sources, shape, strict=True)):
        terms = [(d, factor) for d, factor in source.terms if sizes[d] > 1]
        parts = [digits[d] + (f" * {factor}" if factor != 1 else "") for d, factor in terms]
        parts += [f"({source.offset})"] if source.offset or not parts else []
        text = " + ".join(parts)
        if source.mirror is not None:
            text = mirrored(text, source.mirror, size)
        found.append(
            _Index(
                f"i{axis}",
                text,
                any(d >= len(sizes) - lanes for d, _ in terms),
                size - 1,
                "" if source.table is None else f"table{axis}",
                source.operand,
                _conditions(f"i{axis}", source, sizes, size),
            )
        )
    return found


def _conditions(name: str, source: Source, sizes: Shape, size: int) -> tuple[str, ...]:
    """Return the conditions under which an index is inside the input."""
    if not source.bounded:
        return ()
    reached = [(sizes[d] - 1) * factor for d, factor in source.terms]
    low = source.offset + sum(min(r, 0) for r in reached)
    high = source.offset + sum(max(r, 0) for r in reached)
    below = (f"{name} >= 0",) if low < 0 else ()
    return (*below, f"{name} < {size}") if high >= size else below


def _digit_texts(axes: Sequence[MixedRadix], out: Shape) -> list[str]:
    """Return the text of each digit, from the output's coordinates n, y, x and c."""
    texts = []
    for axis, index in zip(axes, axis_texts(out), strict=True):
        shifted = f"({index} + {axis.begin})" if axis.begin else index
        texts += mixed_radix_texts(shifted, axis.sizes)
    return texts


def axis_texts(shape: Shape) -> list[str]:
    """Return the texts of the indices along each axis of a value of this shape."""
    outer = len(shape) - len(_NAMES)
    if outer < 0:
        return list(_NAMES[-outer:])
    return [*mixed_radix_texts(_NAMES[0], shape[: outer + 1]), *_NAMES[1:]]


def mixed_radix_texts(index: str, sizes: Sequence[int]) -> list[str]:
    """Return the texts of the digits of an index."""
    texts = []
    for position, (size, step) in enumerate(zip(sizes, strides(sizes), strict=True)):
        upper = f"({index} / {step})" if step > 1 else index
        texts.append(f"({upper} % {size})" if position else upper)
    return texts


def _coordinates(shape: Shape) -> tuple[str, str, str, str]:
    """Return the texts of the input's coordinates n, y, x, c from the indices i0, i1, ..."""
    names = [f"i{axis}" for axis in range(len(shape))]
    outer = max(len(shape) - 3, 0)
    steps = strides(shape[:outer])
    terms = (f"{i} * {step}" if step > 1 else i for i, step in zip(names, steps, strict=False))
    merged = [" + ".join(terms)] if outer else []
    n, y, x, c = ["0"] * (4 - len(merged) - len(names[outer:])) + merged + names[outer:]
    return n, y, x, c


def _tables(attributes: IndexMapAttributes) -> dict[str, npt.NDArray[np.float32]]:
    """Return the constant indices, as floats that are read 4 at a time."""
    tables = {}
    for axis, source in enumerate(attributes.sources):
        if source.table is not None:
            padded = np.zeros(round_up(len(source.table), 4), np.float32)
            padded[: len(source.table)] = source.table
            tables[f"table{axis}"] = padded
    return tables
