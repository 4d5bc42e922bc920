"""Elementwise ops broadcast an operand themselves, without a kernel that repeats it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from litegpu.graph import EpilogueOp, Graph
from litegpu.passes.repeats_into_operands import repeats_into_operands
from litegpu.zoo.writer import TensorRef
from passes.graphs import RELU, GraphBuilder, applied, ops, untouched
from passes.models import Model, check_numbers

SHAPE = (1, 2, 4, 8)


def _masked(builder: GraphBuilder, mask: int, *, extend: bool = False) -> Graph:
    add = EpilogueOp("ADD", (mask,), extend=extend)
    return builder.graph(builder.node("COPY", [builder.input(*SHAPE)], SHAPE, (add, RELU)))


@pytest.mark.parametrize("axis", [1, 2, 3])
def test_one_value_joined_several_times_is_read_once(axis: int) -> None:
    builder = GraphBuilder()
    shape = tuple(1 if i == axis else size for i, size in enumerate(SHAPE))
    mask = builder.input(*shape)
    graph = _masked(builder, builder.concat(axis, *[mask] * SHAPE[axis]))
    found = applied(repeats_into_operands, graph)
    (node,) = found.graph.nodes
    assert node.epilogue == (EpilogueOp("ADD", (mask,)), RELU)
    assert found.applied == ("CONCATENATION 0 into COPY 1",)


@pytest.mark.parametrize("shape", [(1, 1, 1, 8), (1, 2, 1, 1), (1, 1, 4, 8)])
def test_broadcast_values_are_read_before_their_repetition(shape: tuple[int, ...]) -> None:
    builder = GraphBuilder()
    mask = builder.input(*shape)
    graph = _masked(builder, builder.normalized("BROADCAST_TO", mask, SHAPE, SHAPE))
    (node,) = applied(repeats_into_operands, graph).graph.nodes
    assert node.epilogue[0].operands == (mask,)


def test_a_repetition_that_others_read_stays_for_them() -> None:
    builder = GraphBuilder()
    mask = builder.input(1, 2, 1, 8)
    repeated = builder.concat(2, *[mask] * 4)
    product = builder.node("CONCATENATION", [repeated, repeated], (1, 2, 8, 8))
    add = EpilogueOp("ADD", (repeated,))
    graph = builder.graph(builder.node("COPY", [builder.input(*SHAPE)], SHAPE, (add,)), product)
    found = applied(repeats_into_operands, graph)
    assert ops(found) == ["CONCATENATION", "CONCATENATION", "COPY"]
    assert found.graph.nodes[-1].epilogue[0].operands == (mask,)


def _tiled_rows(builder: GraphBuilder) -> Graph:
    rows = builder.input(1, 2, 2, 8)
    return _masked(builder, builder.concat(2, rows, rows))


def _different(builder: GraphBuilder) -> Graph:
    parts = [builder.input(1, 2, 1, 8) for _ in range(4)]
    return _masked(builder, builder.concat(2, *parts))


def _of_lower_rank(builder: GraphBuilder) -> Graph:
    mask = builder.input(2, 4, 1)
    return _masked(builder, builder.normalized("BROADCAST_TO", mask, SHAPE, SHAPE))


def _activated(builder: GraphBuilder) -> Graph:
    mask = builder.input(1, 2, 1, 8)
    joined = builder.concat(2, *[mask] * 4)
    builder.nodes[-1] = replace(builder.nodes[-1], epilogue=(RELU,))
    return _masked(builder, joined)


def _an_output(builder: GraphBuilder) -> Graph:
    mask = builder.input(1, 2, 1, 8)
    joined = builder.concat(2, *[mask] * 4)
    add = EpilogueOp("ADD", (joined,))
    return builder.graph(builder.node("COPY", [builder.input(*SHAPE)], SHAPE, (add,)), joined)


def _extended(builder: GraphBuilder) -> Graph:
    mask = builder.input(1, 2, 1, 8)
    return _masked(builder, builder.concat(2, *[mask] * 4), extend=True)


@pytest.mark.parametrize(
    "write", [_tiled_rows, _different, _of_lower_rank, _activated, _an_output, _extended]
)
def test_others_stay(write: Callable[[GraphBuilder], Graph]) -> None:
    untouched(repeats_into_operands, write(GraphBuilder()))


def _masks(model: Model) -> list[TensorRef]:
    mask, scores = model.input(1, 2, 1, 8), model.input(*SHAPE)
    joined = model.concat(2, *[mask] * 4)
    return [model.op("MUL", model.op("ADD", scores, joined), joined)]


def test_keeps_the_numbers() -> None:
    check_numbers(_masks, "repeats_into_operands", 4)
