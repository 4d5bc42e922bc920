"""Sequences of permutations become one permutation, a RESHAPE, or nothing."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from litegpu.graph import Graph
from litegpu.ops.copy import CopyAttributes
from litegpu.passes.merge_permutations import merge_permutations
from litegpu.zoo.writer import TensorRef
from passes.graphs import RELU, GraphBuilder, applied, ops, untouched
from passes.models import Model, Write, check_numbers

SHAPE = (2, 3, 4, 5)


def _produced(builder: GraphBuilder, *shape: int) -> int:
    """Return a value that a kernel makes."""
    return builder.elementwise(builder.input(*(shape or SHAPE)), RELU)


def _read(builder: GraphBuilder, value: int) -> Graph:
    """Return a graph where a kernel reads the value."""
    return builder.graph(builder.elementwise(value, RELU))


def _left(graph: Graph) -> list[str]:
    """Return the ops between the first op and the last."""
    result = applied(merge_permutations, graph)
    first, *middle, last = result.graph.nodes
    inputs = [node.inputs for node in (*middle, last)]
    assert inputs == [node.outputs for node in (first, *middle)]
    assert last.outputs == graph.outputs
    return [node.op for node in middle]


def test_a_move_and_its_inverse_vanish() -> None:
    builder = GraphBuilder()
    there = builder.transpose(_produced(builder), 0, 3, 1, 2)
    graph = _read(builder, builder.transpose(there, 0, 2, 3, 1))
    assert _left(graph) == []
    assert applied(merge_permutations, graph).applied == ("INDEX_MAP 1 into INDEX_MAP 2",)


def test_two_transposes_become_one() -> None:
    builder = GraphBuilder()
    there = builder.transpose(_produced(builder), 0, 3, 1, 2)
    graph = _read(builder, builder.transpose(there, 0, 1, 3, 2))
    assert _left(graph) == ["INDEX_MAP"]
    (move,) = [
        node for node in applied(merge_permutations, graph).graph.nodes if node.op == "INDEX_MAP"
    ]
    alone = GraphBuilder()
    alone.transpose(alone.input(*SHAPE), 0, 3, 2, 1)
    assert move.attributes == alone.nodes[0].attributes
    assert move.merged == (1,)


def test_two_reshapes_become_one() -> None:
    builder = GraphBuilder()
    flat = builder.reshape(_produced(builder), 6, 20)
    assert _left(_read(builder, builder.reshape(flat, 24, 5))) == ["RESHAPE"]


def test_a_reshape_and_its_inverse_vanish() -> None:
    builder = GraphBuilder()
    flat = builder.reshape(_produced(builder), 6, 20)
    assert _left(_read(builder, builder.reshape(flat, *SHAPE))) == []


def test_three_transposes_that_come_full_circle_vanish() -> None:
    builder = GraphBuilder()
    value = _produced(builder)
    for _ in range(3):
        value = builder.transpose(value, 0, 2, 3, 1)
    assert _left(_read(builder, value)) == []


def test_transposes_that_only_move_sizes_of_one_are_reshapes() -> None:
    builder = GraphBuilder()
    flat = builder.transpose(_produced(builder, 1, 6, 1, 5), 2, 1, 0, 3)
    assert builder.nodes[-1].op == "RESHAPE"
    assert _left(_read(builder, builder.transpose(flat, 0, 2, 1, 3))) == ["RESHAPE"]


def test_a_channel_shuffle_is_one_move() -> None:
    """Groups of channels exchanged, as ShuffleNet does it; three channels make no whole slice."""
    builder = GraphBuilder()
    grouped = builder.reshape(_produced(builder, 2, 4, 4, 6), 2, 4, 4, 2, 3)
    turned = builder.transpose(grouped, 0, 1, 2, 4, 3)
    assert _left(_read(builder, builder.reshape(turned, 2, 4, 4, 6))) == ["INDEX_MAP"]


def test_through_a_reshape_that_is_free() -> None:
    builder = GraphBuilder()
    turned = builder.transpose(_produced(builder, 1, 4, 3, 8), 0, 2, 1, 3)
    flat = builder.reshape(turned, 1, 12, 8)
    assert _left(_read(builder, builder.transpose(flat, 0, 2, 1))) == ["INDEX_MAP"]


def test_index_maps_of_blocks_and_back_vanish() -> None:
    builder = GraphBuilder()
    source = _produced(builder, 1, 4, 6, 5)
    deep = builder.normalized("SPACE_TO_DEPTH", source, (1, 2, 3, 20), block_size=2)
    graph = _read(builder, builder.normalized("DEPTH_TO_SPACE", deep, (1, 4, 6, 5), block_size=2))
    assert _left(graph) == []


def test_an_output_of_the_partition_stays_a_value_of_its_own() -> None:
    builder = GraphBuilder()
    there = builder.transpose(_produced(builder), 0, 3, 1, 2)
    graph = builder.graph(builder.transpose(there, 0, 2, 3, 1))
    assert ops(applied(merge_permutations, graph)) == ["COPY", "RESHAPE"]


def test_what_others_read_stays() -> None:
    """The inverse needs no kernel even so."""
    builder = GraphBuilder()
    there = builder.transpose(_produced(builder), 0, 3, 1, 2)
    back = builder.elementwise(builder.transpose(there, 0, 2, 3, 1), RELU)
    result = applied(merge_permutations, builder.graph(back, builder.elementwise(there, RELU)))
    assert ops(result) == ["COPY", "INDEX_MAP", "COPY", "COPY"]
    first, _, last, _ = result.graph.nodes
    assert last.inputs == first.outputs


def test_readers_of_both_ends_are_renamed() -> None:
    builder = GraphBuilder()
    source = _produced(builder)
    same = builder.transpose(builder.transpose(source, 3, 1, 2, 0), 3, 1, 2, 0)
    further = builder.transpose(same, 0, 2, 1, 3)
    graph = builder.graph(builder.concat(3, same, source), builder.elementwise(further, RELU))
    result = applied(merge_permutations, graph)
    assert ops(result) == ["COPY", "INDEX_MAP", "CONCATENATION", "COPY"]
    assert result.graph.nodes[1].inputs == (source,)
    assert result.graph.nodes[2].inputs == (source, source)


def _read_by_others(builder: GraphBuilder) -> Graph:
    there = builder.transpose(_produced(builder), 0, 3, 1, 2)
    again = builder.transpose(there, 0, 1, 3, 2)
    return builder.graph(builder.elementwise(there, RELU), builder.elementwise(again, RELU))


def _also_an_output(builder: GraphBuilder) -> Graph:
    there = builder.transpose(_produced(builder), 0, 3, 1, 2)
    return builder.graph(there, builder.elementwise(builder.transpose(there, 0, 1, 3, 2), RELU))


def _free_reshape(builder: GraphBuilder) -> Graph:
    """Write a move of whole slices, which as one with the view would go lane by lane."""
    turned = builder.transpose(_produced(builder, 1, 4, 3, 8), 0, 2, 1, 3)
    return _read(builder, builder.reshape(turned, 1, 96))


def _across(builder: GraphBuilder) -> Graph:
    turned = builder.transpose(_produced(builder, 2, 3), 1, 0)
    return _read(builder, builder.transpose(builder.reshape(turned, 2, 3), 1, 0))


_SHARED = "other nodes also read the permuted value"
DECLINED: list[tuple[Callable[[GraphBuilder], Graph], str]] = [
    (_read_by_others, f"INDEX_MAP 2 and the permutation before it: {_SHARED}"),
    (_also_an_output, f"INDEX_MAP 2 and the permutation before it: {_SHARED}"),
    (_free_reshape, "RESHAPE 2 and the permutation before it: no kernel would be saved"),
    (
        _across,
        "INDEX_MAP 3 and the permutation before it: the axes of the two permutations are "
        "divided in different ways",
    ),
]


@pytest.mark.parametrize(("write", "reason"), DECLINED)
def test_declines_with_a_reason(write: Callable[[GraphBuilder], Graph], reason: str) -> None:
    result = untouched(merge_permutations, write(GraphBuilder()))
    assert reason in result.declined


def _with_epilogue(builder: GraphBuilder) -> Graph:
    there = builder.node("RESHAPE", [_produced(builder)], (6, 20), [RELU])
    return _read(builder, builder.reshape(there, *SHAPE))


def _of_a_constant(builder: GraphBuilder) -> Graph:
    return _read(builder, builder.transpose(builder.input(*SHAPE), 0, 3, 1, 2))


def _after_a_flip(builder: GraphBuilder) -> Graph:
    attributes = CopyAttributes((0, 2, 0, 0), (1, -1, 1, 1))
    flipped = builder.node("STRIDED_SLICE", [_produced(builder)], SHAPE, attributes=attributes)
    return _read(builder, builder.transpose(flipped, 0, 3, 1, 2))


@pytest.mark.parametrize("write", [_with_epilogue, _of_a_constant, _after_a_flip])
def test_single_index_maps_stay(write: Callable[[GraphBuilder], Graph]) -> None:
    assert untouched(merge_permutations, write(GraphBuilder())).declined == ()


# Numbers


def _transposes(order: tuple[int, ...], model: Model) -> list[TensorRef]:
    output = model.max_pool(model.input(2, 3, 4, 5))
    turned = model.op("TRANSPOSE", output, model.integers(0, 3, 1, 2))
    return [model.op("SIGN", model.op("TRANSPOSE", turned, model.integers(*order)))]


def _channel_shuffle(model: Model) -> list[TensorRef]:
    output = model.conv(model.input(2, 3, 4, 5), (6, 1, 1, 5))
    grouped = model.reshape(output, 2, 12, 2, 3)
    turned = model.op("TRANSPOSE", grouped, model.integers(0, 1, 3, 2))
    return [model.conv(model.reshape(turned, 2, 3, 4, 6), (4, 3, 3, 6))]


def _added_and_dropped(model: Model) -> list[TensorRef]:
    output = model.conv(model.input(2, 3, 4, 5), (6, 1, 1, 5))
    flat = model.op("EXPAND_DIMS", model.reshape(output, 24, 6), model.integers(1))
    flat = model.op("SQUEEZE", flat, squeeze_dims=[1])
    return [model.conv(model.reshape(flat, 2, 3, 4, 6), (4, 3, 3, 6))]


def _back_to_an_output(model: Model) -> list[TensorRef]:
    output = model.conv(model.input(2, 3, 4, 5), (6, 1, 1, 5))
    turned = model.op("TRANSPOSE", output, model.integers(0, 2, 1, 3))
    return [turned, model.op("TRANSPOSE", turned, model.integers(0, 2, 1, 3))]


MODELS: list[tuple[Write, int]] = [
    (partial(_transposes, (0, 2, 3, 1)), 1),
    (partial(_transposes, (0, 2, 1, 3)), 0),  # `merge_index_maps` would do it, too
    (_channel_shuffle, 2),
    (_added_and_dropped, 0),
    (_back_to_an_output, 1),
]


@pytest.mark.parametrize(("write", "saved"), MODELS)
def test_keeps_the_numbers(write: Write, saved: int) -> None:
    check_numbers(write, "merge_permutations", saved)
