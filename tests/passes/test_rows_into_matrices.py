"""Products with computed weights before a softmax become products of matrices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from cases.attention import OneHead
from every_backend import first_devices
from litegpu.graph import DType, Graph
from litegpu.passes.rows_into_matrices import rows_into_matrices
from op_runner import MODES, run
from passes.graphs import GraphBuilder, Shape, applied, ops, untouched


def scores(
    builder: GraphBuilder, rows: int, keys: int, shape: Shape, *bias: int, activation: str = "none"
) -> int:
    found = builder.node("FULLY_CONNECTED", [rows, keys, *(bias or (-1,))], shape)
    builder.nodes[-1] = replace(builder.nodes[-1], params={"activation": activation})
    return found


def soft(builder: GraphBuilder, found: int, *others: int) -> Graph:
    """Add what may stand between the scores and their softmax, and this."""
    shape = builder.shape(found)
    between = builder.node("MUL", [found, builder.number(0.5)], shape)
    return builder.graph(builder.node("SOFTMAX", [between], shape), *others)


@pytest.mark.parametrize("lead", [(), (1,), (1, 1)])
def test_scores_are_a_product_of_matrices(lead: Shape) -> None:
    builder = GraphBuilder()
    rows, keys = builder.input(*lead, 5, 4), builder.input(7, 4)
    graph = soft(builder, scores(builder, rows, keys, (*lead, 5, 7)))
    result = applied(rows_into_matrices, graph)
    assert ops(result) == [*(["RESHAPE"] if lead else []), "BATCH_MATMUL", "MUL", "SOFTMAX"]
    product = result.graph.nodes[-3]
    assert (product.params["adj_x"], product.params["adj_y"]) == (False, True)
    assert result.graph.values[product.inputs[1]].shape == (*lead, 7, 4)


def _constant(builder: GraphBuilder) -> Graph:
    return soft(builder, scores(builder, builder.input(5, 4), builder.constant(7, 4), (5, 7)))


def _bias(builder: GraphBuilder) -> Graph:
    operands = builder.input(5, 4), builder.input(7, 4)
    return soft(builder, scores(builder, *operands, (5, 7), builder.constant(7)))


def _activated(builder: GraphBuilder) -> Graph:
    operands = builder.input(5, 4), builder.input(7, 4)
    return soft(builder, scores(builder, *operands, (5, 7), activation="relu"))


def _several(builder: GraphBuilder) -> Graph:
    """All heads share their keys."""
    operands = builder.input(2, 5, 4), builder.input(7, 4)
    return soft(builder, scores(builder, *operands, (2, 5, 7)))


def _other_rows(builder: GraphBuilder) -> Graph:
    """A row of the result is half of one of the operand."""
    operands = builder.input(5, 8), builder.input(7, 4)
    return soft(builder, scores(builder, *operands, (10, 7)))


def _one_row(builder: GraphBuilder) -> Graph:
    return soft(builder, scores(builder, builder.input(4), builder.input(7, 4), (7,)))


def _read_twice(builder: GraphBuilder) -> Graph:
    found = scores(builder, builder.input(5, 4), builder.input(7, 4), (5, 7))
    return soft(builder, found, found)


def _no_softmax(builder: GraphBuilder) -> Graph:
    return builder.graph(scores(builder, builder.input(5, 4), builder.input(7, 4), (5, 7)))


def _integers(builder: GraphBuilder) -> Graph:
    graph = soft(builder, scores(builder, builder.input(5, 4), builder.input(7, 4), (5, 7)))
    values = {v: replace(each, dtype=DType.INT8) for v, each in graph.values.items()}
    return replace(graph, values=values)


@pytest.mark.parametrize(
    "write",
    [
        *(_constant, _bias, _activated, _several, _other_rows, _one_row, _read_twice),
        *(_no_softmax, _integers),
    ],
)
def test_what_stays_as_it_is(write: Callable[[GraphBuilder], Graph]) -> None:
    untouched(rows_into_matrices, write(GraphBuilder()))


@pytest.mark.parametrize("lead", [(), (1,), (1, 1)])
def test_attention_of_one_head_is_one_kernel(lead: Shape) -> None:
    case = OneHead(lead=lead, scale=0.5, mask=True)
    outcome = run((case,), first_devices()[0], MODES[0])[case.name]
    if isinstance(outcome, Exception):
        raise outcome
    assert len(outcome.kernels) == 1 and outcome.kernels[0].startswith("attention")
