"""Scales and shifts by constants before convolutions become part of their weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from cases.base import SUMS
from litegpu.graph import SELF, EpilogueOp, Graph
from litegpu.passes.scale_before_weights import scale_before_weights
from litegpu.zoo.writer import TensorRef
from passes.graphs import RELU, GraphBuilder, applied, ops, untouched
from passes.models import Model, Write, check_numbers

SHAPE = (1, 4, 4, 3)
CHANNELS = [1.0, 2.0, -4.0]


def _elementwise(builder: GraphBuilder, **numbers: float | list[float]) -> int:
    """Add epilogue ops to an input: a constant for each function."""
    epilogue = []
    for function, number in numbers.items():
        data = np.asarray(number, np.float32)
        epilogue.append(EpilogueOp(function, (builder.value(data.shape, data),)))
    return builder.elementwise(builder.input(*SHAPE), *epilogue)


def _data(graph: Graph, value: int) -> Any:
    return graph.values[value].data


def test_a_convolution_scales_its_inputs() -> None:
    builder = GraphBuilder()
    graph = builder.graph(builder.conv(_elementwise(builder, MUL=CHANNELS), 2, kernel=3))
    result = applied(scale_before_weights, graph)
    (node,) = result.graph.nodes
    assert node.inputs == graph.inputs
    assert node.merged == (0,)
    assert result.applied == ("COPY 0 into CONV_2D 1",)
    old = _data(graph, graph.nodes[1].attributes.weights)
    np.testing.assert_array_equal(_data(result.graph, node.attributes.weights), old * CHANNELS)


def test_a_shift_becomes_a_bias() -> None:
    builder = GraphBuilder()
    graph = builder.graph(builder.conv(_elementwise(builder, SUB=[1.0, 2.0, 3.0], DIV=2.0), 2))
    (node,) = applied(scale_before_weights, graph).graph.nodes
    result = applied(scale_before_weights, graph).graph
    old = _data(graph, graph.nodes[1].attributes.weights)
    np.testing.assert_array_equal(_data(result, result.nodes[0].attributes.weights), old / 2)
    expected = (old.reshape(2, 3) * [-0.5, -1.0, -1.5]).sum(axis=1)
    np.testing.assert_array_equal(_data(result, result.nodes[0].attributes.bias), expected)
    assert node.op == "CONV_2D"


def test_groups_have_their_own_inputs() -> None:
    builder = GraphBuilder()
    output = builder.conv(
        builder.elementwise(builder.input(1, 4, 4, 6), _by_channel(builder, 6)), 4
    )
    node = builder.nodes[-1]
    weights = builder.constant(4, 1, 1, 3)
    del builder.values[node.attributes.weights]
    attributes = replace(node.attributes, weights=weights, groups=2, shape=(4, 1, 1, 3))
    builder.nodes[-1] = replace(node, attributes=attributes)
    result = applied(scale_before_weights, builder.graph(output)).graph
    found = _data(result, result.nodes[0].attributes.weights).reshape(4, 3)
    old = np.arange(1, 13).reshape(4, 3)
    np.testing.assert_array_equal(found[:2], old[:2] * [1, 2, 3])
    np.testing.assert_array_equal(found[2:], old[2:] * [4, 5, 6])


def _by_channel(builder: GraphBuilder, channels: int) -> EpilogueOp:
    return EpilogueOp("MUL", (builder.constant(channels),))


def test_a_depthwise_convolution_repeats_its_inputs() -> None:
    builder = GraphBuilder()
    source = builder.elementwise(
        builder.input(1, 4, 4, 2),
        _by_channel(builder, 2),
        EpilogueOp("ADD", (builder.number(1.0),)),
    )
    output = builder.depthwise(source)
    node = builder.nodes.pop()
    weights = builder.constant(1, 3, 3, 4)
    del builder.values[node.attributes.weights]
    attributes = replace(node.attributes, weights=weights)
    builder.nodes.append(replace(node, attributes=attributes))
    builder.values[output] = replace(builder.values[output], shape=(1, 2, 2, 4))
    graph = builder.graph(output)
    result = applied(scale_before_weights, graph).graph
    old = _data(graph, weights)
    found = _data(result, result.nodes[0].attributes.weights)
    np.testing.assert_array_equal(found, old * [1, 1, 2, 2])
    bias = _data(result, result.nodes[0].attributes.bias)
    np.testing.assert_array_equal(bias, old.sum(axis=(0, 1, 2)))


def test_every_reader_is_changed() -> None:
    builder = GraphBuilder()
    scaled = _elementwise(builder, MUL=CHANNELS)
    graph = builder.graph(builder.conv(scaled, 2), builder.depthwise(scaled))
    result = applied(scale_before_weights, graph)
    assert ops(result) == ["CONV_2D", "DEPTHWISE_CONV_2D"]
    assert result.applied == ("COPY 0 into CONV_2D 1, DEPTHWISE_CONV_2D 2",)


# Declined


def _padded(builder: GraphBuilder) -> Graph:
    return builder.graph(builder.conv(_elementwise(builder, ADD=1.0), 2, kernel=3))


def _transposed(builder: GraphBuilder) -> Graph:
    output = builder.conv(_elementwise(builder, ADD=1.0), 2)
    builder.nodes[-1] = replace(builder.nodes[-1], op="TRANSPOSE_CONV")
    return builder.graph(output)


def _far(builder: GraphBuilder) -> Graph:
    return builder.graph(builder.conv(_elementwise(builder, SUB=[103.9, 116.8, 123.7]), 2))


def _also_pooled(builder: GraphBuilder) -> Graph:
    scaled = _elementwise(builder, MUL=2.0)
    return builder.graph(builder.conv(scaled, 2), builder.node("MAX_POOL_2D", [scaled], SHAPE))


def _residual(builder: GraphBuilder) -> Graph:
    scaled = _elementwise(builder, MUL=2.0)
    return builder.graph(builder.conv(scaled, 3, epilogue=[EpilogueOp("ADD", (scaled,))]))


def _operand(builder: GraphBuilder) -> Graph:
    other = builder.input(*SHAPE)
    scaled = _elementwise(builder, MUL=2.0)
    return builder.graph(builder.conv(other, 3, epilogue=[EpilogueOp("ADD", (scaled,))]))


def _output(builder: GraphBuilder) -> Graph:
    scaled = _elementwise(builder, MUL=2.0)
    return builder.graph(builder.conv(scaled, 2), scaled)


def _activated(builder: GraphBuilder) -> Graph:
    epilogue_op = EpilogueOp("MUL", (builder.number(2.0),))
    return builder.graph(
        builder.conv(builder.elementwise(builder.input(*SHAPE), epilogue_op, RELU), 2)
    )


def _broadcast(builder: GraphBuilder) -> Graph:
    wide = builder.elementwise(builder.input(1, 4, 4, 1), _by_channel(builder, 3), shape=SHAPE)
    return builder.graph(builder.conv(wide, 2))


def _unread(builder: GraphBuilder) -> Graph:
    _elementwise(builder, MUL=2.0)
    return builder.graph(builder.conv(builder.inputs[0], 2))


def _too_large(builder: GraphBuilder) -> Graph:
    return builder.graph(builder.conv(_elementwise(builder, MUL=1e6), 2))


_TO_WEIGHTS = "not only convolutions read the result"
DECLINED: list[tuple[Callable[[GraphBuilder], Graph], str]] = [
    (_padded, "CONV_2D 1: the convolution's padding is zero, which is not shifted"),
    (_transposed, "TRANSPOSE_CONV 1: the convolution's padding is zero, which is not shifted"),
    (_far, "CONV_2D 1: a shift beyond 16 would lose precision"),
    (_also_pooled, _TO_WEIGHTS),
    (_residual, "a convolution also has the result as another operand"),
    (_operand, _TO_WEIGHTS),
    (_output, "the result is an output of the partition"),
    (_activated, "RELU is no scale or shift by constants"),
    (_broadcast, "the epilogue op broadcasts its input"),
    (_unread, _TO_WEIGHTS),
    (_too_large, "CONV_2D 1: half storage could not hold the new weights"),
]


@pytest.mark.parametrize(("write", "reason"), DECLINED)
def test_declines_with_a_reason(write: Callable[[GraphBuilder], Graph], reason: str) -> None:
    result = untouched(scale_before_weights, write(GraphBuilder()))
    assert result.declined == (f"COPY 0 into the weights after it: {reason}",)


def test_one_reader_that_cannot_keeps_the_others_as_they_are() -> None:
    builder = GraphBuilder()
    shifted = _elementwise(builder, ADD=1.0)
    graph = builder.graph(builder.conv(shifted, 2), builder.conv(shifted, 2, kernel=3))
    result = untouched(scale_before_weights, graph)
    assert len(result.declined) == 1


def test_other_epilogue_ops_stay() -> None:
    builder = GraphBuilder()
    source = builder.input(*SHAPE)
    for epilogue_op in (
        RELU,
        EpilogueOp("MUL", (SELF,)),
        EpilogueOp("ADD", (builder.input(*SHAPE),)),
    ):
        builder.conv(builder.elementwise(source, epilogue_op), 2)
    graph = builder.graph(*(node.outputs[0] for node in builder.nodes if node.op == "CONV_2D"))
    assert untouched(scale_before_weights, graph).declined == ()


# Numbers


def _scaled_image(padding: str, model: Model) -> list[TensorRef]:
    scaled = model.op("MUL", model.input(2, 5, 4, 3), model.constant(3))
    return [model.conv(scaled, (6, 3, 3, 3), padding)]


def _shifted_image(model: Model) -> list[TensorRef]:
    shifted = model.op(
        "ADD", model.op("DIV", model.input(2, 5, 4, 3), model.number(4.0)), model.constant(3)
    )
    return [model.conv(shifted, (6, 3, 3, 3), "VALID"), model.depthwise(shifted, 3)]


def _inexact(model: Model) -> list[TensorRef]:
    image = model.op("SUB", model.input(2, 5, 4, 3), model.number(0.485))
    image = model.op("DIV", image, model.number(0.229))
    return [model.conv(image, (6, 3, 3, 3), "VALID")]


MODELS: list[tuple[Write, float]] = [
    (partial(_scaled_image, "SAME"), 0.0),
    (partial(_scaled_image, "VALID"), 0.0),
    (_shifted_image, 0.0),
    (_inexact, SUMS),
]


@pytest.mark.parametrize(("write", "tolerance"), MODELS)
def test_keeps_the_numbers(write: Write, tolerance: float) -> None:
    check_numbers(write, "scale_before_weights", 1, tolerance)
