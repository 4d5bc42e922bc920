"""Products of transposed values and a softmax become products of the softmax and the values."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from litegpu.graph import DType
from litegpu.passes.softmax_before_values import softmax_before_values
from litegpu.zoo.writer import TensorRef
from passes.graphs import GraphBuilder, applied, ops, untouched
from passes.models import Model, check_numbers

HEADS = (2, 3)


def product(builder: GraphBuilder, *, adj_x: bool = False, adj_y: bool = True) -> tuple[int, int]:
    """Return a softmax of 5 queries and 7 keys, and values of 4 channels times it."""
    scores = builder.input(*HEADS, *((5, 7) if adj_y else (7, 5)))
    weights = builder.node("SOFTMAX", [scores], builder.shape(scores))
    values = builder.input(*HEADS, *((7, 4) if adj_x else (4, 7)))
    result = builder.node("BATCH_MATMUL", [values, weights], (*HEADS, 4, 5))
    params = {"adj_x": adj_x, "adj_y": adj_y}
    builder.nodes[-1] = replace(builder.nodes[-1], params=params)
    return weights, result


@pytest.mark.parametrize("adj_x", [False, True])
def test_the_operands_are_exchanged(adj_x: bool) -> None:
    builder = GraphBuilder()
    weights, output = product(builder, adj_x=adj_x)
    result = applied(softmax_before_values, builder.graph(output))
    assert ops(result) == ["SOFTMAX", "BATCH_MATMUL", "TRANSPOSE"]
    _, matmul, turned = result.graph.nodes
    assert matmul.inputs == (weights, builder.inputs[1])
    assert matmul.params == {"adj_x": False, "adj_y": not adj_x}
    assert result.graph.values[matmul.outputs[0]].shape == (*HEADS, 5, 4)
    order = result.graph.values[turned.inputs[1]].data
    assert order is not None
    assert np.array_equal(order, [0, 1, 3, 2])
    assert turned.outputs == (output,)


def test_others_read_the_softmax() -> None:
    builder = GraphBuilder()
    found = untouched(softmax_before_values, builder.graph(*product(builder)))
    assert found.declined == ("BATCH_MATMUL 1: other nodes also read SOFTMAX 0",)


def test_a_softmax_of_columns() -> None:
    builder = GraphBuilder()
    _, output = product(builder, adj_y=False)
    assert untouched(softmax_before_values, builder.graph(output)).declined == ()


def test_integers() -> None:
    builder = GraphBuilder()
    _, output = product(builder)
    builder.values[output] = replace(builder.values[output], dtype=DType.INT32)
    assert untouched(softmax_before_values, builder.graph(output)).declined == ()


def _attention(model: Model, adj_x: bool) -> list[TensorRef]:
    """Attention by sums over named axes, with heads across the tokens of values and result."""
    query, key = model.input(*HEADS, 5, 8), model.input(*HEADS, 8, 7)
    scores = model.op("BATCH_MATMUL", query, key, adj_x=False, adj_y=False)
    scores = model.op("MUL", scores, model.number(0.0625))
    weights = model.op("SOFTMAX", scores, beta=1.0)
    order = (0, 2, 1, 3) if adj_x else (0, 2, 3, 1)
    values = model.transposed(model.input(2, 7, 3, 4), *order)
    result = model.op("BATCH_MATMUL", values, weights, adj_x=adj_x, adj_y=True)
    return [model.transposed(result, 0, 3, 1, 2)]


@pytest.mark.parametrize("adj_x", [False, True])
def test_keeps_the_numbers(adj_x: bool) -> None:
    check_numbers(partial(_attention, adj_x=adj_x), "softmax_before_values", 3, 1e-5)
