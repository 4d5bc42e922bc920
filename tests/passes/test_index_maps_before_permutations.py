"""Index maps along channels move before the transposes of heads, which attention then reads."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from litegpu.graph import EpilogueOp, Graph
from litegpu.ops.index_map import INDEX_MAP, IndexMapAttributes, MixedRadix, Source, plain
from litegpu.passes.index_maps_before_permutations import index_maps_before_permutations
from litegpu.zoo.writer import TensorRef
from passes.graphs import BY_POSITION, RELU, GraphBuilder, applied, functions, ops, untouched
from passes.models import Model, check_numbers

TURNED = (1, 3, 2, 8)
"""The shape of a value of heads before tokens: (1, 2, 3, 8) with tokens first."""
OTHER_HALF = IndexMapAttributes(
    (*plain(TURNED[:3]), MixedRadix((2, 4))),
    (*(Source(((i, 1),)) for i in range(3)), Source(((3, -4), (4, 1)), 4)),
)


def _mapped(builder: GraphBuilder, x: int, *epilogue: EpilogueOp) -> int:
    return builder.node(INDEX_MAP, [x], TURNED, epilogue, OTHER_HALF)


def _turned(builder: GraphBuilder) -> int:
    return builder.transpose(builder.input(1, 2, 3, 8), 0, 2, 1, 3)


def test_operands_are_turned_as_well() -> None:
    builder = GraphBuilder()
    x, computed = _turned(builder), builder.input(3, 1, 8)
    fixed, row = builder.constant(3, 2, 8), builder.constant(8)
    epilogue = [EpilogueOp("MUL", (v,)) for v in (fixed, computed, row)]
    epilogue.append(EpilogueOp("MULTIPLY_ADD", (x, builder.number(2))))
    graph = builder.graph(_mapped(builder, x, *epilogue))
    result = applied(index_maps_before_permutations, graph)
    assert ops(result) == ["RESHAPE", INDEX_MAP, INDEX_MAP]
    view, moved, last = result.graph.nodes
    assert functions(moved) == ["MUL", "MUL", "MUL", "MULTIPLY_ADD"]
    assert last.outputs == graph.outputs
    operands = [each.operands[0] for each in moved.epilogue]
    values = result.graph.values
    after = values[operands[0]].data
    assert after is not None
    assert np.array_equal(after[0], np.arange(1, 49).reshape(3, 2, 8).transpose(1, 0, 2))
    assert (operands[1], values[operands[1]].shape) == (view.outputs[0], (1, 1, 3, 8))
    assert operands[2:] == [row, builder.inputs[0]]
    assert moved.attributes.digits == (*plain((1, 2, 3)), MixedRadix((2, 4)))


def _operand_of_other_axes(builder: GraphBuilder) -> Graph:
    x = _turned(builder)
    return builder.graph(_mapped(builder, x, EpilogueOp("MUL", (builder.input(3, 2, 8),))))


def _position(builder: GraphBuilder) -> Graph:
    return builder.graph(_mapped(builder, _turned(builder), BY_POSITION))


def _others(builder: GraphBuilder) -> Graph:
    x = _turned(builder)
    return builder.graph(_mapped(builder, x, RELU), builder.elementwise(x, RELU))


def _no_epilogue(builder: GraphBuilder) -> Graph:
    return builder.graph(_mapped(builder, _turned(builder)))


REASONS: list[tuple[Callable[[GraphBuilder], Graph], str]] = [
    (_operand_of_other_axes, "an operand has other axes"),
    (_position, "an operand has other axes"),
    (_others, "other nodes also read the moved value"),
    (_no_epilogue, "other nodes also read the moved value"),
]


@pytest.mark.parametrize(("write", "reason"), REASONS)
def test_says_why_not(write: Callable[[GraphBuilder], Graph], reason: str) -> None:
    result = untouched(index_maps_before_permutations, write(GraphBuilder()))
    assert reason in result.declined[0]


def test_maps_across_axes_stay() -> None:
    builder = GraphBuilder()
    x = builder.transpose(builder.input(1, 3, 3, 8), 0, 2, 1, 3)
    sources = (Source(((0, 1),)), *(Source(((i, 1),)) for i in (2, 1, 3)))
    attributes = IndexMapAttributes(plain((1, 3, 3, 8)), sources)
    graph = builder.graph(builder.node(INDEX_MAP, [x], (1, 3, 3, 8), [RELU], attributes))
    assert untouched(index_maps_before_permutations, graph).declined == ()


# Numbers


def _attention(model: Model, heads: int, shared: int, depth: int) -> list[TensorRef]:
    """Rotate queries and keys, whose angles are inputs, and attend; heads may share keys."""
    tokens = 3
    x = model.input(1, 1, tokens, 4)
    angles = [model.input(1, tokens, depth), model.constant(1, 1, tokens, depth)]
    found = []
    for number in (heads, shared):
        rows = model.conv(x, (number * depth, 1, 1, 4))
        rows = model.transposed(model.reshape(rows, 1, tokens, number, depth), 0, 2, 1, 3)
        found.append(model.rotated(rows, (1, number, tokens, depth), *angles))
    queries = model.reshape(found[0], 1, shared, heads // shared * tokens, depth)
    scores = model.op("BATCH_MATMUL", queries, found[1], adj_x=False, adj_y=True)
    small = model.op("MUL", scores, model.number(1e-4))
    return [model.op("SOFTMAX", small, beta=1.0), model.max_pool(found[0])]


@pytest.mark.parametrize(("heads", "shared", "depth"), [(2, 2, 8), (6, 2, 6), (3, 1, 10)])
def test_rotary_positions(heads: int, shared: int, depth: int) -> None:
    write = partial(_attention, heads=heads, shared=shared, depth=depth)
    check_numbers(write, "index_maps_before_permutations", 0, 1e-5)
