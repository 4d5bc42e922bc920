"""Two products that are added become one, of inputs that lie side by side."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from litegpu.graph import ABSENT, Graph, Stage
from litegpu.ops.base import as_float32
from litegpu.ops.conv_2d import ConvAttributes
from litegpu.ops.window import POINT
from litegpu.passes.join_products import join_products
from litegpu.zoo.writer import TensorRef
from passes.graphs import RELU, Maker, applied, functions, ops, untouched
from passes.models import Model, check_numbers

LEFT, RIGHT = (2, 3, 4, 8), (2, 3, 4, 6)
_PLACED = "the input of CONV_2D {} has a place already"
_OTHERS = "others read the result of CONV_2D 1"


def source(maker: Maker, shape: tuple[int, ...]) -> int:
    return maker.steps(maker.input(*shape), RELU)


def added(maker: Maker, left: int, right: int) -> int:
    return maker.steps(left, Stage("ADD", (right,)), RELU)


def biased(maker: Maker, bias: int) -> None:
    """Give the convolution that was added last a bias."""
    node = maker.nodes[-1]
    maker.nodes[-1] = replace(node, attributes=replace(node.attributes, bias=bias))


@pytest.mark.parametrize("swapped", [False, True], ids=["aligned first", "aligned second"])
def test_they_become_one(swapped: bool) -> None:
    maker = Maker()
    sources = source(maker, LEFT), source(maker, RIGHT)
    made = [maker.conv(v, 5) for v in sources]
    biased(maker, maker.constant(5))
    graph = maker.graph(added(maker, *(made[::-1] if swapped else made)))
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
    held = as_float32(result.graph.values[product.attributes.weights])
    np.testing.assert_array_equal(held, np.concatenate([left, right], axis=3))
    bias = as_float32(result.graph.values[product.attributes.bias])
    np.testing.assert_array_equal(bias, [1, 2, 3, 4, 5])
    assert result.applied == ("CONV_2D 2 and CONV_2D 3",)


def test_biases_are_added() -> None:
    maker = Maker()
    made = []
    for shape in (LEFT, RIGHT):
        made.append(maker.conv(source(maker, shape), 5))
        biased(maker, maker.constant(5))
    result = applied(join_products, maker.graph(added(maker, *made)))
    bias = as_float32(result.graph.values[result.graph.nodes[-1].attributes.bias])
    np.testing.assert_array_equal(bias, [2, 4, 6, 8, 10])


def test_dense_layers_are_joined_too() -> None:
    maker = Maker()
    made = []
    for depth in (16, 7):
        attributes = ConvAttributes(POINT, maker.constant(5, depth), ABSENT, (5, 1, 1, depth))
        value = source(maker, (3, depth))
        made.append(maker.node("FULLY_CONNECTED", [value], (3, 5), attributes=attributes))
    result = applied(join_products, maker.graph(added(maker, *made)))
    assert result.graph.nodes[-1].attributes.shape == (5, 1, 1, 23)


def test_an_input_lies_beside_one_other_only() -> None:
    maker = Maker()
    left, right, third = (source(maker, shape) for shape in (LEFT, RIGHT, RIGHT))
    sums = [added(maker, maker.conv(left, 5), maker.conv(v, 5)) for v in (right, third)]
    result = applied(join_products, maker.graph(*sums))
    assert len(result.applied) == 1
    assert result.declined == (f"CONV_2D 6 and CONV_2D 7: {_PLACED.format(6)}",)


def _of_an_input(maker: Maker) -> Graph:
    left = maker.steps(maker.input(*LEFT), RELU)
    right = maker.steps(maker.input(*RIGHT), RELU)
    return maker.graph(added(maker, maker.conv(left, 5), maker.conv(right, 5)), right)


def _an_output(maker: Maker) -> Graph:
    made = maker.conv(source(maker, LEFT), 5), maker.conv(source(maker, RIGHT), 5)
    return maker.graph(added(maker, *made), made[0])


def _read_elsewhere(maker: Maker) -> Graph:
    left = maker.conv(source(maker, LEFT), 5)
    right = maker.conv(source(maker, RIGHT), 5)
    return maker.graph(added(maker, left, right), maker.conv(left, 4))


def _a_step_between(maker: Maker) -> Graph:
    values = source(maker, LEFT), source(maker, RIGHT)
    left = maker.conv(values[0], 5, stages=[RELU])
    return maker.graph(added(maker, left, maker.conv(values[1], 5)))


def _a_window(maker: Maker) -> Graph:
    values = source(maker, LEFT), source(maker, RIGHT)
    return maker.graph(added(maker, maker.conv(values[0], 5, 3), maker.conv(values[1], 5)))


def _broadcast(maker: Maker) -> Graph:
    values = source(maker, LEFT), source(maker, (2, 1, 1, 6))
    return maker.graph(added(maker, maker.conv(values[0], 5), maker.conv(values[1], 5)))


def _no_whole_slices(maker: Maker) -> Graph:
    values = source(maker, (2, 3, 4, 12)), source(maker, RIGHT)
    return maker.graph(added(maker, maker.conv(values[0], 5), maker.conv(values[1], 5)))


def _of_a_reshape(maker: Maker) -> Graph:
    values = source(maker, LEFT), maker.reshape(source(maker, (2, 12, 6)), *RIGHT)
    return maker.graph(added(maker, maker.conv(values[0], 5), maker.conv(values[1], 5)))


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (_of_an_input, _PLACED.format(3)),
        (_an_output, _OTHERS),
        (_read_elsewhere, _OTHERS),
        (_a_step_between, "CONV_2D 2 is more than a product of each pixel"),
        (_a_window, "CONV_2D 2 is more than a product of each pixel"),
        (_broadcast, "one result is broadcast to the other"),
        (_no_whole_slices, "their inputs cannot lie side by side"),
        (_of_a_reshape, _PLACED.format(4)),
    ],
)
def test_declines(make: Callable[[Maker], Graph], reason: str) -> None:
    (declined,) = untouched(join_products, make(Maker())).declined
    assert declined.split(": ")[1] == reason


def test_computed_weights_stay_apart() -> None:
    maker = Maker()
    values = source(maker, LEFT), source(maker, RIGHT)
    left = maker.conv(values[0], 5)
    node = maker.nodes[-1]
    packed = maker.input(4, 16)
    del maker.values[node.attributes.weights]
    attributes = replace(node.attributes, weights=packed)
    maker.nodes[-1] = replace(node, inputs=(*node.inputs, packed), attributes=attributes)
    result = untouched(join_products, maker.graph(added(maker, left, maker.conv(values[1], 5))))
    (declined,) = result.declined
    assert "the weights of CONV_2D 2 are computed or form groups" in declined


def test_numbers_stay() -> None:
    check_numbers(_projection, "join_products", saved=1)


def _projection(model: Model) -> list[TensorRef]:
    x = model.op("RELU", model.input(2, 5, 4, 6))
    inner = model.conv(x, (8, 3, 3, 6))
    total = model.op("ADD", model.conv(inner, (7, 1, 1, 8)), model.conv(x, (7, 1, 1, 6)))
    return [model.op("RELU", total), model.conv(x, (3, 3, 3, 6))]
