"""Products around a softmax keep the dimensions of its scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

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


def soft(builder: GraphBuilder, scores: int, *shape: int, others: Sequence[int] = ()) -> Graph:
    """Add the softmax of scores of another shape."""
    reshaped = builder.reshape(scores, *shape)
    return builder.graph(builder.node("SOFTMAX", [reshaped], shape), *others)


def _others(builder: GraphBuilder) -> Graph:
    found = product(builder)
    return soft(builder, found, *SCORES, others=[found])


def _rows(builder: GraphBuilder) -> Graph:
    return soft(builder, product(builder), 2, 15, 7)


def _many(builder: GraphBuilder) -> Graph:
    return soft(builder, product(builder), 1, 2, 3, 5, 7)


def _broadcast(builder: GraphBuilder) -> Graph:
    query, key = builder.input(6, 5, 4), builder.input(1, 4, 7)
    return soft(builder, matmul(builder, query, key, FLAT), *SCORES)


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
    "write", [_others, _rows, _many, _broadcast, _values, _quantized, _more_matrices, _no_softmax]
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
