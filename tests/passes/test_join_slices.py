"""Adjacent slices that a CONCATENATION joins become one slice, or are removed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from litegpu.graph import Graph
from litegpu.ops.copy import CopyAttributes
from litegpu.passes.join_slices import join_slices
from litegpu.zoo.writer import TensorRef
from passes.graphs import RELU, GraphBuilder, applied, ops, untouched
from passes.models import Model, Write, check_numbers

SHAPE = (2, 3, 4, 8)


def _slice(builder: GraphBuilder, source: int, axis: int, begin: int, end: int) -> int:
    shape = list(builder.shape(source))
    shape[axis] = end - begin
    position = axis + 4 - len(shape)
    b, h, w, c = (begin if i == position else 0 for i in range(4))
    attributes = CopyAttributes((b, h, w, c))
    return builder.node("STRIDED_SLICE", [source], tuple(shape), attributes=attributes)


def _slices(builder: GraphBuilder, source: int, axis: int, *ends: int) -> list[int]:
    """Cut a value from its start at these ends."""
    begins = (0, *ends[:-1])
    pairs = zip(begins, ends, strict=True)
    return [_slice(builder, source, axis, begin, end) for begin, end in pairs]


def _read(builder: GraphBuilder, *values: int) -> Graph:
    return builder.graph(*(builder.elementwise(v, RELU) for v in values))


@pytest.mark.parametrize("axis", range(4))
def test_all_parts_in_order_vanish(axis: int) -> None:
    builder = GraphBuilder()
    source = builder.conv(builder.input(*SHAPE), 8)
    parts = _slices(builder, source, axis, 1, builder.shape(source)[axis])
    result = applied(join_slices, _read(builder, builder.concat(axis, *parts)))
    assert ops(result) == ["CONV_2D", "COPY"]
    assert result.graph.nodes[1].inputs == (source,)
    assert result.applied == ("STRIDED_SLICE 1, STRIDED_SLICE 2 joined before CONCATENATION 3",)


def test_values_of_low_rank() -> None:
    builder = GraphBuilder()
    source = builder.input(3, 8)
    parts = _slices(builder, source, 1, 3, 5)
    joined = builder.concat(3, *parts, shape=(3, 5))
    result = applied(join_slices, _read(builder, joined))
    assert ops(result) == ["STRIDED_SLICE", "COPY"]
    assert result.graph.nodes[0].attributes == CopyAttributes()
    assert result.graph.values[result.graph.nodes[0].outputs[0]].shape == (3, 5)


def test_an_output_is_copied() -> None:
    builder = GraphBuilder()
    parts = _slices(builder, builder.conv(builder.input(*SHAPE), 8), 3, 4, 8)
    result = applied(join_slices, builder.graph(builder.concat(3, *parts)))
    assert ops(result) == ["CONV_2D", "RESHAPE"]


def test_neighbours_among_other_parts_become_one() -> None:
    builder = GraphBuilder()
    source, other = builder.input(*SHAPE), builder.conv(builder.input(*SHAPE), 4)
    first, second, third = _slices(builder, source, 3, 2, 5, 7)
    joined = builder.concat(3, other, second, third, first)
    result = applied(join_slices, _read(builder, joined))
    assert ops(result) == ["CONV_2D", "STRIDED_SLICE", "STRIDED_SLICE", "CONCATENATION", "COPY"]
    _, remaining, cut, whole, _ = result.graph.nodes
    assert remaining.outputs == (first,)
    assert cut.attributes == CopyAttributes((0, 0, 0, 2))
    assert result.graph.values[cut.outputs[0]].shape == (2, 3, 4, 5)
    assert whole.inputs == (other, cut.outputs[0], first)


def test_a_whole_among_other_parts_is_read_itself() -> None:
    builder = GraphBuilder()
    source, other = builder.input(*SHAPE), builder.conv(builder.input(*SHAPE), 4)
    joined = builder.concat(3, *_slices(builder, source, 3, 4, 8), other)
    result = applied(join_slices, _read(builder, joined))
    assert ops(result) == ["CONV_2D", "CONCATENATION", "COPY"]
    assert result.graph.nodes[1].inputs == (source, other)


def test_slices_that_others_read_stay_for_them() -> None:
    builder = GraphBuilder()
    first, second = _slices(builder, builder.conv(builder.input(*SHAPE), 8), 3, 4, 8)
    result = applied(join_slices, _read(builder, builder.concat(3, first, second), first))
    assert ops(result) == ["CONV_2D", "STRIDED_SLICE", "COPY", "COPY"]


def test_a_concatenation_of_what_was_joined() -> None:
    builder = GraphBuilder()
    source = builder.conv(builder.input(*SHAPE), 8)
    once = builder.concat(3, *_slices(builder, source, 3, 4, 8))
    twice = builder.concat(3, once, builder.conv(once, 2))
    result = applied(join_slices, _read(builder, twice))
    assert ops(result) == ["CONV_2D", "CONV_2D", "CONCATENATION", "COPY"]
    assert result.graph.nodes[2].inputs[0] == source


def test_slices_of_what_was_joined() -> None:
    builder = GraphBuilder()
    source = builder.conv(builder.input(*SHAPE), 8)
    once = builder.concat(3, *_slices(builder, source, 3, 4, 8))
    twice = builder.concat(1, *_slices(builder, once, 1, 1, 3))
    assert ops(applied(join_slices, _read(builder, twice))) == ["CONV_2D", "COPY"]


def test_declines_where_others_read_some_of_the_parts() -> None:
    builder = GraphBuilder()
    source, other = builder.input(*SHAPE), builder.conv(builder.input(*SHAPE), 4)
    first, second = _slices(builder, source, 3, 4, 8)
    result = untouched(join_slices, _read(builder, builder.concat(3, first, second, other), second))
    assert result.declined == ("CONCATENATION 3: other nodes also read STRIDED_SLICE 2",)


def _exchanged(builder: GraphBuilder, source: int) -> Sequence[int]:
    return _slices(builder, source, 3, 4, 8)[::-1]


def _with_a_gap(builder: GraphBuilder, source: int) -> Sequence[int]:
    return _slice(builder, source, 3, 0, 3), _slice(builder, source, 3, 4, 8)


def _of_two(builder: GraphBuilder, source: int) -> Sequence[int]:
    return _slice(builder, source, 3, 0, 4), _slice(builder, builder.input(*SHAPE), 3, 4, 8)


def _along_another_axis(builder: GraphBuilder, source: int) -> Sequence[int]:
    return _slices(builder, source, 1, 1, 2)


def _with_epilogue(builder: GraphBuilder, source: int) -> Sequence[int]:
    parts = _slices(builder, source, 3, 4, 8)
    return parts[0], builder.elementwise(parts[1], RELU)


def _with_a_stride(builder: GraphBuilder, source: int) -> Sequence[int]:
    attributes = CopyAttributes((0, 0, 0, 0), (1, 1, 1, 2))
    return [
        builder.node("STRIDED_SLICE", [source], (2, 3, 4, 4), attributes=attributes)
        for _ in range(2)
    ]


@pytest.mark.parametrize(
    "write", [_exchanged, _with_a_gap, _of_two, _along_another_axis, _with_epilogue, _with_a_stride]
)
def test_other_parts_stay(write: Callable[[GraphBuilder, int], Sequence[int]]) -> None:
    builder = GraphBuilder()
    graph = _read(builder, builder.concat(3, *write(builder, builder.input(*SHAPE))))
    assert untouched(join_slices, graph).declined == ()


# Numbers


def _split(model: Model) -> list[TensorRef]:
    output = model.conv(model.input(2, 3, 4, 5), (6, 1, 1, 5))
    parts = model.writer.multi(
        "SPLIT", [model.integers(3), output], [(1,)] * 3, options={"num_splits": 3}
    )
    return [model.max_pool(model.concat(3, *parts)), model.concat(3, *parts[1:])]


def _unpacked(model: Model) -> list[TensorRef]:
    output = model.conv(model.input(2, 3, 4, 5), (6, 1, 1, 5))
    parts = model.writer.multi("UNPACK", [output], [(1,)] * 3, options={"num": 3, "axis": 1})
    return [model.max_pool(model.op("PACK", *parts, axis=1, values_count=3))]


MODELS: list[tuple[Write, int]] = [(_split, 3), (_unpacked, 3)]


@pytest.mark.parametrize(("write", "saved"), MODELS)
def test_keeps_the_numbers(write: Write, saved: int) -> None:
    check_numbers(write, "join_slices", saved)
