"""Permutations move after elementwise ops if a later permutation reverses them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from litegpu.graph import SELF, EpilogueOp, Graph
from litegpu.passes.merge_permutations import merge_permutations
from litegpu.passes.sink_permutations import sink_permutations
from litegpu.zoo.writer import TensorRef
from passes.graphs import BY_POSITION, RELU, GraphBuilder, applied, functions, ops, untouched
from passes.models import Model, Write, check_numbers

SHAPE = (2, 3, 4, 5)
FIRST, LAST = (0, 3, 1, 2), (0, 2, 3, 1)
"""The axes of an image for channels first, and for channels last again."""


def _first(builder: GraphBuilder) -> int:
    return builder.transpose(builder.conv(builder.input(*SHAPE), 5), *FIRST)


def _last(builder: GraphBuilder, value: int) -> Graph:
    return builder.graph(builder.conv(builder.transpose(value, *LAST), 2))


def _finished(graph: Graph) -> Graph:
    """Return what is left when the pairs of moves are gone as well."""
    return merge_permutations(applied(sink_permutations, graph).graph).graph


def test_epilogue_ops_by_single_numbers() -> None:
    builder = GraphBuilder()
    epilogue_ops = EpilogueOp("MUL", (builder.number(2.0),)), RELU, EpilogueOp("MUL", (SELF,))
    graph = _last(builder, builder.elementwise(_first(builder), *epilogue_ops))
    result = applied(sink_permutations, graph)
    assert ops(result) == ["CONV_2D", "COPY", "INDEX_MAP", "INDEX_MAP", "CONV_2D"]
    output, epilogue_op, move, *_ = result.graph.nodes
    assert epilogue_op.inputs == output.outputs
    assert functions(epilogue_op) == ["MUL", "RELU", "MUL"]
    assert result.graph.values[epilogue_op.outputs[0]].shape == SHAPE
    assert move.inputs == epilogue_op.outputs
    assert result.applied == ("INDEX_MAP 1 below COPY 2",)
    assert [node.op for node in _finished(graph).nodes] == ["CONV_2D", "COPY", "CONV_2D"]


def test_through_a_chain() -> None:
    builder = GraphBuilder()
    value = builder.elementwise(_first(builder), RELU)
    value = builder.elementwise(value, EpilogueOp("NEG"))
    left = _finished(_last(builder, builder.elementwise(value, EpilogueOp("ABS"))))
    assert [node.op for node in left.nodes] == ["CONV_2D", *["COPY"] * 3, "CONV_2D"]
    assert [functions(node) for node in left.nodes[1:4]] == [["RELU"], ["NEG"], ["ABS"]]


@pytest.mark.parametrize("shape", [(5, 1, 1), (1, 5, 1, 1), (2, 5, 3, 4), (3, 1), (4,)])
def test_constants_are_reordered(shape: tuple[int, ...]) -> None:
    builder = GraphBuilder()
    constant = builder.constant(*shape)
    epilogue_op = builder.elementwise(_first(builder), EpilogueOp("MUL", (constant,)))
    result = applied(sink_permutations, _last(builder, epilogue_op))
    (operand,) = result.graph.nodes[1].epilogue[0].operands
    data = builder.values[constant].data
    assert data is not None
    expected = np.broadcast_to(data, (2, 5, 3, 4)).transpose(0, 2, 3, 1)
    moved = result.graph.values[operand]
    np.testing.assert_array_equal(np.broadcast_to(np.asarray(moved.data), SHAPE), expected)
    assert moved.data is not None and moved.shape == moved.data.shape


def test_tables_stay_what_they_are() -> None:
    builder = GraphBuilder()
    table = builder.constant(256)
    epilogue_op = builder.elementwise(_first(builder), EpilogueOp("LOOKUP_FLOAT32", (table,)))
    result = applied(sink_permutations, _last(builder, epilogue_op))
    assert result.graph.nodes[1].epilogue[0].operands == (table,)


def test_epilogue_ops_by_place_keep_their_places() -> None:
    builder = GraphBuilder()
    graph = _last(builder, builder.elementwise(_first(builder), BY_POSITION))
    (line,) = untouched(sink_permutations, graph).declined
    assert line == "INDEX_MAP 1 below COPY 2: results depend on the positions of elements"


def test_a_sum_of_two_that_are_moved_alike() -> None:
    builder = GraphBuilder()
    first, second = _first(builder), _first(builder)
    total = builder.elementwise(first, EpilogueOp("ADD", (second,)), RELU)
    graph = _last(builder, total)
    result = applied(sink_permutations, graph)
    assert ops(result) == ["CONV_2D", "CONV_2D", "COPY", "INDEX_MAP", "INDEX_MAP", "CONV_2D"]
    one, two, epilogue_op, *_ = result.graph.nodes
    assert epilogue_op.inputs == one.outputs
    assert epilogue_op.epilogue[0].operands == two.outputs


def test_a_residual_network_whose_channels_come_first_keeps_no_move() -> None:
    builder = GraphBuilder()
    value = builder.elementwise(_first(builder), RELU)
    for _ in range(3):
        inner = builder.conv(builder.transpose(value, *LAST), 5, kernel=3)
        inner = builder.elementwise(
            builder.transpose(inner, *FIRST), EpilogueOp("MUL", (builder.constant(5, 1, 1),))
        )
        value = builder.elementwise(value, EpilogueOp("ADD", (inner,)), RELU)
    left = _finished(_last(builder, value))
    assert "INDEX_MAP" not in [node.op for node in left.nodes]


def test_a_move_that_others_read_stays_for_them() -> None:
    builder = GraphBuilder()
    first = _first(builder)
    graph = _last(builder, builder.elementwise(first, RELU))
    pooled = builder.node("MAX_POOL_2D", [first], (2, 5, 3, 4))
    result = applied(sink_permutations, builder.graph(*graph.outputs, pooled))
    assert ops(result) == [
        "CONV_2D",
        "INDEX_MAP",
        "COPY",
        "INDEX_MAP",
        "INDEX_MAP",
        "CONV_2D",
        "MAX_POOL_2D",
    ]


# Declined


def _other_value(builder: GraphBuilder) -> Graph:
    other = builder.input(2, 5, 3, 4)
    return _last(builder, builder.elementwise(_first(builder), EpilogueOp("ADD", (other,))))


def _moved_otherwise(builder: GraphBuilder) -> Graph:
    other = builder.transpose(builder.input(2, 4, 5, 3), 0, 2, 3, 1)
    return _last(builder, builder.elementwise(_first(builder), EpilogueOp("ADD", (other,))))


def _square_moved_otherwise(builder: GraphBuilder) -> Graph:
    """Both moves pass elements alike, but of inputs of other shapes."""
    first = builder.transpose(builder.input(1, 4, 6), 0, 2, 1)
    second = builder.transpose(builder.input(4, 6), 1, 0)
    other = builder.elementwise(first, EpilogueOp("ADD", (second,)))
    return builder.graph(builder.transpose(other, 0, 2, 1))


def _deep(builder: GraphBuilder) -> Graph:
    """Pixels of blocks exchanged with channels: its constants have no axes to exchange."""
    output = builder.conv(builder.input(1, 4, 4, 8), 8)
    deep = builder.normalized("SPACE_TO_DEPTH", output, (1, 2, 2, 32), block_size=2)
    scaled = builder.elementwise(deep, EpilogueOp("MUL", (builder.constant(32),)))
    return builder.graph(builder.normalized("DEPTH_TO_SPACE", scaled, (1, 4, 4, 8), block_size=2))


@pytest.mark.parametrize(
    ("write", "text"),
    [
        (_other_value, "INDEX_MAP 1 below COPY 2"),
        (_moved_otherwise, "INDEX_MAP 2 below COPY 3"),
        (_square_moved_otherwise, "INDEX_MAP 0 below COPY 2"),
        (_deep, "INDEX_MAP 1 below COPY 2"),
    ],
)
def test_operands_that_are_not_moved_alike_are_declined(
    write: Callable[[GraphBuilder], Graph], text: str
) -> None:
    result = untouched(sink_permutations, write(GraphBuilder()))
    assert result.declined == (f"{text}: an operand has another order",)


def _nothing_behind(builder: GraphBuilder) -> Graph:
    return builder.graph(builder.elementwise(_first(builder), RELU))


def _another_move_behind(builder: GraphBuilder) -> Graph:
    return builder.graph(builder.transpose(builder.elementwise(_first(builder), RELU), 0, 1, 3, 2))


def _broadcast(builder: GraphBuilder) -> Graph:
    first = builder.transpose(builder.input(2, 3, 4, 1), *FIRST)
    wide = builder.elementwise(
        first, EpilogueOp("MUL", (builder.constant(5, 1, 1),)), shape=(2, 5, 3, 4)
    )
    return _last(builder, wide)


def _a_flip(builder: GraphBuilder) -> Graph:
    output = builder.conv(builder.input(*SHAPE), 5)
    flipped = builder.normalized(
        "MIRROR_PAD", output, (2, 3, 4, 7), [(0, 0)] * 3 + [(1, 1)], mode="reflect"
    )
    return builder.graph(builder.conv(builder.elementwise(flipped, RELU), 2))


@pytest.mark.parametrize("write", [_nothing_behind, _another_move_behind, _broadcast, _a_flip])
def test_index_maps_that_nothing_undoes_stay(write: Callable[[GraphBuilder], Graph]) -> None:
    assert untouched(sink_permutations, write(GraphBuilder())).declined == ()


# Numbers


def _channels_first(model: Model) -> list[TensorRef]:
    value = model.input(2, 4, 3, 5)
    for _ in range(2):
        output = model.op("TRANSPOSE", model.conv(value, (5, 3, 3, 5)), model.integers(*FIRST))
        output = model.op(
            "PRELU", model.op("ADD", output, model.constant(5, 1, 1)), model.constant(5, 1, 1)
        )
        value = model.op("TRANSPOSE", output, model.integers(*LAST))
    return [model.op("SIGN", value)]


def _residual(model: Model) -> list[TensorRef]:
    source = model.op("TRANSPOSE", model.max_pool(model.input(1, 4, 3, 6)), model.integers(*FIRST))
    inner = model.conv(model.op("TRANSPOSE", source, model.integers(*LAST)), (6, 1, 1, 6))
    total = model.op("ADD", source, model.op("TRANSPOSE", inner, model.integers(*FIRST)))
    return [model.max_pool(model.op("TRANSPOSE", total, model.integers(*LAST)))]


MODELS: list[tuple[Write, int]] = [(_channels_first, 4), (_residual, 3)]


@pytest.mark.parametrize(("write", "saved"), MODELS)
def test_keeps_the_numbers(write: Write, saved: int) -> None:
    check_numbers(write, "sink_permutations", saved)
