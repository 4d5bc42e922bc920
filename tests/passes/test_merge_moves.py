"""Chains of moves that only reorder become one move, a RESHAPE, or nothing."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest

from litegpu.graph import Graph
from litegpu.ops.copy import CopyAttributes
from litegpu.passes.merge_moves import merge_moves
from litegpu.zoo.writer import TensorRef
from passes.graphs import RELU, Maker, applied, ops, untouched
from passes.models import Model, Write, check_numbers

SHAPE = (2, 3, 4, 5)


def _made(maker: Maker, *shape: int) -> int:
    """Return a value that a kernel makes."""
    return maker.steps(maker.input(*(shape or SHAPE)), RELU)


def _read(maker: Maker, value: int) -> Graph:
    """Return a graph where a kernel reads the value."""
    return maker.graph(maker.steps(value, RELU))


def _left(graph: Graph) -> list[str]:
    """Return the ops between the first step and the last."""
    result = applied(merge_moves, graph)
    first, *middle, last = result.graph.nodes
    inputs = [node.inputs for node in (*middle, last)]
    assert inputs == [node.outputs for node in (first, *middle)]
    assert last.outputs == graph.outputs
    return [node.op for node in middle]


def test_a_move_and_its_inverse_vanish() -> None:
    maker = Maker()
    there = maker.transpose(_made(maker), 0, 3, 1, 2)
    graph = _read(maker, maker.transpose(there, 0, 2, 3, 1))
    assert _left(graph) == []
    assert applied(merge_moves, graph).applied == ("MOVE 1 into MOVE 2",)


def test_two_transposes_become_one() -> None:
    maker = Maker()
    there = maker.transpose(_made(maker), 0, 3, 1, 2)
    graph = _read(maker, maker.transpose(there, 0, 1, 3, 2))
    assert _left(graph) == ["MOVE"]
    (move,) = [node for node in applied(merge_moves, graph).graph.nodes if node.op == "MOVE"]
    alone = Maker()
    alone.transpose(alone.input(*SHAPE), 0, 3, 2, 1)
    assert move.attributes == alone.nodes[0].attributes
    assert move.merged == (1,)


def test_two_reshapes_become_one() -> None:
    maker = Maker()
    flat = maker.reshape(_made(maker), 6, 20)
    assert _left(_read(maker, maker.reshape(flat, 24, 5))) == ["RESHAPE"]


def test_a_reshape_and_its_inverse_vanish() -> None:
    maker = Maker()
    flat = maker.reshape(_made(maker), 6, 20)
    assert _left(_read(maker, maker.reshape(flat, *SHAPE))) == []


def test_three_transposes_that_come_full_circle_vanish() -> None:
    maker = Maker()
    value = _made(maker)
    for _ in range(3):
        value = maker.transpose(value, 0, 2, 3, 1)
    assert _left(_read(maker, value)) == []


def test_transposes_that_only_move_sizes_of_one_are_reshapes() -> None:
    maker = Maker()
    flat = maker.transpose(_made(maker, 1, 6, 1, 5), 2, 1, 0, 3)
    assert maker.nodes[-1].op == "RESHAPE"
    assert _left(_read(maker, maker.transpose(flat, 0, 2, 1, 3))) == ["RESHAPE"]


def test_a_channel_shuffle_is_one_move() -> None:
    """Groups of channels exchanged, as ShuffleNet does it; three channels make no whole slice."""
    maker = Maker()
    grouped = maker.reshape(_made(maker, 2, 4, 4, 6), 2, 4, 4, 2, 3)
    turned = maker.transpose(grouped, 0, 1, 2, 4, 3)
    assert _left(_read(maker, maker.reshape(turned, 2, 4, 4, 6))) == ["MOVE"]


def test_through_a_reshape_that_is_free() -> None:
    maker = Maker()
    turned = maker.transpose(_made(maker, 1, 4, 3, 8), 0, 2, 1, 3)
    flat = maker.reshape(turned, 1, 12, 8)
    assert _left(_read(maker, maker.transpose(flat, 0, 2, 1))) == ["MOVE"]


def test_moves_of_blocks_and_back_vanish() -> None:
    maker = Maker()
    source = _made(maker, 1, 4, 6, 5)
    deep = maker.normalized("SPACE_TO_DEPTH", source, (1, 2, 3, 20), block_size=2)
    graph = _read(maker, maker.normalized("DEPTH_TO_SPACE", deep, (1, 4, 6, 5), block_size=2))
    assert _left(graph) == []


def test_an_output_of_the_partition_stays_a_value_of_its_own() -> None:
    maker = Maker()
    there = maker.transpose(_made(maker), 0, 3, 1, 2)
    graph = maker.graph(maker.transpose(there, 0, 2, 3, 1))
    assert ops(applied(merge_moves, graph)) == ["COPY", "RESHAPE"]


def test_what_others_read_stays() -> None:
    """The inverse needs no kernel even so."""
    maker = Maker()
    there = maker.transpose(_made(maker), 0, 3, 1, 2)
    back = maker.steps(maker.transpose(there, 0, 2, 3, 1), RELU)
    result = applied(merge_moves, maker.graph(back, maker.steps(there, RELU)))
    assert ops(result) == ["COPY", "MOVE", "COPY", "COPY"]
    first, _, last, _ = result.graph.nodes
    assert last.inputs == first.outputs


def test_readers_of_both_ends_are_renamed() -> None:
    maker = Maker()
    source = _made(maker)
    same = maker.transpose(maker.transpose(source, 3, 1, 2, 0), 3, 1, 2, 0)
    further = maker.transpose(same, 0, 2, 1, 3)
    graph = maker.graph(maker.concat(3, same, source), maker.steps(further, RELU))
    result = applied(merge_moves, graph)
    assert ops(result) == ["COPY", "MOVE", "CONCATENATION", "COPY"]
    assert result.graph.nodes[1].inputs == (source,)
    assert result.graph.nodes[2].inputs == (source, source)


def _read_by_others(maker: Maker) -> Graph:
    there = maker.transpose(_made(maker), 0, 3, 1, 2)
    again = maker.transpose(there, 0, 1, 3, 2)
    return maker.graph(maker.steps(there, RELU), maker.steps(again, RELU))


def _also_an_output(maker: Maker) -> Graph:
    there = maker.transpose(_made(maker), 0, 3, 1, 2)
    return maker.graph(there, maker.steps(maker.transpose(there, 0, 1, 3, 2), RELU))


def _free_reshape(maker: Maker) -> Graph:
    """Write a move of whole slices, which as one with the view would go lane by lane."""
    turned = maker.transpose(_made(maker, 1, 4, 3, 8), 0, 2, 1, 3)
    return _read(maker, maker.reshape(turned, 1, 96))


def _across(maker: Maker) -> Graph:
    turned = maker.transpose(_made(maker, 2, 3), 1, 0)
    return _read(maker, maker.transpose(maker.reshape(turned, 2, 3), 1, 0))


_SHARED = "others read it too"
DECLINED: list[tuple[Callable[[Maker], Graph], str]] = [
    (_read_by_others, f"MOVE 2 and the move before it: {_SHARED}"),
    (_also_an_output, f"MOVE 2 and the move before it: {_SHARED}"),
    (_free_reshape, "RESHAPE 2 and the move before it: no kernel would be saved"),
    (_across, "MOVE 3 and the move before it: their axes do not divide alike"),
]


@pytest.mark.parametrize(("write", "reason"), DECLINED)
def test_declines_with_a_reason(write: Callable[[Maker], Graph], reason: str) -> None:
    result = untouched(merge_moves, write(Maker()))
    assert reason in result.declined


def _with_steps(maker: Maker) -> Graph:
    there = maker.node("RESHAPE", [_made(maker)], (6, 20), [RELU])
    return _read(maker, maker.reshape(there, *SHAPE))


def _of_a_constant(maker: Maker) -> Graph:
    return _read(maker, maker.transpose(maker.input(*SHAPE), 0, 3, 1, 2))


def _after_a_flip(maker: Maker) -> Graph:
    attributes = CopyAttributes((0, 2, 0, 0), (1, -1, 1, 1))
    flipped = maker.node("STRIDED_SLICE", [_made(maker)], SHAPE, attributes=attributes)
    return _read(maker, maker.transpose(flipped, 0, 3, 1, 2))


@pytest.mark.parametrize("write", [_with_steps, _of_a_constant, _after_a_flip])
def test_single_moves_stay(write: Callable[[Maker], Graph]) -> None:
    assert untouched(merge_moves, write(Maker())).declined == ()


# Numbers


def _transposes(order: tuple[int, ...], model: Model) -> list[TensorRef]:
    made = model.max_pool(model.input(2, 3, 4, 5))
    turned = model.op("TRANSPOSE", made, model.integers(0, 3, 1, 2))
    return [model.op("SIGN", model.op("TRANSPOSE", turned, model.integers(*order)))]


def _channel_shuffle(model: Model) -> list[TensorRef]:
    made = model.conv(model.input(2, 3, 4, 5), (6, 1, 1, 5))
    grouped = model.reshape(made, 2, 12, 2, 3)
    turned = model.op("TRANSPOSE", grouped, model.integers(0, 1, 3, 2))
    return [model.conv(model.reshape(turned, 2, 3, 4, 6), (4, 3, 3, 6))]


def _added_and_dropped(model: Model) -> list[TensorRef]:
    made = model.conv(model.input(2, 3, 4, 5), (6, 1, 1, 5))
    flat = model.op("EXPAND_DIMS", model.reshape(made, 24, 6), model.integers(1))
    flat = model.op("SQUEEZE", flat, squeeze_dims=[1])
    return [model.conv(model.reshape(flat, 2, 3, 4, 6), (4, 3, 3, 6))]


def _back_to_an_output(model: Model) -> list[TensorRef]:
    made = model.conv(model.input(2, 3, 4, 5), (6, 1, 1, 5))
    turned = model.op("TRANSPOSE", made, model.integers(0, 2, 1, 3))
    return [turned, model.op("TRANSPOSE", turned, model.integers(0, 2, 1, 3))]


MODELS: list[tuple[Write, int]] = [
    (partial(_transposes, (0, 2, 3, 1)), 1),
    (partial(_transposes, (0, 2, 1, 3)), 0),  # `merge_lookups` would do it, too
    (_channel_shuffle, 2),
    (_added_and_dropped, 0),
    (_back_to_an_output, 1),
]


@pytest.mark.parametrize(("write", "saved"), MODELS)
def test_keeps_the_numbers(write: Write, saved: int) -> None:
    check_numbers(write, "merge_moves", saved)
