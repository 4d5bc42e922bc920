"""Alternating slices of one value become a gather of its channels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from litegpu.passes.slices_into_gather import slices_into_gather
from litegpu.zoo.writer import TensorRef
from passes.graphs import GraphBuilder, Shape, applied, ops, untouched
from passes.models import Model, check_numbers

SHAPE = (2, 3, 5, 12)
NO_MASKS = dict.fromkeys(
    ("begin_mask", "end_mask", "ellipsis_mask", "new_axis_mask", "shrink_axis_mask"), 0
)


def node(builder: GraphBuilder, op: str, inputs: list[int], shape: Shape, **params: Any) -> int:
    output = builder.node(op, inputs, shape)
    builder.nodes[-1] = replace(builder.nodes[-1], params=params)
    return output


def cut(builder: GraphBuilder, source: int, begin: int, step: int = 2, end: int = 0) -> int:
    """Add every second channel of a value."""
    *lead, channels = builder.shape(source)
    ends = ([0] * len(lead) + [begin], [*lead, end or channels], [1] * len(lead) + [step])
    operands = [builder.integers(each) for each in ends]
    shape = (*lead, len(range(begin, end or channels, step)))
    return node(builder, "STRIDED_SLICE", [source, *operands], shape, **NO_MASKS)


def turns(builder: GraphBuilder, parts: list[int], shape: Shape = SHAPE) -> int:
    """Let channels of the parts take turns."""
    tall = [builder.reshape(each, *builder.shape(each), 1) for each in parts]
    *lead, channels, _ = builder.shape(tall[0])
    whole = (*lead, channels, len(parts))
    joined = node(builder, "CONCATENATION", tall, whole, axis=len(lead) + 1, activation="none")
    return builder.reshape(joined, *shape)


def negated(builder: GraphBuilder, source: int) -> int:
    return builder.node("NEG", [source], builder.shape(source))


def test_pairs_are_exchanged() -> None:
    builder = GraphBuilder()
    source = builder.input(*SHAPE)
    even, odd = cut(builder, source, 0), cut(builder, source, 1)
    result = turns(builder, [negated(builder, odd), even])
    found = applied(slices_into_gather, builder.graph(result))
    assert found.applied == ("the parts of CONCATENATION 5 as RESHAPE 6 reads them",)
    gather, factors = found.graph.nodes
    assert (gather.op, gather.inputs[0], gather.params["axis"]) == ("GATHER", source, 3)
    assert (factors.op, factors.outputs) == ("MUL", (result,))
    table, numbers = (found.graph.values[each.inputs[1]].data for each in (gather, factors))
    assert table is not None and numbers is not None
    assert np.array_equal(table, np.arange(12).reshape(6, 2)[:, ::-1].ravel())
    assert np.array_equal(numbers, [-1, 1] * 6)


def test_another_shape_and_no_factors() -> None:
    builder = GraphBuilder()
    source = builder.input(30, 12)
    parts = [cut(builder, source, begin, 3) for begin in (2, 0, 1)]
    found = applied(slices_into_gather, builder.graph(turns(builder, parts)))
    assert ops(found) == ["GATHER", "RESHAPE"]


def test_slices_of_pairs() -> None:
    builder = GraphBuilder()
    source = builder.input(*SHAPE)
    pairs = builder.reshape(source, 2, 3, 5, 6, 2)
    parts = [
        node(builder, "SLICE", [pairs, *map(builder.integers, ends)], (2, 3, 5, 6, 1))
        for ends in (((0, 0, 0, 0, 1), (2, 3, 5, 6, 1)), ((0, 0, 0, 0, 0), (2, 3, 5, 6, 1)))
    ]
    rows = [builder.reshape(each, 2, 3, 5, 6) for each in parts]
    scaled = node(builder, "MUL", [rows[0], builder.number(-2.0)], (2, 3, 5, 6), activation="none")
    packed = node(builder, "PACK", [scaled, rows[1]], (2, 3, 5, 6, 2), axis=-1)
    found = applied(slices_into_gather, builder.graph(builder.reshape(packed, *SHAPE)))
    gather, factors = found.graph.nodes
    assert gather.inputs[0] == source
    numbers = found.graph.values[factors.inputs[1]].data
    assert numbers is not None
    assert np.array_equal(numbers, [-2, 1] * 6)


def _other_axis(builder: GraphBuilder, source: int) -> int:
    parts = [cut(builder, source, begin) for begin in (1, 0)]
    joined = node(builder, "CONCATENATION", parts, (2, 3, 10, 6), axis=2, activation="none")
    return builder.reshape(joined, *SHAPE)


@pytest.mark.parametrize("write", [_other_axis])
def test_what_is_no_row(write: Callable[[GraphBuilder, int], int]) -> None:
    builder = GraphBuilder()
    result = write(builder, builder.input(*SHAPE))
    assert untouched(slices_into_gather, builder.graph(result)).declined == ()


def _of_two(builder: GraphBuilder, source: int) -> int:
    return turns(builder, [cut(builder, source, 1), cut(builder, builder.input(*SHAPE), 0)])


def _computed(builder: GraphBuilder, source: int) -> int:
    odd = builder.node("TANH", [cut(builder, source, 1)], (2, 3, 5, 6))
    return turns(builder, [odd, cut(builder, source, 0)])


def _by_rows(builder: GraphBuilder, source: int) -> int:
    factors = builder.constant(1, 1, 5, 1)
    odd = node(builder, "MUL", [cut(builder, source, 1), factors], (2, 3, 5, 6), activation="none")
    return turns(builder, [odd, cut(builder, source, 0)])


def _some_rows(builder: GraphBuilder, source: int) -> int:
    wide = builder.input(2, 4, 5, 12)
    ends = [builder.integers(each) for each in ((0, 1, 0, 0), (2, 3, 5, 12))]
    rows = node(builder, "SLICE", [wide, *ends], (2, 3, 5, 12))
    return turns(builder, [cut(builder, rows, 1), cut(builder, source, 0)])


def _other_rows(builder: GraphBuilder, source: int) -> int:
    wide = builder.input(2, 6, 5, 12)
    ends = [builder.integers(each) for each in ((0, 1, 0, 0), (2, 3, 5, 6))]
    parts = [node(builder, "SLICE", [wide, *ends], (2, 3, 5, 6)) for _ in range(2)]
    return turns(builder, parts)


@pytest.mark.parametrize("write", [_of_two, _computed, _by_rows, _some_rows, _other_rows])
def test_why_it_declines(write: Callable[[GraphBuilder, int], int]) -> None:
    builder = GraphBuilder()
    result = write(builder, builder.input(*SHAPE))
    (reason,) = untouched(slices_into_gather, builder.graph(result)).declined
    assert reason.endswith("the parts are not slices of rows of one value")


def test_parts_that_others_read_joined() -> None:
    builder = GraphBuilder()
    source = builder.input(*SHAPE)
    result = turns(builder, [cut(builder, source, 1), cut(builder, source, 0)])
    joined = builder.nodes[-1].inputs[0]
    found = untouched(slices_into_gather, builder.graph(result, joined))
    assert found.declined == ("CONCATENATION 4: other nodes also read the result",)


def _rotated(model: Model, shape: Shape) -> list[TensorRef]:
    """Multiply by constants as rotary positions do."""
    *lead, channels = shape
    source = model.conv(model.input(*shape), (channels, 1, 1, channels))
    parts = []
    for begin in (1, 0):
        ends = ([0] * len(lead) + [begin], [*lead, channels], [1] * len(lead) + [2])
        operands = [source, *(model.integers(*each) for each in ends)]
        half = [*lead, channels // 2]
        part = model.writer.op("STRIDED_SLICE", operands, [half], options=NO_MASKS)
        part = model.op("NEG", part) if begin else part
        tall = [*half, 1]
        operands = [part, model.integers(*tall)]
        parts.append(model.writer.op("RESHAPE", operands, [tall], options={"new_shape": tall}))
    axis, pairs = len(lead) + 1, [*lead, channels // 2, 2]
    joined = model.writer.op("CONCATENATION", parts, [pairs], options={"axis": axis})
    operands = [joined, model.integers(*shape)]
    turned = model.writer.op("RESHAPE", operands, [shape], options={"new_shape": [*shape]})
    sines = model.constant(1, 1, *shape[2:])
    first = model.op("MUL", source, model.constant(1, 1, *shape[2:]))
    return [model.op("ADD", first, model.op("MUL", turned, sines))]


@pytest.mark.parametrize("channels", [8, 16, 12])
def test_keeps_the_numbers(channels: int) -> None:
    check_numbers(partial(_rotated, shape=(1, 2, 5, channels)), "slices_into_gather", 4)
