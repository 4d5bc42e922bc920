"""A PAD that appends channels becomes part of the elementwise op that reads it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from litegpu.graph import SELF, EpilogueOp, Graph
from litegpu.ops.copy import CopyAttributes
from litegpu.passes.pad_into_operand import pad_into_operand
from litegpu.zoo.writer import TensorRef
from passes.graphs import RELU, GraphBuilder, applied, ops, untouched
from passes.models import Model, Write, check_numbers

NONE = (0, 0)
WIDER = (NONE, NONE, NONE, (0, 5))


def test_the_epilogue_op_reads_the_narrow_operand() -> None:
    builder = GraphBuilder()
    narrow, wide = builder.input(1, 4, 4, 3), builder.input(1, 4, 4, 8)
    padded = builder.pad(narrow, *WIDER)
    graph = builder.graph(builder.elementwise(wide, EpilogueOp("SUB", (padded,), 1), RELU))
    result = applied(pad_into_operand, graph)
    (node,) = result.graph.nodes
    assert node.inputs == (wide,)
    assert node.epilogue == (EpilogueOp("SUB", (narrow,), 1, extend=True), RELU)
    assert node.merged == (0,)
    assert result.applied == ("PAD 0 into COPY 1",)


@pytest.mark.parametrize("position", [0, 1])
def test_the_other_operand_runs_through_when_the_pad_did(position: int) -> None:
    builder = GraphBuilder()
    narrow, wide = builder.input(1, 4, 4, 3), builder.input(1, 4, 4, 8)
    padded = builder.pad(narrow, *WIDER)
    graph = builder.graph(builder.elementwise(padded, EpilogueOp("SUB", (wide,), position), RELU))
    (node,) = applied(pad_into_operand, graph).graph.nodes
    assert node.inputs == (wide,)
    assert node.epilogue == (EpilogueOp("SUB", (narrow,), 1 - position, extend=True), RELU)


def test_only_one_of_two_pads_can_be_an_operand() -> None:
    builder = GraphBuilder()
    padded = [builder.pad(builder.input(1, 4, 4, 3), *WIDER) for _ in range(2)]
    graph = builder.graph(builder.elementwise(padded[0], EpilogueOp("ADD", (padded[1],))))
    result = applied(pad_into_operand, graph)
    assert ops(result) == ["PAD", "COPY"]
    node = result.graph.nodes[1]
    assert node.inputs == (padded[1],)
    assert node.epilogue == (EpilogueOp("ADD", (graph.inputs[0],), 1, extend=True),)
    assert result.declined == ("PAD 1: not read by one element-wise op alone",)


def test_stays_where_it_appends_something_else_than_zeros() -> None:
    builder = GraphBuilder()
    wide, narrow = builder.input(1, 4, 4, 8), builder.input(1, 4, 4, 3)
    attributes = CopyAttributes(fill=3)
    padded = builder.node("PAD", [narrow], (1, 4, 4, 8), (), attributes)
    untouched(
        pad_into_operand,
        builder.graph(builder.elementwise(wide, EpilogueOp("INTEGER_MAXIMUM", (padded,)))),
    )


def _output(builder: GraphBuilder, padded: int, wide: int) -> Graph:
    return builder.graph(builder.elementwise(wide, EpilogueOp("ADD", (padded,))), padded)


def _two_readers(builder: GraphBuilder, padded: int, wide: int) -> Graph:
    outputs = [builder.elementwise(wide, EpilogueOp(name, (padded,))) for name in ("ADD", "MUL")]
    return builder.graph(*outputs)


def _convolution(builder: GraphBuilder, padded: int, wide: int) -> Graph:
    return builder.graph(builder.conv(padded, 4), wide)


def _unary(builder: GraphBuilder, padded: int, wide: int) -> Graph:
    return builder.graph(builder.elementwise(padded, RELU), wide)


def _with_itself(builder: GraphBuilder, padded: int, wide: int) -> Graph:
    return builder.graph(builder.elementwise(padded, EpilogueOp("ADD", (SELF,))), wide)


def _twice(builder: GraphBuilder, padded: int, wide: int) -> Graph:
    epilogue_ops = (EpilogueOp("ADD", (padded,)), EpilogueOp("MUL", (padded,)))
    return builder.graph(builder.elementwise(wide, *epilogue_ops))


def _later_epilogue_op(builder: GraphBuilder, padded: int, wide: int) -> Graph:
    return builder.graph(builder.elementwise(wide, RELU, EpilogueOp("ADD", (padded,))))


def _broadcast(builder: GraphBuilder, padded: int, wide: int) -> Graph:
    """The padded value is broadcast along the batch."""
    other = builder.input(2, 4, 4, 8)
    return builder.graph(builder.elementwise(other, EpilogueOp("ADD", (padded,))), wide)


def _narrow_other(builder: GraphBuilder, padded: int, wide: int) -> Graph:
    """The other operand is broadcast: it cannot run through the kernel."""
    other = builder.input(1, 1, 1, 8)
    return builder.graph(builder.elementwise(padded, EpilogueOp("ADD", (other,))), wide)


def _constant_other(builder: GraphBuilder, padded: int, wide: int) -> Graph:
    other = builder.constant(1, 4, 4, 8)
    return builder.graph(builder.elementwise(padded, EpilogueOp("ADD", (other,))), wide)


DECLINED: list[Callable[[GraphBuilder, int, int], Graph]] = [
    *(_output, _two_readers, _convolution, _unary, _with_itself, _twice, _later_epilogue_op),
    *(_broadcast, _narrow_other, _constant_other),
]


@pytest.mark.parametrize("make", DECLINED)
def test_declines(make: Callable[[GraphBuilder, int, int], Graph]) -> None:
    builder = GraphBuilder()
    wide = builder.input(1, 4, 4, 8)
    padded = builder.pad(builder.input(1, 4, 4, 3), *WIDER)
    result = untouched(pad_into_operand, make(builder, padded, wide))
    assert result.declined == ("PAD 0: not read by one element-wise op alone",)


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
    builder = GraphBuilder()
    padded = builder.pad(builder.input(1, 4, 4, 3), *pads)
    wide = builder.input(*builder.shape(padded))
    graph = builder.graph(builder.elementwise(wide, EpilogueOp("ADD", (padded,))))
    assert untouched(pad_into_operand, graph).declined == ()


def test_a_pad_with_epilogue_ops_is_left_alone() -> None:
    builder = GraphBuilder()
    padded = builder.pad(builder.input(1, 4, 4, 3), *WIDER, epilogue=[EpilogueOp("COS")])
    wide = builder.input(1, 4, 4, 8)
    graph = builder.graph(builder.elementwise(wide, EpilogueOp("ADD", (padded,))))
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
