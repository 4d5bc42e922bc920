"""Constant factors of queries and keys become factors of their scores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from cases.attention import Attention
from cases.base import Range
from every_backend import first_devices
from litegpu.graph import DType, Graph
from litegpu.passes.scales_after_products import scales_after_products
from op_runner import MODES, Mode, problem_of, run
from passes.graphs import GraphBuilder, Shape, applied, ops, untouched

QUERY, KEY, SCORES = (2, 3, 5, 4), (2, 3, 4, 7), (2, 3, 5, 7)


def scaled(builder: GraphBuilder, source: int, factor: float = 0.5, *, first: bool = False) -> int:
    inputs = [source, builder.number(factor)]
    return builder.node("MUL", inputs[::-1] if first else inputs, builder.shape(source))


def soft(builder: GraphBuilder, query: int, key: int, *, mask: Shape = (), **others: int) -> Graph:
    """Add a product of queries and keys and the softmax of it."""
    scores = builder.node("BATCH_MATMUL", [query, key], SCORES)
    if mask:
        scores = builder.node("ADD", [scores, builder.input(*mask)], SCORES)
    return builder.graph(builder.node("SOFTMAX", [scores], SCORES), *others.values())


@pytest.mark.parametrize(("query", "key"), [(True, False), (False, True), (True, True)])
def test_scores_are_scaled(query: bool, key: bool) -> None:
    builder = GraphBuilder()
    sources = builder.input(*QUERY), builder.input(*KEY)
    first = scaled(builder, sources[0]) if query else sources[0]
    second = scaled(builder, sources[1], 0.25, first=True) if key else sources[1]
    result = applied(scales_after_products, soft(builder, first, second, mask=(1, 1, 5, 7)))
    assert ops(result) == ["BATCH_MATMUL", "MUL", "ADD", "SOFTMAX"]
    product, scale, *_ = result.graph.nodes
    assert product.inputs == sources
    assert scale.inputs[0] == product.outputs[0]
    number = result.graph.values[scale.inputs[1]].data
    assert number == np.float32((0.5 if query else 1) * (0.25 if key else 1))


def test_factors_are_found_before_what_moves_elements() -> None:
    builder = GraphBuilder()
    source = builder.input(2, 5, 12)
    split = builder.reshape(scaled(builder, source), 2, 5, 3, 4)
    order = builder.integers((0, 2, 1, 3))
    query = builder.node("TRANSPOSE", [split, order], QUERY)
    result = applied(scales_after_products, soft(builder, query, builder.input(*KEY)))
    assert ops(result) == ["RESHAPE", "TRANSPOSE", "BATCH_MATMUL", "MUL", "SOFTMAX"]
    assert result.graph.nodes[0].inputs == (source,)


def _others(builder: GraphBuilder) -> Graph:
    query = scaled(builder, builder.input(*QUERY))
    return soft(builder, query, builder.input(*KEY), output=query)


def _activated(builder: GraphBuilder) -> Graph:
    query = scaled(builder, builder.input(*QUERY))
    builder.nodes[-1] = replace(builder.nodes[-1], params={"activation": "relu"})
    return soft(builder, query, builder.input(*KEY))


def _each_channel(builder: GraphBuilder) -> Graph:
    query = builder.node("MUL", [builder.input(*QUERY), builder.constant(4)], QUERY)
    return soft(builder, query, builder.input(*KEY))


def _extreme(builder: GraphBuilder) -> Graph:
    query = scaled(builder, builder.input(*QUERY), 1e30)
    return soft(builder, query, scaled(builder, builder.input(*KEY), 0.0))


def _no_softmax(builder: GraphBuilder) -> Graph:
    query = scaled(builder, builder.input(*QUERY))
    return builder.graph(builder.node("BATCH_MATMUL", [query, builder.input(*KEY)], SCORES))


def _integers(builder: GraphBuilder) -> Graph:
    graph = soft(builder, scaled(builder, builder.input(*QUERY)), builder.input(*KEY))
    values = {v: replace(each, dtype=DType.INT8) for v, each in graph.values.items()}
    return replace(graph, values=values)


@pytest.mark.parametrize(
    "write", [_others, _activated, _each_channel, _extreme, _no_softmax, _integers]
)
def test_what_stays_as_it_is(write: Callable[[GraphBuilder], Graph]) -> None:
    untouched(scales_after_products, write(GraphBuilder()))


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.name)
def test_sums_beyond_the_range_of_half_are_scaled_first(mode: Mode) -> None:
    case = Attention(spread=True, scale=2.0**-20, depth=64, values=Range(-2000.0, 2000.0, grid=1.0))
    outcome = run((case,), first_devices()[0], mode)[case.name]
    if isinstance(outcome, Exception):
        raise outcome
    assert problem_of(case, outcome, mode) == ""
    assert len(outcome.kernels) == 1 and outcome.kernels[0].startswith("attention")
