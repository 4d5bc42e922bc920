"""Elementwise ops move before RESHAPE and CONCATENATION."""

from __future__ import annotations

import sys
from collections.abc import Callable

import pytest

from litegpu.graph import SELF, EpilogueOp, Graph
from litegpu.passes.hoist_elementwise import hoist_elementwise
from litegpu.zoo.writer import TensorRef
from passes.graphs import BY_POSITION, RELU, GraphBuilder, applied, functions, ops, untouched
from passes.models import Model, Write, check_numbers

SHAPE = (1, 4, 4, 8)


def test_above_a_reshape() -> None:
    builder = GraphBuilder()
    output = builder.conv(builder.input(*SHAPE), 8)
    flat = builder.node("RESHAPE", [output], (1, 128))
    out = builder.elementwise(
        flat, EpilogueOp("MUL", (builder.constant(1),)), EpilogueOp("ADD", (SELF,)), RELU
    )
    result = applied(hoist_elementwise, builder.graph(out))
    assert ops(result) == ["CONV_2D", "COPY", "RESHAPE"]
    _, epilogue_ops, view = result.graph.nodes
    assert epilogue_ops.inputs == (output,)
    assert functions(epilogue_ops) == ["MUL", "ADD", "RELU"]
    assert result.graph.values[epilogue_ops.outputs[0]].shape == SHAPE
    assert view.inputs == epilogue_ops.outputs
    assert view.outputs == (out,)
    assert result.applied == ("MUL+ADD+RELU above RESHAPE 1",)


def test_above_every_part_of_a_concatenation() -> None:
    builder = GraphBuilder()
    source = builder.input(*SHAPE)
    parts = [builder.conv(source, channels) for channels in (8, 4)]
    out = builder.elementwise(builder.concat(3, *parts), RELU)
    result = applied(hoist_elementwise, builder.graph(out))
    assert ops(result) == ["CONV_2D", "CONV_2D", "COPY", "COPY", "CONCATENATION"]
    first, second, joined = result.graph.nodes[2:]
    assert (first.inputs, second.inputs) == ((parts[0],), (parts[1],))
    assert joined.inputs == (*first.outputs, *second.outputs)
    assert [builder.shape(v) for v in parts] == [
        result.graph.values[v].shape for v in joined.inputs
    ]


def test_not_above_thousands_of_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[hoist_elementwise.__module__], "_MAX_COPIES", 3)
    builder = GraphBuilder()
    source = builder.input(*SHAPE)
    parts = [builder.conv(source, 4) for _ in range(3)]
    first = builder.elementwise(builder.concat(3, *parts), RELU)
    result = hoist_elementwise(builder.graph(builder.elementwise(first, RELU)))
    assert ops(result) == [*["CONV_2D"] * 3, *["COPY"] * 3, "CONCATENATION", "COPY"]
    (declined,) = result.declined
    assert declined.endswith("this pass already added 3 nodes")


def test_a_repeated_part_is_computed_for_each_place() -> None:
    builder = GraphBuilder()
    output = builder.conv(builder.input(*SHAPE), 4)
    result = applied(
        hoist_elementwise,
        builder.graph(builder.elementwise(builder.concat(3, output, output), RELU)),
    )
    epilogue_ops = [node for node in result.graph.nodes if node.op == "COPY"]
    assert [node.inputs for node in epilogue_ops] == [(output,), (output,)]
    assert epilogue_ops[0].outputs != epilogue_ops[1].outputs


def test_by_place_only_where_elements_keep_their_order() -> None:
    builder = GraphBuilder()
    flat = builder.node("RESHAPE", [builder.conv(builder.input(*SHAPE), 8)], (1, 128))
    result = applied(hoist_elementwise, builder.graph(builder.elementwise(flat, BY_POSITION)))
    assert ops(result) == ["CONV_2D", "COPY", "RESHAPE"]
    builder = GraphBuilder()
    parts = [builder.conv(builder.input(*SHAPE), 4) for _ in range(2)]
    graph = builder.graph(builder.elementwise(builder.concat(3, *parts), BY_POSITION))
    (line,) = untouched(hoist_elementwise, graph).declined
    assert line == (
        "epilogue ops after CONCATENATION 2: the results of the epilogue ops depend on the "
        "positions of elements"
    )


def test_tables_are_the_same_for_all_elements() -> None:
    builder = GraphBuilder()
    parts = [builder.conv(builder.input(*SHAPE), 4) for _ in range(2)]
    epilogue_op = EpilogueOp("LOOKUP_FLOAT32", (builder.constant(256),))
    graph = builder.graph(builder.elementwise(builder.concat(3, *parts), epilogue_op))
    assert ops(applied(hoist_elementwise, graph))[-1] == "CONCATENATION"


def test_through_several_views() -> None:
    builder = GraphBuilder()
    source = builder.input(*SHAPE)
    parts = [builder.node("RESHAPE", [builder.conv(source, 2)], (1, 1, 1, 32)) for _ in range(2)]
    out = builder.elementwise(
        builder.elementwise(builder.concat(3, *parts), RELU), EpilogueOp("NEG")
    )
    result = applied(hoist_elementwise, builder.graph(out))
    convolutions = [n.outputs[0] for n in result.graph.nodes if n.op == "CONV_2D"]
    first = [n for n in result.graph.nodes if n.op == "COPY" and n.inputs[0] in convolutions]
    assert [functions(node) for node in first] == [["RELU"], ["RELU"]]
    assert ops(result)[-1] == "CONCATENATION"
    assert len(result.applied) == 6


@pytest.mark.parametrize("shape", [(8,), (1, 1, 8)])
def test_by_channel_where_the_channels_stay(shape: tuple[int, ...]) -> None:
    builder = GraphBuilder()
    slope = builder.constant(*shape)
    parts = [_reshaped(builder), _reshaped(builder)]
    out = builder.elementwise(builder.concat(2, *parts), EpilogueOp("PRELU", (slope,)))
    result = applied(hoist_elementwise, builder.graph(out))
    assert ops(result)[-1] == "CONCATENATION"
    epilogue_ops = [node for node in result.graph.nodes if node.op == "COPY"]
    assert [node.epilogue[0].operands for node in epilogue_ops] == [(slope,), (slope,)]
    assert {result.graph.values[node.inputs[0]].shape for node in epilogue_ops} == {SHAPE}


def _reshaped(builder: GraphBuilder) -> int:
    return builder.node("RESHAPE", [builder.conv(builder.input(*SHAPE), 8)], (1, 1, 16, 8))


def _per_channel(builder: GraphBuilder) -> Graph:
    flat = builder.node("RESHAPE", [builder.conv(builder.input(*SHAPE), 8)], (1, 1, 32, 4))
    return builder.graph(builder.elementwise(flat, EpilogueOp("PRELU", (builder.constant(4),))))


def _per_joined_channel(builder: GraphBuilder) -> Graph:
    source = builder.input(*SHAPE)
    joined = builder.concat(3, builder.conv(source, 8), builder.conv(source, 8))
    return builder.graph(builder.elementwise(joined, EpilogueOp("PRELU", (builder.constant(16),))))


def _per_position(builder: GraphBuilder) -> Graph:
    return builder.graph(
        builder.elementwise(_reshaped(builder), EpilogueOp("PRELU", (builder.constant(1, 16, 8),)))
    )


def _computed_scalar(builder: GraphBuilder) -> Graph:
    return builder.graph(
        builder.elementwise(_reshaped(builder), EpilogueOp("MUL", (builder.input(1, 1, 1, 1),)))
    )


def _broadcast(builder: GraphBuilder) -> Graph:
    epilogue_op = EpilogueOp("MUL", (builder.input(2, 1, 16, 8),))
    return builder.graph(builder.elementwise(_reshaped(builder), epilogue_op, shape=(2, 1, 16, 8)))


def _two_readers(builder: GraphBuilder) -> Graph:
    flat = _reshaped(builder)
    return builder.graph(builder.elementwise(flat, RELU), builder.conv(flat, 2))


def _output(builder: GraphBuilder) -> Graph:
    flat = _reshaped(builder)
    return builder.graph(builder.elementwise(flat, RELU), flat)


def _of_an_input(builder: GraphBuilder) -> Graph:
    flat = builder.node("RESHAPE", [builder.input(*SHAPE)], (1, 1, 16, 8))
    return builder.graph(builder.elementwise(flat, RELU))


def _of_an_output(builder: GraphBuilder) -> Graph:
    output = builder.conv(builder.input(*SHAPE), 8)
    flat = builder.node("RESHAPE", [output], (1, 1, 16, 8))
    return builder.graph(builder.elementwise(flat, RELU), output)


def _of_a_constant(builder: GraphBuilder) -> Graph:
    output = builder.conv(builder.input(*SHAPE), 8)
    joined = builder.concat(3, output, builder.constant(*SHAPE))
    return builder.graph(builder.elementwise(joined, RELU))


_DIFFERS = "an operand differs from element to element"
_OUTSIDE = "the node reads an input, an output or a constant of the partition"
DECLINED: list[tuple[Callable[[GraphBuilder], Graph], str]] = [
    (_per_channel, f"RESHAPE 1: {_DIFFERS}"),
    (_per_joined_channel, f"CONCATENATION 2: {_DIFFERS}"),
    (_per_position, f"RESHAPE 1: {_DIFFERS}"),
    (_computed_scalar, f"RESHAPE 1: {_DIFFERS}"),
    (_broadcast, "RESHAPE 1: the epilogue ops broadcast their input"),
    (_two_readers, "RESHAPE 1: other nodes also read the value"),
    (_output, "RESHAPE 1: other nodes also read the value"),
    (_of_an_input, f"RESHAPE 0: {_OUTSIDE}"),
    (_of_an_output, f"RESHAPE 1: {_OUTSIDE}"),
    (_of_a_constant, f"CONCATENATION 1: {_OUTSIDE}"),
]


@pytest.mark.parametrize(("make", "reason"), DECLINED)
def test_declines(make: Callable[[GraphBuilder], Graph], reason: str) -> None:
    assert untouched(hoist_elementwise, make(GraphBuilder())).declined == (
        f"epilogue ops after {reason}",
    )


def test_epilogue_ops_elsewhere_are_left_alone() -> None:
    builder = GraphBuilder()
    source = builder.input(*SHAPE)
    pooled = builder.node("MAX_POOL_2D", [builder.elementwise(source, RELU)], SHAPE)
    assert (
        untouched(hoist_elementwise, builder.graph(builder.elementwise(pooled, RELU))).declined
        == ()
    )


def _after_reshape(model: Model) -> list[TensorRef]:
    output = model.conv(model.input(1, 4, 3, 5), (6, 1, 1, 5))
    return [model.op("NEG", model.op("RELU", model.reshape(output, 2, 6, 6)))]


def _after_concat(model: Model) -> list[TensorRef]:
    source = model.input(1, 4, 3, 5)
    parts = [model.conv(source, (channels, 1, 1, 5)) for channels in (8, 4, 3)]
    return [model.op("RELU6", model.concat(3, *parts))]


def _repeated(model: Model) -> list[TensorRef]:
    output = model.conv(model.input(1, 4, 3, 5), (4, 1, 1, 5))
    return [model.op("ABS", model.concat(2, output, output))]


def _heads(model: Model) -> list[TensorRef]:
    """The heads of a detector: reshaped, joined, squashed."""
    source = model.input(1, 4, 3, 5)
    first = model.reshape(model.conv(source, (6, 1, 1, 5)), 1, 36, 2)
    second = model.reshape(model.conv(model.max_pool(source), (2, 1, 1, 5)), 1, 12, 2)
    return [model.op("RELU", model.concat(1, first, second))]


def _with_scalar(model: Model) -> list[TensorRef]:
    output = model.conv(model.input(1, 4, 3, 5), (6, 1, 1, 5))
    return [model.op("SUB", model.constant(1, 1), model.reshape(output, 12, 6))]


def _with_prelu(model: Model) -> list[TensorRef]:
    output = model.conv(model.input(1, 4, 3, 5), (6, 1, 1, 5))
    return [model.op("PRELU", model.reshape(output, 1, 3, 4, 6), model.constant(3, 4, 6))]


MODELS: list[tuple[Write, int]] = [
    (_after_reshape, 1),
    (_after_concat, 1),
    (_repeated, 1),
    (_heads, 2),
    (_with_scalar, 1),
    (_with_prelu, 0),
]


@pytest.mark.parametrize(("write", "saved"), MODELS)
def test_keeps_the_numbers(write: Write, saved: int) -> None:
    check_numbers(write, "hoist_elementwise", saved)
