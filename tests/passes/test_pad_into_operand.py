"""A PAD that appends channels becomes part of the element-wise step that reads it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from litegpu.graph import SELF, Graph, Stage
from litegpu.ops.copy import CopyAttributes
from litegpu.passes.pad_into_operand import pad_into_operand
from litegpu.zoo.writer import TensorRef
from passes.graphs import RELU, Maker, applied, ops, untouched
from passes.models import Model, Write, check_numbers

NONE = (0, 0)
WIDER = (NONE, NONE, NONE, (0, 5))


def test_the_step_reads_the_narrow_operand() -> None:
    maker = Maker()
    narrow, wide = maker.input(1, 4, 4, 3), maker.input(1, 4, 4, 8)
    padded = maker.pad(narrow, *WIDER)
    graph = maker.graph(maker.steps(wide, Stage("SUB", (padded,), 1), RELU))
    result = applied(pad_into_operand, graph)
    (node,) = result.graph.nodes
    assert node.inputs == (wide,)
    assert node.stages == (Stage("SUB", (narrow,), 1, extend=True), RELU)
    assert node.merged == (0,)
    assert result.applied == ("PAD 0 into COPY 1",)


@pytest.mark.parametrize("position", [0, 1])
def test_the_other_operand_runs_through_when_the_pad_did(position: int) -> None:
    maker = Maker()
    narrow, wide = maker.input(1, 4, 4, 3), maker.input(1, 4, 4, 8)
    padded = maker.pad(narrow, *WIDER)
    graph = maker.graph(maker.steps(padded, Stage("SUB", (wide,), position), RELU))
    (node,) = applied(pad_into_operand, graph).graph.nodes
    assert node.inputs == (wide,)
    assert node.stages == (Stage("SUB", (narrow,), 1 - position, extend=True), RELU)


def test_only_one_of_two_pads_can_be_an_operand() -> None:
    maker = Maker()
    padded = [maker.pad(maker.input(1, 4, 4, 3), *WIDER) for _ in range(2)]
    graph = maker.graph(maker.steps(padded[0], Stage("ADD", (padded[1],))))
    result = applied(pad_into_operand, graph)
    assert ops(result) == ["PAD", "COPY"]
    node = result.graph.nodes[1]
    assert node.inputs == (padded[1],)
    assert node.stages == (Stage("ADD", (graph.inputs[0],), 1, extend=True),)
    assert result.declined == ("PAD 1: not read by one element-wise step alone",)


def test_stays_where_it_appends_something_else_than_zeros() -> None:
    maker = Maker()
    wide, narrow = maker.input(1, 4, 4, 8), maker.input(1, 4, 4, 3)
    attributes = CopyAttributes(fill=3)
    padded = maker.node("PAD", [narrow], (1, 4, 4, 8), (), attributes)
    untouched(pad_into_operand, maker.graph(maker.steps(wide, Stage("INTEGER_MAXIMUM", (padded,)))))


def _output(maker: Maker, padded: int, wide: int) -> Graph:
    return maker.graph(maker.steps(wide, Stage("ADD", (padded,))), padded)


def _two_readers(maker: Maker, padded: int, wide: int) -> Graph:
    outputs = [maker.steps(wide, Stage(name, (padded,))) for name in ("ADD", "MUL")]
    return maker.graph(*outputs)


def _convolution(maker: Maker, padded: int, wide: int) -> Graph:
    return maker.graph(maker.conv(padded, 4), wide)


def _unary(maker: Maker, padded: int, wide: int) -> Graph:
    return maker.graph(maker.steps(padded, RELU), wide)


def _with_itself(maker: Maker, padded: int, wide: int) -> Graph:
    return maker.graph(maker.steps(padded, Stage("ADD", (SELF,))), wide)


def _twice(maker: Maker, padded: int, wide: int) -> Graph:
    steps = (Stage("ADD", (padded,)), Stage("MUL", (padded,)))
    return maker.graph(maker.steps(wide, *steps))


def _later_step(maker: Maker, padded: int, wide: int) -> Graph:
    return maker.graph(maker.steps(wide, RELU, Stage("ADD", (padded,))))


def _broadcast(maker: Maker, padded: int, wide: int) -> Graph:
    """The padded value is broadcast along the batch."""
    other = maker.input(2, 4, 4, 8)
    return maker.graph(maker.steps(other, Stage("ADD", (padded,))), wide)


def _narrow_other(maker: Maker, padded: int, wide: int) -> Graph:
    """The other operand is broadcast: it cannot run through the kernel."""
    other = maker.input(1, 1, 1, 8)
    return maker.graph(maker.steps(padded, Stage("ADD", (other,))), wide)


def _constant_other(maker: Maker, padded: int, wide: int) -> Graph:
    other = maker.constant(1, 4, 4, 8)
    return maker.graph(maker.steps(padded, Stage("ADD", (other,))), wide)


DECLINED: list[Callable[[Maker, int, int], Graph]] = [
    *(_output, _two_readers, _convolution, _unary, _with_itself, _twice, _later_step),
    *(_broadcast, _narrow_other, _constant_other),
]


@pytest.mark.parametrize("make", DECLINED)
def test_declines(make: Callable[[Maker, int, int], Graph]) -> None:
    maker = Maker()
    wide = maker.input(1, 4, 4, 8)
    padded = maker.pad(maker.input(1, 4, 4, 3), *WIDER)
    result = untouched(pad_into_operand, make(maker, padded, wide))
    assert result.declined == ("PAD 0: not read by one element-wise step alone",)


@pytest.mark.parametrize(
    "pads",
    [
        (NONE, NONE, NONE, (1, 4)),
        (NONE, (0, 1), NONE, (0, 5)),
        (NONE, (1, 0), NONE, NONE),
        ((0, 1), NONE, NONE, NONE),
    ],
)
def test_other_pads_are_left_alone(pads: tuple[tuple[int, int], ...]) -> None:
    maker = Maker()
    padded = maker.pad(maker.input(1, 4, 4, 3), *pads)
    wide = maker.input(*maker.shape(padded))
    graph = maker.graph(maker.steps(wide, Stage("ADD", (padded,))))
    assert untouched(pad_into_operand, graph).declined == ()


def test_a_pad_with_steps_is_left_alone() -> None:
    maker = Maker()
    padded = maker.pad(maker.input(1, 4, 4, 3), *WIDER, stages=[Stage("COS")])
    wide = maker.input(1, 4, 4, 8)
    graph = maker.graph(maker.steps(wide, Stage("ADD", (padded,))))
    assert untouched(pad_into_operand, graph).declined == ()


def _pads(model: Model, channels: int, wide: int) -> TensorRef:
    return model.pad(model.input(1, 4, 3, channels), NONE, NONE, NONE, (0, wide - channels))


def _residual(model: Model) -> list[TensorRef]:
    source = model.input(1, 4, 3, 4)
    wide = model.conv(source, (8, 3, 3, 4))
    padded = model.pad(source, NONE, NONE, NONE, (0, 4))
    return [model.op("ADD", wide, padded, fused_activation_function="RELU")]


def _residual_of_odd_channels(model: Model) -> list[TensorRef]:
    source = model.input(1, 4, 3, 5)
    wide = model.conv(source, (11, 3, 3, 5))
    return [model.op("SUB", model.pad(source, NONE, NONE, NONE, (0, 6)), wide)]


def _one_channel(model: Model) -> list[TensorRef]:
    """A single channel must not be broadcast to the channels it lacks."""
    return [model.op("SUB", _pads(model, 1, 6), model.input(1, 4, 3, 6))]


def _from_the_right(model: Model) -> list[TensorRef]:
    return [model.op("MAXIMUM", model.input(1, 4, 3, 9), _pads(model, 4, 9))]


def _both(model: Model) -> list[TensorRef]:
    return [model.op("SUB", _pads(model, 3, 8), _pads(model, 5, 8))]


def _narrow_value_from_a_concat(model: Model) -> list[TensorRef]:
    """The narrow value lies inside a wider one, whose channels must not be read as its own."""
    narrow = model.conv(model.input(1, 4, 3, 4), (4, 1, 1, 4))
    joined = model.concat(3, narrow, model.conv(model.input(1, 4, 3, 4), (8, 1, 1, 4)))
    wide = model.conv(joined, (12, 1, 1, 12))
    return [model.op("ADD", wide, model.pad(narrow, NONE, NONE, NONE, (0, 8)))]


MODELS: list[tuple[Write, int]] = [
    (_residual, 1),
    (_residual_of_odd_channels, 1),
    (_one_channel, 0),
    (_from_the_right, 0),
    (_both, 1),
    (_narrow_value_from_a_concat, 1),
]


@pytest.mark.parametrize(("write", "saved"), MODELS)
def test_keeps_the_numbers(write: Write, saved: int) -> None:
    check_numbers(write, "pad_into_operand", saved)
