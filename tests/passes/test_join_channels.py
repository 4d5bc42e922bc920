"""Channels that are gathered from one value are concatenated where they are read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from litegpu.graph import EpilogueOp, Graph
from litegpu.ops.channel_maps import CHANNEL_MAPS
from litegpu.ops.common.lookups import Lookup
from litegpu.passes.join_channels import join_channels
from litegpu.zoo.writer import TensorRef
from passes.graphs import BY_POSITION, RELU, GraphBuilder, Shape, applied, ops, untouched
from passes.models import Model, Write, check_numbers

SHAPE = (2, 6, 4, 1)


def _cut(
    builder: GraphBuilder, source: int, begin: Shape, size: Shape, step: Shape = (1, 1, 1, 1)
) -> int:
    end = [b + n * s for b, n, s in zip(begin, size, step, strict=True)]
    return builder.normalized("STRIDED_SLICE", source, size, begin, end, step)


def _enlarged(builder: GraphBuilder, source: int, begin: Shape) -> int:
    """Look a plane of half the size up, as merge_index_maps leaves it."""
    step = {"align_corners": False, "half_pixel_centers": False}
    half = _cut(builder, source, begin, (2, 2, 2, 1), (1, 1, 2, 1))
    large = builder.normalized("RESIZE_NEAREST_NEIGHBOR", half, (2, 4, 4, 1), (4, 4), **step)
    node = builder.nodes.pop()
    builder.nodes.pop()
    rows, columns = (4, 4, 5, 5), (begin[2],) * 2 + (begin[2] + 2,) * 2
    sources = list(node.attributes.sources)
    sources[1], sources[2] = replace(sources[1], table=rows), replace(sources[2], table=columns)
    attributes = replace(node.attributes, sources=tuple(sources))
    builder.nodes.append(replace(node, inputs=(source,), attributes=attributes))
    del builder.values[half]
    return large


def _planes(builder: GraphBuilder, source: int) -> list[int]:
    return [
        _cut(builder, source, (0, 0, 0, 0), (2, 4, 4, 1)),
        _enlarged(builder, source, (0, 4, 0, 0)),
        _enlarged(builder, source, (0, 4, 1, 0)),
    ]


def test_planes_become_one_node_that_reads_their_source() -> None:
    builder = GraphBuilder()
    source = builder.input(*SHAPE)
    graph = builder.graph(builder.concat(3, *_planes(builder, source)))
    result = applied(join_channels, graph)
    (node,) = result.graph.nodes
    assert (node.op, node.inputs) == (CHANNEL_MAPS, (source,))
    assert [each.texts() for each in node.attributes.maps] == [
        ["n", "y", "x", "0"],
        ["n", "(y) / 2 + (4)", "((x) / 2) * (2)", "0"],
        ["n", "(y) / 2 + (4)", "((x) / 2) * (2) + (1)", "0"],
    ]


def test_what_is_done_to_each_part_is_done_to_all() -> None:
    builder = GraphBuilder()
    planes = _planes(builder, builder.input(*SHAPE))
    graph = builder.graph(builder.concat(3, *(builder.elementwise(v, RELU) for v in planes)))
    (node,) = applied(join_channels, graph).graph.nodes
    assert node.epilogue == (RELU,)


def test_channels_in_another_order() -> None:
    builder = GraphBuilder()
    source = builder.input(1, 2, 3, 5)
    last = _cut(builder, source, (0, 0, 0, 3), (1, 2, 3, 2))
    graph = builder.graph(builder.concat(3, last, _cut(builder, source, (0,) * 4, (1, 2, 3, 2))))
    (node,) = applied(join_channels, graph).graph.nodes
    assert [each.channel for each in node.attributes.maps] == [3, 4, 0, 1]


@pytest.mark.parametrize(
    ("indices", "text"),
    [
        ((0, 1, 2, 3), "y"),
        ((5, 5, 5), "5"),
        ((7,), "7"),
        ((6, 4, 2), "(y) * (-2) + (6)"),
        ((1, 1, 1, 4, 4, 4), "((y) / 3) * (3) + (1)"),
        ((0, 0, 1), "(y) / 2"),
        ((0, 1, 1, 2), None),
        ((0, 1, 3), None),
    ],
)
def test_texts_of_lookups(indices: tuple[int, ...], text: str | None) -> None:
    found = Lookup(1, indices).text("y")
    assert found == text
    if found is not None:
        places = [eval(found.replace("/", "//"), {"y": y}) for y in range(len(indices))]
        assert places == [*indices]


def _input(builder: GraphBuilder) -> Graph:
    source = builder.input(2, 4, 4, 1)
    return builder.graph(builder.concat(3, source, _cut(builder, source, (0,) * 4, (2, 4, 4, 1))))


def _several(builder: GraphBuilder) -> Graph:
    cuts = [_cut(builder, builder.input(*SHAPE), (0, 0, 0, 0), (2, 4, 4, 1)) for _ in range(2)]
    return builder.graph(builder.concat(3, *cuts))


def _epilogues(builder: GraphBuilder, *epilogues: EpilogueOp) -> Graph:
    source = builder.input(*SHAPE)
    cuts = [_cut(builder, source, (0, i, 0, 0), (2, 4, 4, 1)) for i in range(len(epilogues))]
    parts = [builder.elementwise(v, e) for v, e in zip(cuts, epilogues, strict=True)]
    return builder.graph(builder.concat(3, *parts))


def _two_readers(builder: GraphBuilder) -> Graph:
    planes = _planes(builder, builder.input(*SHAPE))
    return builder.graph(builder.concat(3, *planes), builder.elementwise(planes[0], RELU))


def _uneven(builder: GraphBuilder) -> Graph:
    source = builder.input(*SHAPE)
    gathered = builder.normalized(
        "GATHER", source, (2, 4, 4, 1), (0, 1, 1, 5), axis=1, batch_dims=0
    )
    return builder.graph(builder.concat(3, gathered, _cut(builder, source, (0,) * 4, (2, 4, 4, 1))))


def _operand(builder: GraphBuilder) -> Graph:
    add = EpilogueOp("ADD", (builder.constant(1, 1, 1, 1),))
    return _epilogues(builder, add, add)


_PLACE = "is not only a slice or an upsampling"
DECLINED: list[tuple[Callable[[GraphBuilder], Graph], str]] = [
    (_input, "a part is an input of the partition"),
    (_several, "the parts come from several values, or are computed in different ways"),
    (lambda b: _epilogues(b, RELU, EpilogueOp("NEG")), "in different ways"),
    (lambda b: _epilogues(b, BY_POSITION, BY_POSITION), _PLACE),
    (_operand, _PLACE),
    (_two_readers, "other nodes also read STRIDED_SLICE 0"),
    (_uneven, f"INDEX_MAP 0 {_PLACE}"),
]


@pytest.mark.parametrize(("make", "reason"), DECLINED)
def test_declines(make: Callable[[GraphBuilder], Graph], reason: str) -> None:
    (found,) = untouched(join_channels, make(GraphBuilder())).declined
    assert found.startswith("CONCATENATION") and found.endswith(reason)


@pytest.mark.parametrize(("axis", "channels"), [(1, 1), (3, 3)])
def test_large_values_and_other_axes_stay(axis: int, channels: int) -> None:
    builder = GraphBuilder()
    source = builder.input(1, 4, 4, 6)
    parts = [_cut(builder, source, (0, 0, 0, i), (1, 4, 4, channels)) for i in (0, 1)]
    graph = builder.graph(builder.concat(axis, *parts))
    result = untouched(join_channels, graph)
    assert result.declined == () and ops(result)[-1] == "CONCATENATION"


def _colors(model: Model) -> list[TensorRef]:
    """Write three planes of one value, two of them enlarged."""
    source = model.op("NEG", model.input(*SHAPE))
    parts = [_slice(model, source, (0, 0, 0, 0), (2, 4, 4, 1), (1, 1, 1, 1))]
    for first in (0, 1):
        half = _slice(model, source, (0, 4, first, 0), SHAPE, (1, 1, 2, 1))
        parts.append(model.op("RESIZE_NEAREST_NEIGHBOR", half, model.integers(4, 4)))
    return [model.op("ABS", model.concat(3, *parts))]


def _slice(model: Model, source: TensorRef, begin: Shape, end: Shape, step: Shape) -> TensorRef:
    bounds = [np.asarray(each, np.int32) for each in (begin, end, step)]
    return model.op("STRIDED_SLICE", source, *(model.writer.constant(each) for each in bounds))


MODELS: list[tuple[Write, int]] = [(_colors, 2)]


@pytest.mark.parametrize(("write", "saved"), MODELS)
def test_keeps_the_numbers(write: Write, saved: int) -> None:
    check_numbers(write, "join_channels", saved)
