"""Products around a softmax get the dimensions of its scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from cases.attention import Attention
from every_backend import first_devices
from litegpu.graph import DType, Graph, Quantization
from litegpu.passes.regroup_matrices import regroup_matrices
from op_runner import MODES, run
from passes.graphs import GraphBuilder, Shape, applied, ops, untouched

FLAT, SCORES = (6, 5, 7), (2, 3, 5, 7)
HIGHER = [SCORES, (1, *FLAT)]


def matmul(builder: GraphBuilder, left: int, right: int, shape: Shape) -> int:
    output = builder.node("BATCH_MATMUL", [left, right], shape)
    builder.nodes[-1] = replace(builder.nodes[-1], params={"adj_x": False, "adj_y": False})
    return output


def product(builder: GraphBuilder) -> int:
    """Add a product of queries and keys, of [batch * heads, ...]."""
    query, key = builder.input(6, 5, 4), builder.input(6, 4, 7)
    return matmul(builder, query, key, FLAT)


@pytest.mark.parametrize("shape", HIGHER)
def test_a_product_computes_what_a_reshape_gives(shape: Shape) -> None:
    builder = GraphBuilder()
    scores = builder.reshape(product(builder), *shape)
    result = applied(regroup_matrices, builder.graph(builder.node("SOFTMAX", [scores], shape)))
    assert ops(result) == ["RESHAPE", "RESHAPE", "BATCH_MATMUL", "SOFTMAX"]
    node, values = result.graph.nodes[2], result.graph.values
    assert [values[v].shape for v in (*node.inputs, *node.outputs)] == [
        (*shape[:-2], 5, 4),
        (*shape[:-2], 4, 7),
        shape,
    ]
    assert node.params == {"adj_x": False, "adj_y": False}


def test_a_product_computes_as_many_dimensions_as_a_mask_has() -> None:
    builder = GraphBuilder()
    mask = builder.input(1, 1, 5, 7)
    masked = builder.node("ADD", [product(builder), mask], (1, *FLAT))
    soft = builder.node("SOFTMAX", [masked], (1, *FLAT))
    result = applied(regroup_matrices, builder.graph(soft))
    assert ops(result) == ["RESHAPE", "RESHAPE", "BATCH_MATMUL", "ADD", "SOFTMAX"]
    add = result.graph.nodes[3]
    assert result.graph.values[add.inputs[0]].shape == (1, *FLAT)
    assert add.inputs[1] == mask


@pytest.mark.parametrize("computed", [False, True])
def test_masks_of_windows(computed: bool) -> None:
    builder = GraphBuilder()
    windows, shape = (1, 2, 1, 5, 7), (1, 2, 3, 5, 7)
    mask = builder.input(*windows) if computed else builder.constant(*windows)
    masked = builder.node("ADD", [builder.reshape(product(builder), *shape), mask], shape)
    scores = builder.reshape(masked, *SCORES)
    result = applied(regroup_matrices, builder.graph(builder.node("SOFTMAX", [scores], SCORES)))
    added = ["RESHAPE"] if computed else []
    assert ops(result) == ["RESHAPE", "RESHAPE", "BATCH_MATMUL", *added, "ADD", "SOFTMAX"]
    values = result.graph.values
    assert [values[v].shape for v in result.graph.nodes[-2].inputs] == [SCORES, (2, 1, 5, 7)]


def test_masks_of_windows_of_several_images() -> None:
    builder = GraphBuilder()
    mask = builder.constant(1, 2, 1, 5, 7)
    shape = (3, 2, 1, 5, 7)
    masked = builder.node("ADD", [builder.reshape(product(builder), *shape), mask], shape)
    scores = builder.reshape(masked, 6, 1, 5, 7)
    graph = builder.graph(builder.node("SOFTMAX", [scores], (6, 1, 5, 7)))
    result = applied(regroup_matrices, graph).graph
    (repeated,) = (
        result.values[v].data for v in result.nodes[-2].inputs if result.values[v].data is not None
    )
    data = builder.values[mask].data
    assert data is not None and repeated is not None
    np.testing.assert_array_equal(repeated, np.concatenate([data[0]] * 3))


@pytest.mark.parametrize("key", [(2, 1, 4, 7), (1, 3, 4, 7), (2, 3, 4, 7)])
def test_masks_of_windows_whose_heads_share_keys(key: Shape) -> None:
    builder = GraphBuilder()
    scores = matmul(builder, builder.input(2, 3, 5, 4), builder.input(*key), SCORES)
    shape = (1, *SCORES)
    mask = builder.constant(1, 2, 1, 5, 7)
    masked = builder.node("ADD", [builder.reshape(scores, *shape), mask], shape)
    soft = builder.node("SOFTMAX", [builder.reshape(masked, *SCORES)], SCORES)
    result = applied(regroup_matrices, builder.graph(soft))
    assert ops(result) == ["BATCH_MATMUL", "ADD", "SOFTMAX"]
    assert result.graph.nodes[0].inputs == builder.nodes[0].inputs


def test_a_softmax_of_more_dimensions_computes_those_of_its_product() -> None:
    builder = GraphBuilder()
    shape = (1, 2, 3, 5, 7)
    scores = builder.node("TANH", [builder.reshape(product(builder), *shape)], shape)
    soft = builder.node("SOFTMAX", [scores], shape)
    result = applied(regroup_matrices, builder.graph(soft))
    assert ops(result) == ["BATCH_MATMUL", "TANH", "SOFTMAX", "RESHAPE"]
    assert result.graph.values[result.graph.nodes[2].outputs[0]].shape == FLAT
    assert result.graph.nodes[3].outputs == (soft,)


def test_the_sum_of_two_products_is_regrouped_once() -> None:
    builder = GraphBuilder()
    total = builder.node("ADD", [product(builder), product(builder)], FLAT)
    scores = builder.reshape(total, *SCORES)
    result = applied(regroup_matrices, builder.graph(builder.node("SOFTMAX", [scores], SCORES)))
    assert len(result.applied) == 1
    assert ops(result).count("RESHAPE") == 3


def _computed_mask_of_windows(builder: GraphBuilder) -> Graph:
    shape = (3, 2, 1, 5, 7)
    operands = [builder.reshape(product(builder), *shape), builder.input(1, 2, 1, 5, 7)]
    return soft(builder, builder.node("ADD", operands, shape), 6, 1, 5, 7)


def _condition_of_rows(builder: GraphBuilder) -> Graph:
    condition, other = builder.input(6), builder.input(*FLAT)
    chosen = builder.node("SELECT", [condition, product(builder), other], FLAT)
    return soft(builder, chosen, *SCORES)


@pytest.mark.parametrize("write", [_computed_mask_of_windows, _condition_of_rows])
def test_masks_that_cannot_be_regrouped(write: Callable[[GraphBuilder], Graph]) -> None:
    result = untouched(regroup_matrices, write(GraphBuilder()))
    assert result.declined == (
        f"SOFTMAX {len(result.graph.nodes) - 1}: the masks cannot be regrouped",
    )


def _long(builder: GraphBuilder) -> Graph:
    scores = product(builder)
    for _ in range(40):
        scores = builder.node("TANH", [scores], FLAT)
    return soft(builder, scores, *SCORES)


def _activated(builder: GraphBuilder) -> Graph:
    return soft(builder, builder.node("EXP", [product(builder)], FLAT), *SCORES)


def _squared(builder: GraphBuilder) -> Graph:
    scores = product(builder)
    return soft(builder, builder.node("MUL", [scores, scores], FLAT), *SCORES)


def test_a_product_reads_what_a_softmax_gives() -> None:
    builder = GraphBuilder()
    scores, values = builder.input(*SCORES), builder.constant(6, 7, 4)
    soft = builder.node("SOFTMAX", [scores], SCORES)
    last = matmul(builder, builder.reshape(soft, *FLAT), values, (6, 5, 4))
    result = applied(regroup_matrices, builder.graph(last))
    assert ops(result) == ["SOFTMAX", "BATCH_MATMUL", "RESHAPE"]
    node, found = result.graph.nodes[1], result.graph.values
    assert [found[v].shape for v in (*node.inputs, *node.outputs)] == [
        SCORES,
        (2, 3, 7, 4),
        (2, 3, 5, 4),
    ]
    assert result.graph.nodes[2].outputs == (last,)


@pytest.mark.parametrize("key", [(4, 7), (1, 4, 7), (1, 1, 1, 4, 7)])
def test_one_matrix_of_keys_for_all_queries(key: Shape) -> None:
    builder = GraphBuilder()
    scores = matmul(builder, builder.input(6, 5, 4), builder.input(*key), FLAT)
    result = applied(regroup_matrices, soft(builder, scores, *SCORES))
    product = next(each for each in result.graph.nodes if each.op == "BATCH_MATMUL")
    found = [result.graph.values[v].shape for v in (*product.inputs, *product.outputs)]
    assert found == [(2, 3, 5, 4), key[-4:], SCORES]


@pytest.mark.parametrize("values", [(7, 4), (1, 7, 4)])
def test_one_matrix_of_values_for_all_scores(values: Shape) -> None:
    builder = GraphBuilder()
    weights = builder.node("SOFTMAX", [builder.input(*SCORES)], SCORES)
    last = matmul(builder, builder.reshape(weights, *FLAT), builder.input(*values), (6, 5, 4))
    result = applied(regroup_matrices, builder.graph(last))
    assert ops(result) == ["SOFTMAX", "BATCH_MATMUL", "RESHAPE"]
    product, found = result.graph.nodes[1], result.graph.values
    shapes = [found[v].shape for v in (*product.inputs, *product.outputs)]
    assert shapes == [SCORES, values, (2, 3, 5, 4)]


def soft(builder: GraphBuilder, scores: int, *shape: int, others: Sequence[int] = ()) -> Graph:
    """Add the softmax of scores of another shape."""
    reshaped = builder.reshape(scores, *shape)
    return builder.graph(builder.node("SOFTMAX", [reshaped], shape), *others)


def _others(builder: GraphBuilder) -> Graph:
    found = product(builder)
    return soft(builder, found, *SCORES, others=[found])


def _rows(builder: GraphBuilder) -> Graph:
    return soft(builder, product(builder), 2, 15, 7)


def _broadcast(builder: GraphBuilder) -> Graph:
    query, key = builder.input(2, 3, 5, 4), builder.input(2, 1, 4, 7)
    return soft(builder, matmul(builder, query, key, SCORES), *FLAT)


def _values(builder: GraphBuilder) -> Graph:
    """Only the result of all has other dimensions."""
    weights = builder.node("SOFTMAX", [product(builder)], FLAT)
    result = matmul(builder, weights, builder.input(6, 7, 4), (6, 5, 4))
    return builder.graph(builder.reshape(result, 2, 3, 5, 4))


def _quantized(builder: GraphBuilder) -> Graph:
    result = soft(builder, product(builder), *SCORES)
    steps = Quantization((0.5,), (0,))
    values = {
        v: replace(each, dtype=DType.INT8, quantization=steps) for v, each in result.values.items()
    }
    return replace(result, values=values)


def _more_matrices(builder: GraphBuilder) -> Graph:
    mask = builder.input(2, 6, 5, 7)
    masked = builder.node("ADD", [product(builder), mask], (2, *FLAT))
    return builder.graph(builder.node("SOFTMAX", [masked], (2, *FLAT)))


def _no_softmax(builder: GraphBuilder) -> Graph:
    scores, values = builder.input(*SCORES), builder.constant(6, 7, 4)
    return builder.graph(matmul(builder, builder.reshape(scores, *FLAT), values, (6, 5, 4)))


@pytest.mark.parametrize(
    "write",
    [
        *(_others, _rows, _broadcast, _values, _quantized, _more_matrices, _no_softmax),
        *(_long, _activated, _squared),
    ],
)
def test_what_stays_as_it_is(write: Callable[[GraphBuilder], Graph]) -> None:
    untouched(regroup_matrices, write(GraphBuilder()))


@pytest.mark.parametrize("batch", [1, 2])
def test_attention_of_regrouped_matrices_is_one_kernel(batch: int) -> None:
    case = Attention(batch=batch, across=True, regrouped=True, mask=(1, 1, 5, 7))
    outcome = run((case,), first_devices()[0], MODES[0])[case.name]
    if isinstance(outcome, Exception):
        raise outcome
    assert len(outcome.kernels) == 1 and outcome.kernels[0].startswith("attention")
