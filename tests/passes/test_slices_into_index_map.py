"""Slices of one value that are concatenated in another order become an index map."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import pytest

from litegpu.graph import EpilogueOp
from litegpu.ops.index_map import MixedRadix, Source
from litegpu.passes.slices_into_index_map import slices_into_index_map
from litegpu.zoo.writer import TensorRef
from passes.graphs import RELU, GraphBuilder, Shape, applied, functions, ops, untouched
from passes.models import Model, check_numbers

SHAPE = (2, 3, 4, 8)
NEGATED = EpilogueOp("NEG")


def _cut(builder: GraphBuilder, source: int, axis: int, begin: int, end: int, step: int = 1) -> int:
    shape = builder.shape(source)
    stops, steps, starts = [*shape], [1] * 4, [0] * 4
    starts[axis], stops[axis], steps[axis] = begin, end, step
    sizes = [*shape]
    sizes[axis] = -(-(end - begin) // step)
    return builder.normalized("STRIDED_SLICE", source, tuple(sizes), starts, stops, steps)


def test_exchanged_halves_are_digits_and_factors() -> None:
    builder = GraphBuilder()
    source = builder.input(*SHAPE)
    low, high = (_cut(builder, source, 3, begin, begin + 4) for begin in (0, 4))
    joined = builder.concat(3, builder.elementwise(high, NEGATED), low)
    result = applied(slices_into_index_map, builder.graph(joined))
    (node,) = result.graph.nodes
    assert (node.op, node.inputs, functions(node)) == ("INDEX_MAP", (source,), ["MUL"])
    assert node.merged == (2, 1, 0)
    assert node.attributes.digits[3] == MixedRadix((2, 4))
    assert node.attributes.sources[3] == Source(((3, -4), (4, 1)), 4)
    assert node.attributes.whole_blocks
    assert node.attributes.whole_block_start is None
    (factors,) = node.epilogue[0].operands
    data = result.graph.values[factors].data
    assert data is not None
    assert np.array_equal(data, [[[[-1] * 4 + [1] * 4]]])
    assert "COPY 2, STRIDED_SLICE 1, STRIDED_SLICE 0 into CONCATENATION 3" in result.applied


@pytest.mark.parametrize("axis", range(3))
def test_other_axes(axis: int) -> None:
    builder = GraphBuilder()
    source = builder.input(5, 5, 5, 8)
    parts = [_cut(builder, source, axis, *each) for each in ((3, 5), (0, 3))]
    result = applied(slices_into_index_map, builder.graph(builder.concat(axis, *parts)))
    (node,) = result.graph.nodes
    assert node.epilogue == ()
    assert node.attributes.sources[axis].table == (3, 4, 0, 1, 2)


def test_slices_that_others_read_remain() -> None:
    builder = GraphBuilder()
    source = builder.input(*SHAPE)
    low, high = (_cut(builder, source, 3, begin, begin + 4) for begin in (0, 4))
    graph = builder.graph(builder.concat(3, high, low), builder.elementwise(low, RELU))
    assert ops(applied(slices_into_index_map, graph)) == ["STRIDED_SLICE", "INDEX_MAP", "COPY"]


def _adjacent(builder: GraphBuilder, source: int) -> int:
    return builder.concat(3, *(_cut(builder, source, 3, i, i + 4) for i in (0, 4)))


def _few_channels(builder: GraphBuilder, source: int) -> int:
    return builder.concat(3, *(_cut(builder, source, 3, i, i + 2) for i in (2, 0)))


def _of_two(builder: GraphBuilder, source: int) -> int:
    parts = [_cut(builder, each, 3, 0, 4) for each in (source, builder.input(*SHAPE))]
    return builder.concat(3, *parts)


def _no_slice(builder: GraphBuilder, source: int) -> int:
    return builder.concat(3, _cut(builder, source, 3, 0, 4), source)


def _shared(builder: GraphBuilder, source: int) -> int:
    negated = builder.elementwise(_cut(builder, source, 3, 4, 8), NEGATED)
    both = builder.concat(3, negated, _cut(builder, source, 3, 0, 4))
    return builder.concat(3, both, builder.elementwise(negated, RELU), shape=(2, 3, 4, 12))


def _other_axes(builder: GraphBuilder, source: int) -> int:
    rows = _cut(builder, source, 1, 0, 2)
    parts = [
        builder.normalized(
            *("STRIDED_SLICE", source, (2, 2, 4, 4)),
            *([0, row, 0, 0], [2, row + 2, 4, 4], [1, 1, 1, 1]),
        )
        for row in (1, 0)
    ]
    return builder.concat(3, *parts, _cut(builder, rows, 3, 0, 4))


OTHERS: list[tuple[Callable[[GraphBuilder, int], int], str]] = [
    (_adjacent, "the pass join_slices joins the parts"),
    (_few_channels, "the pass join_channels joins so few channels"),
    (_of_two, "the parts come from several values"),
    (_no_slice, "a part is not a slice"),
    (_shared, "other nodes also read COPY 1"),
    (_other_axes, "cuts other axes"),
]


@pytest.mark.parametrize(("write", "reason"), OTHERS)
def test_says_why_not(write: Callable[[GraphBuilder, int], int], reason: str) -> None:
    builder = GraphBuilder()
    graph = builder.graph(write(builder, builder.input(*SHAPE)))
    assert reason in untouched(slices_into_index_map, graph).declined[0]


# Numbers

Layout = tuple[Shape, int, Sequence[tuple[int, int, int]]]
"""A shape, an axis, and parts along it: begin, size, sign."""


def _joined(model: Model, layout: Layout) -> list[TensorRef]:
    shape, axis, parts = layout
    source = model.conv(model.input(*shape), (shape[3], 1, 1, shape[3]))
    found = []
    for begin, size, sign in parts:
        starts, sizes = [0] * 4, [*shape]
        starts[axis], sizes[axis] = begin, size
        operands = [source, model.integers(*starts), model.integers(*sizes)]
        part = model.writer.op("SLICE", operands, [sizes])
        found.append(part if sign > 0 else model.op("NEG", part))
    return [model.max_pool(model.concat(axis, *found))]


LAYOUTS: Mapping[str, Layout] = {
    "whole blocks": ((2, 3, 4, 24), 3, ((12, 12, -1), (0, 12, 1))),
    "padded blocks": ((1, 3, 4, 12), 3, ((8, 4, -1), (4, 4, 1), (0, 4, 1))),
    "split blocks": ((1, 3, 4, 10), 3, ((5, 5, -1), (0, 5, 1))),
    "a table": ((2, 3, 4, 11), 3, ((7, 4, 1), (0, 7, -1))),
    "rows": ((1, 6, 4, 5), 1, ((3, 3, -1), (0, 3, 1))),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_keeps_the_numbers(name: str) -> None:
    layout = LAYOUTS[name]
    # Where a part begins inside a channel block, its negative was a kernel of its own.
    saved = len(layout[2]) - 1 + (name == "split blocks")
    check_numbers(partial(_joined, layout=layout), "slices_into_index_map", saved)
