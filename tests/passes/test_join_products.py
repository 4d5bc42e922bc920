"""The sum of two convolutions becomes one convolution of concatenated inputs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from litegpu.graph import ABSENT, EpilogueOp, Graph
from litegpu.ops.base import as_float32
from litegpu.ops.common.window import POINT
from litegpu.ops.conv_2d import ConvAttributes
from litegpu.passes.join_products import join_products
from litegpu.zoo.writer import TensorRef
from passes.graphs import RELU, GraphBuilder, applied, functions, ops, untouched
from passes.models import Model, check_numbers

LEFT, RIGHT = (2, 3, 4, 8), (2, 3, 4, 6)
_PLACED = "the input of CONV_2D {} has a fixed storage already"
_OTHERS = "other nodes also read the result of CONV_2D 1"


def source(builder: GraphBuilder, shape: tuple[int, ...]) -> int:
    return builder.elementwise(builder.input(*shape), RELU)


def added(builder: GraphBuilder, left: int, right: int) -> int:
    return builder.elementwise(left, EpilogueOp("ADD", (right,)), RELU)


def biased(builder: GraphBuilder, bias: int) -> None:
    """Give the convolution that was added last a bias."""
    node = builder.nodes[-1]
    builder.nodes[-1] = replace(node, attributes=replace(node.attributes, bias=bias))


@pytest.mark.parametrize("swapped", [False, True], ids=["aligned first", "aligned second"])
def test_they_become_one(swapped: bool) -> None:
    builder = GraphBuilder()
    sources = source(builder, LEFT), source(builder, RIGHT)
    output = [builder.conv(v, 5) for v in sources]
    biased(builder, builder.constant(5))
    graph = builder.graph(added(builder, *(output[::-1] if swapped else output)))
    result = applied(join_products, graph)
    assert ops(result) == ["COPY", "COPY", "CONCATENATION", "CONV_2D"]
    *_, joined, product = result.graph.nodes
    assert joined.inputs == sources, "the first has whole slices"
    assert product.inputs == joined.outputs
    assert functions(product) == ["RELU"]
    assert set(product.merged) == {3, 4}
    assert product.attributes.shape == (5, 1, 1, 14)
    values = graph.values
    left, right = (as_float32(values[n.attributes.weights]) for n in graph.nodes[2:4])
    attached = as_float32(result.graph.values[product.attributes.weights])
    np.testing.assert_array_equal(attached, np.concatenate([left, right], axis=3))
    bias = as_float32(result.graph.values[product.attributes.bias])
    np.testing.assert_array_equal(bias, [1, 2, 3, 4, 5])
    assert result.applied == ("CONV_2D 2 and CONV_2D 3",)


def test_biases_are_added() -> None:
    builder = GraphBuilder()
    output = []
    for shape in (LEFT, RIGHT):
        output.append(builder.conv(source(builder, shape), 5))
        biased(builder, builder.constant(5))
    result = applied(join_products, builder.graph(added(builder, *output)))
    bias = as_float32(result.graph.values[result.graph.nodes[-1].attributes.bias])
    np.testing.assert_array_equal(bias, [2, 4, 6, 8, 10])


def test_dense_layers_are_joined_too() -> None:
    builder = GraphBuilder()
    output = []
    for depth in (16, 7):
        attributes = ConvAttributes(POINT, builder.constant(5, depth), ABSENT, (5, 1, 1, depth))
        value = source(builder, (3, depth))
        output.append(builder.node("FULLY_CONNECTED", [value], (3, 5), attributes=attributes))
    result = applied(join_products, builder.graph(added(builder, *output)))
    assert result.graph.nodes[-1].attributes.shape == (5, 1, 1, 23)


def test_an_input_lies_beside_one_other_only() -> None:
    builder = GraphBuilder()
    left, right, third = (source(builder, shape) for shape in (LEFT, RIGHT, RIGHT))
    sums = [added(builder, builder.conv(left, 5), builder.conv(v, 5)) for v in (right, third)]
    result = applied(join_products, builder.graph(*sums))
    assert len(result.applied) == 1
    assert result.declined == (f"CONV_2D 6 and CONV_2D 7: {_PLACED.format(6)}",)


def _of_an_input(builder: GraphBuilder) -> Graph:
    left = builder.elementwise(builder.input(*LEFT), RELU)
    right = builder.elementwise(builder.input(*RIGHT), RELU)
    return builder.graph(added(builder, builder.conv(left, 5), builder.conv(right, 5)), right)


def _an_output(builder: GraphBuilder) -> Graph:
    output = builder.conv(source(builder, LEFT), 5), builder.conv(source(builder, RIGHT), 5)
    return builder.graph(added(builder, *output), output[0])


def _read_elsewhere(builder: GraphBuilder) -> Graph:
    left = builder.conv(source(builder, LEFT), 5)
    right = builder.conv(source(builder, RIGHT), 5)
    return builder.graph(added(builder, left, right), builder.conv(left, 4))


def _an_epilogue_op_between(builder: GraphBuilder) -> Graph:
    values = source(builder, LEFT), source(builder, RIGHT)
    left = builder.conv(values[0], 5, epilogue=[RELU])
    return builder.graph(added(builder, left, builder.conv(values[1], 5)))


def _a_window(builder: GraphBuilder) -> Graph:
    values = source(builder, LEFT), source(builder, RIGHT)
    return builder.graph(added(builder, builder.conv(values[0], 5, 3), builder.conv(values[1], 5)))


def _broadcast(builder: GraphBuilder) -> Graph:
    values = source(builder, LEFT), source(builder, (2, 1, 1, 6))
    return builder.graph(added(builder, builder.conv(values[0], 5), builder.conv(values[1], 5)))


def _no_whole_slices(builder: GraphBuilder) -> Graph:
    values = source(builder, (2, 3, 4, 12)), source(builder, RIGHT)
    return builder.graph(added(builder, builder.conv(values[0], 5), builder.conv(values[1], 5)))


def _of_a_reshape(builder: GraphBuilder) -> Graph:
    values = source(builder, LEFT), builder.reshape(source(builder, (2, 12, 6)), *RIGHT)
    return builder.graph(added(builder, builder.conv(values[0], 5), builder.conv(values[1], 5)))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (_of_an_input, _PLACED.format(3)),
        (_an_output, _OTHERS),
        (_read_elsewhere, _OTHERS),
        (_an_epilogue_op_between, "CONV_2D 2 is not only a product of each pixel"),
        (_a_window, "CONV_2D 2 is not only a product of each pixel"),
        (_broadcast, "one result is broadcast to the other"),
        (_no_whole_slices, "the inputs of the products cannot be stored next to each other"),
        (_of_a_reshape, _PLACED.format(4)),
    ],
)
def test_declines(make: Callable[[GraphBuilder], Graph], reason: str) -> None:
    (declined,) = untouched(join_products, make(GraphBuilder())).declined
    assert declined.split(": ")[1] == reason


def test_computed_weights_stay_apart() -> None:
    builder = GraphBuilder()
    values = source(builder, LEFT), source(builder, RIGHT)
    left = builder.conv(values[0], 5)
    node = builder.nodes[-1]
    packed = builder.input(4, 16)
    del builder.values[node.attributes.weights]
    attributes = replace(node.attributes, weights=packed)
    builder.nodes[-1] = replace(node, inputs=(*node.inputs, packed), attributes=attributes)
    result = untouched(
        join_products, builder.graph(added(builder, left, builder.conv(values[1], 5)))
    )
    (declined,) = result.declined
    assert "the weights of CONV_2D 2 are computed or form groups" in declined


def test_numbers_stay() -> None:
    check_numbers(_projection, "join_products", saved=1)


def _projection(model: Model) -> list[TensorRef]:
    x = model.op("RELU", model.input(2, 5, 4, 6))
    inner = model.conv(x, (8, 3, 3, 6))
    total = model.op("ADD", model.conv(inner, (7, 1, 1, 8)), model.conv(x, (7, 1, 1, 6)))
    return [model.op("RELU", total), model.conv(x, (3, 3, 3, 6))]
