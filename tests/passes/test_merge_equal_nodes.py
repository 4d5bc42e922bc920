"""Nodes that compute the same value are merged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from litegpu.graph import DType, EpilogueOp, Graph
from litegpu.ops.copy import CopyAttributes
from litegpu.passes.merge_equal_nodes import merge_equal_nodes
from litegpu.zoo.writer import TensorRef
from passes.graphs import RELU, GraphBuilder, applied, ops, untouched
from passes.models import Model, Write, check_numbers

SHAPE = (2, 3)


def add(builder: GraphBuilder, source: int, number: float) -> int:
    return builder.elementwise(source, EpilogueOp("ADD", (builder.number(number),)))


def test_readers_read_the_first() -> None:
    builder = GraphBuilder()
    x = builder.input(*SHAPE)
    first, second = (builder.reshape(x, 3, 2) for _ in range(2))
    graph = builder.graph(builder.concat(1, first, second), builder.elementwise(second, RELU))
    result = applied(merge_equal_nodes, graph)
    assert result.applied == ("RESHAPE 1 is equal to RESHAPE 0",)
    assert ops(result) == ["RESHAPE", "CONCATENATION", "COPY"]
    assert [node.inputs for node in result.graph.nodes] == [(x,), (first, first), (first,)]


def test_nodes_that_read_equal_ones_are_equal() -> None:
    builder = GraphBuilder()
    x = builder.input(*SHAPE)
    branches = [add(builder, builder.elementwise(x, RELU), 0.5) for _ in range(3)]
    result = applied(merge_equal_nodes, builder.graph(builder.concat(0, *branches)))
    assert ops(result) == ["COPY", "COPY", "CONCATENATION"]
    assert result.graph.nodes[-1].inputs == (branches[0],) * 3


def test_what_its_reader_is_fused_into_is_computed_again() -> None:
    builder = GraphBuilder()
    x = builder.input(*SHAPE)
    branches = [add(builder, builder.elementwise(x, RELU), number) for number in (0.5, 1.5)]
    result = untouched(merge_equal_nodes, builder.graph(builder.concat(0, *branches)))
    (line,) = result.declined
    assert line.startswith("COPY 2: COPY 3 becomes an epilogue of the node")


def test_an_operand_of_what_is_fused_into_another_node_is_shared() -> None:
    builder = GraphBuilder()
    x, scores = builder.input(*SHAPE), builder.input(*SHAPE)
    masks = [builder.elementwise(x, RELU) for _ in range(2)]
    sums = [builder.elementwise(scores, EpilogueOp("ADD", (each,))) for each in masks]
    graph = builder.graph(builder.concat(0, *sums), builder.concat(0, *reversed(sums)))
    result = applied(merge_equal_nodes, graph)
    assert result.applied[0] == "COPY 1 is equal to COPY 0"


def test_many_parts_of_a_join_are_in_place() -> None:
    builder = GraphBuilder()
    x = builder.input(*SHAPE)
    result = untouched(
        merge_equal_nodes,
        builder.graph(builder.concat(0, *(builder.elementwise(x, RELU) for _ in range(9)))),
    )
    assert (
        result.declined[0]
        == "COPY 1: the node's result is stored in place in a concatenation of many parts"
    )


@pytest.mark.parametrize("reduces", [False, True])
def test_sums_are_not_computed_again(reduces: bool) -> None:
    builder = GraphBuilder()
    x = builder.input(1, 4, 4, 3)
    weights = builder.constant(3, 3)
    sums = [
        builder.node("REDUCE_MAX", [x], (1, 1, 1, 3))
        if reduces
        else builder.node("BATCH_MATMUL", [x, weights], (1, 4, 4, 3))
        for _ in range(2)
    ]
    branches = [add(builder, v, number) for v, number in zip(sums, (0.5, 1.5), strict=True)]
    result = applied(merge_equal_nodes, builder.graph(builder.concat(0, *branches)))
    assert ops(result)[1:] == ["COPY", "COPY", "CONCATENATION"]


def test_a_precise_result_stays_precise() -> None:
    builder = GraphBuilder()
    x = builder.input(*SHAPE)
    first, second = (builder.elementwise(x, RELU) for _ in range(2))
    builder.values[second] = replace(builder.values[second], precise=True)
    result = applied(merge_equal_nodes, builder.graph(builder.concat(0, first, second)))
    assert result.graph.values[first].precise


def test_an_output_serves_the_readers_of_equal_ones() -> None:
    builder = GraphBuilder()
    x = builder.input(*SHAPE)
    first, second = (builder.elementwise(x, RELU) for _ in range(2))
    graph = builder.graph(first, builder.reshape(second, 6))
    assert applied(merge_equal_nodes, graph).graph.nodes[1].inputs == (first,)


def test_an_output_of_the_partition_stays() -> None:
    builder = GraphBuilder()
    x = builder.input(*SHAPE)
    result = untouched(
        merge_equal_nodes, builder.graph(*(builder.elementwise(x, RELU) for _ in range(2)))
    )
    assert result.declined == ("COPY 1: the node computes an output of the partition",)


def _functions(builder: GraphBuilder, x: int) -> list[int]:
    return [builder.elementwise(x, EpilogueOp(name)) for name in ("RELU", "TANH")]


def _inputs(builder: GraphBuilder, x: int) -> list[int]:
    return [builder.elementwise(v, RELU) for v in (x, builder.input(*SHAPE))]


def _numbers(builder: GraphBuilder, x: int) -> list[int]:
    return [add(builder, x, number) for number in (0.0, -0.0)]


def _large_constants(builder: GraphBuilder, x: int) -> list[int]:
    data = np.zeros((50, *SHAPE), np.float32)
    masks = [builder.value(data.shape, data.copy()) for _ in range(2)]
    return [builder.elementwise(x, EpilogueOp("ADD", (v,)), shape=data.shape) for v in masks]


def _positions(builder: GraphBuilder, x: int) -> list[int]:
    steps = (EpilogueOp("SUB", (x,), position) for position in range(2))
    return [builder.elementwise(x, each) for each in steps]


def _shapes(builder: GraphBuilder, x: int) -> list[int]:
    return [builder.reshape(builder.reshape(x, *shape), 6) for shape in ((3, 2), (1, 6))]


def _types(builder: GraphBuilder, x: int) -> list[int]:
    first, second = (builder.elementwise(x, RELU) for _ in range(2))
    builder.values[second] = replace(builder.values[second], dtype=DType.FLOAT16)
    return [first, second]


def _attributes(builder: GraphBuilder, x: int) -> list[int]:
    begins = (CopyAttributes(begin=(0, 0, 0, begin)) for begin in range(2))
    return [builder.node("STRIDED_SLICE", [x], (2, 2), attributes=each) for each in begins]


def _arrays(builder: GraphBuilder, x: int) -> list[int]:
    return [builder.node("COPY", [x], SHAPE, attributes=np.zeros(1)) for _ in range(2)]


def _state(builder: GraphBuilder, x: int) -> list[int]:
    state = builder.input(*SHAPE)
    builder.values[state] = replace(builder.values[state], is_variable=True)
    return [builder.node("SVDF", [x, state], SHAPE) for _ in range(2)]


def _graphs(builder: GraphBuilder, x: int) -> list[int]:
    found = [builder.node("WHILE", [x], SHAPE) for _ in range(2)]
    builder.nodes[:] = (replace(n, graphs=(Graph({}, (), (), ()),)) for n in builder.nodes)
    return found


@pytest.mark.parametrize(
    "write",
    [
        *(_functions, _inputs, _numbers, _large_constants, _positions, _shapes, _types),
        *(_attributes, _arrays, _state, _graphs),
    ],
)
def test_what_differs_or_has_state_stays(write: Callable[[GraphBuilder, int], list[int]]) -> None:
    builder = GraphBuilder()
    found = write(builder, builder.input(*SHAPE))
    shape = (2 * builder.shape(found[0])[0], *builder.shape(found[0])[1:])
    untouched(merge_equal_nodes, builder.graph(builder.concat(0, *found, shape=shape)))


def _reshapes_of_slices(model: Model) -> list[TensorRef]:
    """Take three parts of one product: each is a reshape of the same value."""
    x = model.input(2, 5, 24)
    heads = model.op("RESHAPE", x, model.integers(2, 5, 3, 2, 4))
    turned = model.op("TRANSPOSE", heads, model.integers(2, 0, 3, 1, 4))
    size = model.integers(1, 2, 2, 5, 4)
    shape = (1, 2, 2, 5, 4)
    begins = (model.integers(part, 0, 0, 0, 0) for part in range(3))
    parts = [model.writer.op("SLICE", [turned, begin, size], [shape]) for begin in begins]
    return [model.op("SUM", part, model.integers(1)) for part in parts]


def _maxima(model: Model) -> list[TensorRef]:
    """Reduce a value twice; equal nodes read equal ones."""
    x = model.input(1, 5, 5, 6)
    found = []
    for number in (1.0, 2.0):
        largest = model.op("REDUCE_MAX", x, model.integers(1, 2), keep_dims=True)
        shifted = model.op("SUB", x, largest)
        found.append(model.op("MUL", shifted, model.number(number)))
    return found


@pytest.mark.parametrize(("write", "saved"), [(_reshapes_of_slices, 0), (_maxima, 1)])
def test_keeps_the_numbers(write: Write, saved: int) -> None:
    check_numbers(write, "merge_equal_nodes", saved)
