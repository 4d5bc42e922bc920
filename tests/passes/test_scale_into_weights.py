"""Constant scales and shifts after a convolution become part of its weights and bias."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from cases.base import SUMS
from litegpu.graph import ABSENT, SELF, EpilogueOp, Graph, Node
from litegpu.ops.common.window import POINT
from litegpu.ops.conv_2d import ConvAttributes
from litegpu.passes.scale_into_weights import scale_into_weights
from litegpu.zoo.writer import TensorRef
from passes.graphs import RELU, GraphBuilder, applied, functions, ops, untouched
from passes.models import Model, Write, check_numbers

SHAPE = (2, 3, 4, 5)


def _weights(graph: Graph, node: Node) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Return the weights and the bias (zeros for none) of a convolution."""
    weights = graph.values[node.attributes.weights].data
    assert weights is not None and weights.dtype == np.float32
    if node.attributes.bias == ABSENT:
        return weights, np.zeros(1, np.float32)
    bias = graph.values[node.attributes.bias].data
    assert bias is not None and bias.dtype == np.float32
    return weights, bias


def _epilogue_op(
    builder: GraphBuilder, function: str, number: float | list[float], position: int = 0
) -> EpilogueOp:
    """Return an epilogue op by a number, or by one for each channel."""
    data = np.asarray(number, np.float32)
    return EpilogueOp(function, (builder.value(data.shape, data),), position)


CHANNELS = [1.0, 2.0, -4.0]
STEPS: list[tuple[str, float | list[float], int, Any, Any]] = [
    ("MUL", CHANNELS, 0, CHANNELS, 0.0),
    ("MUL", 0.5, 1, 0.5, 0.0),
    ("ADD", CHANNELS, 1, 1.0, CHANNELS),
    ("SUB", CHANNELS, 0, 1.0, [-1.0, -2.0, 4.0]),
    ("SUB", 7.0, 1, -1.0, 7.0),
    ("DIV", CHANNELS, 0, [1.0, 0.5, -0.25], 0.0),
]


@pytest.mark.parametrize(("function", "number", "position", "factor", "shift"), STEPS)
def test_a_epilogue_op_becomes_part_of_weights_and_bias(
    function: str, number: float | list[float], position: int, factor: Any, shift: Any
) -> None:
    builder = GraphBuilder()
    output = builder.conv(builder.input(*SHAPE), 3, kernel=3)
    graph = builder.graph(
        builder.elementwise(output, _epilogue_op(builder, function, number, position))
    )
    result = applied(scale_into_weights, graph)
    (node,) = result.graph.nodes
    assert node.outputs == graph.outputs
    assert node.merged == (1,)
    assert result.applied == (f"{function} 1 into CONV_2D 0",)
    old, _ = _weights(graph, graph.nodes[0])
    weights, bias = _weights(result.graph, node)
    np.testing.assert_array_equal(weights, old * np.broadcast_to(factor, 3)[:, None, None, None])
    np.testing.assert_array_equal(bias, np.broadcast_to(shift, bias.shape))


def test_a_bias_is_scaled_too() -> None:
    builder = GraphBuilder()
    output = builder.conv(builder.input(*SHAPE), 3)
    bias = builder.constant(3)
    node = builder.nodes[-1]
    builder.nodes[-1] = replace(node, attributes=replace(node.attributes, bias=bias))
    epilogue_ops = [_epilogue_op(builder, "MUL", CHANNELS), _epilogue_op(builder, "ADD", 0.5)]
    result = applied(scale_into_weights, builder.graph(builder.elementwise(output, *epilogue_ops)))
    _, found = _weights(result.graph, result.graph.nodes[0])
    np.testing.assert_array_equal(found, [1.5, 4.5, -11.5])


def test_a_depthwise_convolution_has_its_channels_last() -> None:
    builder = GraphBuilder()
    output = builder.depthwise(builder.input(1, 4, 4, 3))
    graph = builder.graph(builder.elementwise(output, _epilogue_op(builder, "MUL", CHANNELS)))
    result = applied(scale_into_weights, graph)
    old, _ = _weights(graph, graph.nodes[0])
    weights, _ = _weights(result.graph, result.graph.nodes[0])
    np.testing.assert_array_equal(weights, old * np.asarray(CHANNELS, np.float32))


def test_a_matrix_is_scaled_by_rows() -> None:
    builder = GraphBuilder()
    matrix = builder.constant(3, 5)
    attributes = ConvAttributes(POINT, matrix, ABSENT, (3, 1, 1, 5))
    output = builder.node("FULLY_CONNECTED", [builder.input(2, 5)], (2, 3), attributes=attributes)
    graph = builder.graph(builder.elementwise(output, _epilogue_op(builder, "MUL", CHANNELS)))
    result = applied(scale_into_weights, graph)
    weights, _ = _weights(result.graph, result.graph.nodes[0])
    expected = np.arange(1, 16).reshape(3, 5) * np.asarray(CHANNELS)[:, None]
    np.testing.assert_array_equal(weights, expected)


def test_float16_weights_become_float32() -> None:
    builder = GraphBuilder()
    output = builder.conv(builder.input(*SHAPE), 3)
    attached = builder.nodes[-1].attributes.weights
    half = builder.constant(3, 1, 1, 5, dtype="float16")
    builder.nodes[-1] = replace(
        builder.nodes[-1], attributes=replace(builder.nodes[-1].attributes, weights=half)
    )
    del builder.values[attached]
    graph = builder.graph(builder.elementwise(output, _epilogue_op(builder, "MUL", 1 / 3)))
    result = applied(scale_into_weights, graph)
    weights, _ = _weights(result.graph, result.graph.nodes[0])
    np.testing.assert_allclose(weights.ravel(), np.arange(1, 16) / 3, rtol=1e-7)


def test_several_nodes_fold_one_by_one() -> None:
    builder = GraphBuilder()
    output = builder.conv(builder.input(*SHAPE), 3)
    output = builder.elementwise(output, _epilogue_op(builder, "MUL", CHANNELS))
    graph = builder.graph(builder.elementwise(output, _epilogue_op(builder, "ADD", 1.0)))
    result = applied(scale_into_weights, graph)
    assert ops(result) == ["CONV_2D"]
    assert result.graph.nodes[0].merged == (1, 2)


def test_what_follows_the_scale_stays_a_epilogue_op() -> None:
    builder = GraphBuilder()
    output = builder.conv(builder.input(*SHAPE), 3)
    epilogue_ops = [_epilogue_op(builder, "MUL", 2.0), RELU, _epilogue_op(builder, "ADD", 1.0)]
    result = applied(scale_into_weights, builder.graph(builder.elementwise(output, *epilogue_ops)))
    first, second = result.graph.nodes
    assert functions(second) == ["RELU", "ADD"]
    assert second.inputs == first.outputs


# Declined


def _scaled(
    builder: GraphBuilder, factor: float | list[float] = 2.0, epilogue: tuple[EpilogueOp, ...] = ()
) -> tuple[int, int]:
    output = builder.conv(builder.input(*SHAPE), 3, epilogue=epilogue)
    return output, builder.elementwise(output, _epilogue_op(builder, "MUL", factor))


def _activation(builder: GraphBuilder) -> Graph:
    return builder.graph(_scaled(builder, epilogue=(RELU,))[1])


def _two_readers(builder: GraphBuilder) -> Graph:
    output, scaled = _scaled(builder)
    return builder.graph(scaled, builder.elementwise(output, RELU))


def _output(builder: GraphBuilder) -> Graph:
    return builder.graph(*_scaled(builder))


def _broadcast(builder: GraphBuilder) -> Graph:
    output = builder.conv(builder.input(*SHAPE), 1)
    epilogue_op = _epilogue_op(builder, "MUL", CHANNELS)
    return builder.graph(builder.elementwise(output, epilogue_op, shape=(2, 3, 4, 3)))


def _computed_weights(builder: GraphBuilder) -> Graph:
    _, scaled = _scaled(builder)
    node, packed = builder.nodes[0], builder.input(10, 16)
    del builder.values[node.attributes.weights]
    attributes = replace(node.attributes, weights=packed)
    builder.nodes[0] = replace(node, inputs=(*node.inputs, packed), attributes=attributes)
    return builder.graph(scaled)


def _shared_weights(builder: GraphBuilder) -> Graph:
    _, scaled = _scaled(builder)
    first = builder.nodes[0]
    other = builder.node(
        "CONV_2D", [builder.input(*SHAPE)], (2, 3, 4, 3), attributes=first.attributes
    )
    return builder.graph(scaled, other)


def _many_weights(builder: GraphBuilder) -> Graph:
    output = builder.conv(builder.input(1, 2, 2, 1 << 15), 129)
    return builder.graph(builder.elementwise(output, _epilogue_op(builder, "MUL", 2.0)))


_NOT_HALF = "half storage could not hold the new weights"
DECLINED: list[tuple[Callable[[GraphBuilder], Graph], str]] = [
    (_activation, "an epilogue op is in between"),
    (_two_readers, "other nodes also read the result"),
    (_output, "other nodes also read the result"),
    (_broadcast, "the epilogue op broadcasts its result"),
    (_computed_weights, "the weights are computed"),
    (_shared_weights, "other nodes share the weights"),
    (_many_weights, "with weights so large, an epilogue op costs nothing"),
    (lambda builder: builder.graph(_scaled(builder, 1e5)[1]), _NOT_HALF),
    (lambda builder: builder.graph(_scaled(builder, [1.0, 1e-6, 1.0])[1]), _NOT_HALF),
    (
        lambda builder: builder.graph(_scaled(builder, 1e38)[1]),
        "float32 cannot hold the new weights",
    ),
]


@pytest.mark.parametrize(("write", "reason"), DECLINED)
def test_declines_with_a_reason(write: Callable[[GraphBuilder], Graph], reason: str) -> None:
    result = untouched(scale_into_weights, write(GraphBuilder()))
    assert result.declined == (f"MUL 1 into CONV_2D 0: {reason}",)


def test_a_channel_that_is_switched_off_is_no_obstacle() -> None:
    builder = GraphBuilder()
    applied(scale_into_weights, builder.graph(_scaled(builder, [1.0, 0.0, 1.0])[1]))


OTHERS: dict[str, Callable[[GraphBuilder, int], int]] = {
    "activation": lambda builder, v: builder.elementwise(v, RELU),
    "square": lambda builder, v: builder.elementwise(v, EpilogueOp("MUL", (SELF,))),
    "by pixel": lambda builder, v: builder.elementwise(
        v, EpilogueOp("MUL", (builder.constant(3, 4, 1),))
    ),
    "by batch": lambda builder, v: builder.elementwise(
        v, EpilogueOp("MUL", (builder.constant(2, 1, 1, 3),))
    ),
    "computed": lambda builder, v: builder.elementwise(
        v, EpilogueOp("MUL", (builder.input(2, 1, 1, 3),))
    ),
    "divisor": lambda builder, v: builder.elementwise(
        v, EpilogueOp("DIV", (builder.constant(3),), 1)
    ),
    "division by zero": lambda builder, v: builder.elementwise(
        v, _epilogue_op(builder, "DIV", [1.0, 0.0, 1.0])
    ),
    "infinity": lambda builder, v: builder.elementwise(
        v, _epilogue_op(builder, "MUL", float("inf"))
    ),
    "power": lambda builder, v: builder.elementwise(v, EpilogueOp("POW", (builder.number(2.0),))),
    "pooled": lambda builder, v: builder.elementwise(
        builder.node("MAX_POOL_2D", [v], (2, 3, 4, 3)), _epilogue_op(builder, "MUL", 2.0)
    ),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_other_epilogue_ops_stay(kind: str) -> None:
    builder = GraphBuilder()
    graph = builder.graph(OTHERS[kind](builder, builder.conv(builder.input(*SHAPE), 3)))
    assert untouched(scale_into_weights, graph).declined == ()


# Numbers


def _normalized(model: Model) -> list[TensorRef]:
    """Batch normalization that the converter left behind the convolution."""
    output = model.conv(model.input(2, 5, 4, 5), (7, 3, 3, 5))
    scaled = model.op("MUL", output, model.constant(7))
    return [model.op("ADD", scaled, model.constant(7), fused_activation_function="RELU6")]


def _of_every_kind(model: Model) -> list[TensorRef]:
    source = model.input(1, 4, 3, 5)
    size = model.integers(1, 8, 6, 4)
    options = {"padding": "SAME", "stride_h": 2, "stride_w": 2}
    grown = model.op("TRANSPOSE_CONV", size, model.constant(4, 3, 3, 5), source, **options)
    grown = model.op("SUB", model.number(3.0), grown)
    deep = model.op("MUL", model.depthwise(grown, 4), model.constant(4))
    flat = model.reshape(deep, 6, 16)
    scores = model.op("FULLY_CONNECTED", flat, model.constant(3, 16), model.constant(3))
    return [model.op("SUB", scores, model.constant(3))]


def _thirds(model: Model) -> list[TensorRef]:
    output = model.conv(model.input(2, 5, 4, 5), (7, 3, 3, 5))
    return [model.op("DIV", model.op("ADD", output, model.number(0.1)), model.number(3.0))]


MODELS: list[tuple[Write, float]] = [(_normalized, 0.0), (_of_every_kind, 0.0), (_thirds, SUMS)]


@pytest.mark.parametrize(("write", "tolerance"), MODELS)
def test_keeps_the_numbers(write: Write, tolerance: float) -> None:
    check_numbers(write, "scale_into_weights", 0, tolerance)
