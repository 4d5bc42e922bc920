"""Moves go below element-wise steps where another move behind these undoes them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from litegpu.graph import SELF, Graph, Stage
from litegpu.passes.merge_moves import merge_moves
from litegpu.passes.sink_moves import sink_moves
from litegpu.zoo.writer import TensorRef
from passes.graphs import RELU, Maker, applied, functions, ops, untouched
from passes.models import Model, Write, check_numbers

SHAPE = (2, 3, 4, 5)
FIRST, LAST = (0, 3, 1, 2), (0, 2, 3, 1)
"""The axes of an image for channels first, and for channels last again."""


def _first(maker: Maker) -> int:
    return maker.transpose(maker.conv(maker.input(*SHAPE), 5), *FIRST)


def _last(maker: Maker, value: int) -> Graph:
    return maker.graph(maker.conv(maker.transpose(value, *LAST), 2))


def _finished(graph: Graph) -> Graph:
    """Return what is left when the pairs of moves are gone as well."""
    return merge_moves(applied(sink_moves, graph).graph).graph


def test_steps_by_single_numbers() -> None:
    maker = Maker()
    steps = Stage("MUL", (maker.number(2.0),)), RELU, Stage("MUL", (SELF,))
    graph = _last(maker, maker.steps(_first(maker), *steps))
    result = applied(sink_moves, graph)
    assert ops(result) == ["CONV_2D", "COPY", "MOVE", "MOVE", "CONV_2D"]
    made, step, move, *_ = result.graph.nodes
    assert step.inputs == made.outputs
    assert functions(step) == ["MUL", "RELU", "MUL"]
    assert result.graph.values[step.outputs[0]].shape == SHAPE
    assert move.inputs == step.outputs
    assert result.applied == ("MOVE 1 below COPY 2",)
    assert [node.op for node in _finished(graph).nodes] == ["CONV_2D", "COPY", "CONV_2D"]


def test_through_a_chain() -> None:
    maker = Maker()
    value = maker.steps(_first(maker), RELU)
    value = maker.steps(value, Stage("NEG"))
    left = _finished(_last(maker, maker.steps(value, Stage("ABS"))))
    assert [node.op for node in left.nodes] == ["CONV_2D", *["COPY"] * 3, "CONV_2D"]
    assert [functions(node) for node in left.nodes[1:4]] == [["RELU"], ["NEG"], ["ABS"]]


@pytest.mark.parametrize("shape", [(5, 1, 1), (1, 5, 1, 1), (2, 5, 3, 4), (3, 1), (4,)])
def test_constants_are_reordered(shape: tuple[int, ...]) -> None:
    maker = Maker()
    constant = maker.constant(*shape)
    step = maker.steps(_first(maker), Stage("MUL", (constant,)))
    result = applied(sink_moves, _last(maker, step))
    (operand,) = result.graph.nodes[1].stages[0].operands
    data = maker.values[constant].data
    assert data is not None
    expected = np.broadcast_to(data, (2, 5, 3, 4)).transpose(0, 2, 3, 1)
    moved = result.graph.values[operand]
    np.testing.assert_array_equal(np.broadcast_to(np.asarray(moved.data), SHAPE), expected)
    assert moved.data is not None and moved.shape == moved.data.shape


def test_a_sum_of_two_that_are_moved_alike() -> None:
    maker = Maker()
    first, second = _first(maker), _first(maker)
    total = maker.steps(first, Stage("ADD", (second,)), RELU)
    graph = _last(maker, total)
    result = applied(sink_moves, graph)
    assert ops(result) == ["CONV_2D", "CONV_2D", "COPY", "MOVE", "MOVE", "CONV_2D"]
    one, two, step, *_ = result.graph.nodes
    assert step.inputs == one.outputs
    assert step.stages[0].operands == two.outputs


def test_a_residual_network_whose_channels_come_first_keeps_no_move() -> None:
    maker = Maker()
    value = maker.steps(_first(maker), RELU)
    for _ in range(3):
        inner = maker.conv(maker.transpose(value, *LAST), 5, kernel=3)
        inner = maker.steps(
            maker.transpose(inner, *FIRST), Stage("MUL", (maker.constant(5, 1, 1),))
        )
        value = maker.steps(value, Stage("ADD", (inner,)), RELU)
    left = _finished(_last(maker, value))
    assert "MOVE" not in [node.op for node in left.nodes]


def test_a_move_that_others_read_stays_for_them() -> None:
    maker = Maker()
    first = _first(maker)
    graph = _last(maker, maker.steps(first, RELU))
    pooled = maker.node("MAX_POOL_2D", [first], (2, 5, 3, 4))
    result = applied(sink_moves, maker.graph(*graph.outputs, pooled))
    assert ops(result) == ["CONV_2D", "MOVE", "COPY", "MOVE", "MOVE", "CONV_2D", "MAX_POOL_2D"]


# Declined


def _other_value(maker: Maker) -> Graph:
    other = maker.input(2, 5, 3, 4)
    return _last(maker, maker.steps(_first(maker), Stage("ADD", (other,))))


def _moved_otherwise(maker: Maker) -> Graph:
    other = maker.transpose(maker.input(2, 4, 5, 3), 0, 2, 3, 1)
    return _last(maker, maker.steps(_first(maker), Stage("ADD", (other,))))


def _square_moved_otherwise(maker: Maker) -> Graph:
    """Both moves pass elements alike, but of inputs of other shapes."""
    first = maker.transpose(maker.input(1, 4, 6), 0, 2, 1)
    second = maker.transpose(maker.input(4, 6), 1, 0)
    other = maker.steps(first, Stage("ADD", (second,)))
    return maker.graph(maker.transpose(other, 0, 2, 1))


def _deep(maker: Maker) -> Graph:
    """Pixels of blocks exchanged with channels: its constants have no axes to exchange."""
    made = maker.conv(maker.input(1, 4, 4, 8), 8)
    deep = maker.normalized("SPACE_TO_DEPTH", made, (1, 2, 2, 32), block_size=2)
    scaled = maker.steps(deep, Stage("MUL", (maker.constant(32),)))
    return maker.graph(maker.normalized("DEPTH_TO_SPACE", scaled, (1, 4, 4, 8), block_size=2))


@pytest.mark.parametrize(
    ("write", "text"),
    [
        (_other_value, "MOVE 1 below COPY 2"),
        (_moved_otherwise, "MOVE 2 below COPY 3"),
        (_square_moved_otherwise, "MOVE 0 below COPY 2"),
        (_deep, "MOVE 1 below COPY 2"),
    ],
)
def test_operands_that_are_not_moved_alike_are_declined(
    write: Callable[[Maker], Graph], text: str
) -> None:
    result = untouched(sink_moves, write(Maker()))
    assert result.declined == (f"{text}: an operand is moved otherwise",)


def _nothing_behind(maker: Maker) -> Graph:
    return maker.graph(maker.steps(_first(maker), RELU))


def _another_move_behind(maker: Maker) -> Graph:
    return maker.graph(maker.transpose(maker.steps(_first(maker), RELU), 0, 1, 3, 2))


def _broadcast(maker: Maker) -> Graph:
    first = maker.transpose(maker.input(2, 3, 4, 1), *FIRST)
    wide = maker.steps(first, Stage("MUL", (maker.constant(5, 1, 1),)), shape=(2, 5, 3, 4))
    return _last(maker, wide)


def _a_flip(maker: Maker) -> Graph:
    made = maker.conv(maker.input(*SHAPE), 5)
    flipped = maker.normalized(
        "MIRROR_PAD", made, (2, 3, 4, 7), [(0, 0)] * 3 + [(1, 1)], mode="reflect"
    )
    return maker.graph(maker.conv(maker.steps(flipped, RELU), 2))


@pytest.mark.parametrize("write", [_nothing_behind, _another_move_behind, _broadcast, _a_flip])
def test_moves_that_nothing_undoes_stay(write: Callable[[Maker], Graph]) -> None:
    assert untouched(sink_moves, write(Maker())).declined == ()


# Numbers


def _channels_first(model: Model) -> list[TensorRef]:
    value = model.input(2, 4, 3, 5)
    for _ in range(2):
        made = model.op("TRANSPOSE", model.conv(value, (5, 3, 3, 5)), model.integers(*FIRST))
        made = model.op(
            "PRELU", model.op("ADD", made, model.constant(5, 1, 1)), model.constant(5, 1, 1)
        )
        value = model.op("TRANSPOSE", made, model.integers(*LAST))
    return [model.op("SIGN", value)]


def _residual(model: Model) -> list[TensorRef]:
    source = model.op("TRANSPOSE", model.max_pool(model.input(1, 4, 3, 6)), model.integers(*FIRST))
    inner = model.conv(model.op("TRANSPOSE", source, model.integers(*LAST)), (6, 1, 1, 6))
    total = model.op("ADD", source, model.op("TRANSPOSE", inner, model.integers(*FIRST)))
    return [model.max_pool(model.op("TRANSPOSE", total, model.integers(*LAST)))]


MODELS: list[tuple[Write, int]] = [(_channels_first, 4), (_residual, 3)]


@pytest.mark.parametrize(("write", "saved"), MODELS)
def test_keeps_the_numbers(write: Write, saved: int) -> None:
    check_numbers(write, "sink_moves", saved)
