"""Products of the slices of one value become one product."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from litegpu.graph import DType, Graph
from litegpu.passes.batch_products import batch_products
from litegpu.zoo.writer import TensorRef
from passes.graphs import GraphBuilder, Shape, applied, ops, untouched
from passes.models import Model, Write, check_numbers

STEPS, ITEMS, OUTPUTS = 4, 3, 5
NO_OTHER = "no other product has its weights"


class Builder(GraphBuilder):
    """Multiplies slices of a sequence."""

    def part(self, source: int, first: int, count: int = 1, axis: int = 0) -> int:
        shape = list(self.shape(source))
        begin = [0] * len(shape)
        begin[axis], shape[axis] = first, count
        operands = [source, self.integers(begin), self.integers(shape)]
        return self.node("SLICE", operands, tuple(shape))

    def step(self, source: int, number: int) -> int:
        """Gather a step; the result has no axis of steps."""
        found = self.node("GATHER", [source, self.integers(number)], self.shape(source)[1:])
        self.nodes[-1] = replace(self.nodes[-1], params={"axis": 0, "batch_dims": 0})
        return found

    def product(self, source: int, weights: int, activation: str = "none") -> int:
        shape = (*self.shape(source)[:-1], self.shape(weights)[0])
        found = self.node("FULLY_CONNECTED", [source, weights, -1], shape)
        self.nodes[-1] = replace(self.nodes[-1], params={"activation": activation})
        return found

    def joined(self, parts: list[int], shape: tuple[int, ...], activation: str = "none") -> int:
        found = self.node("CONCATENATION", parts, shape)
        params = {"axis": 0, "activation": activation}
        self.nodes[-1] = replace(self.nodes[-1], params=params)
        return found


def test_slices_of_a_sequence() -> None:
    builder = Builder()
    source, weights = builder.input(STEPS, ITEMS), builder.constant(OUTPUTS, ITEMS)
    outputs = [builder.product(builder.part(source, t), weights) for t in range(STEPS)]
    result = applied(batch_products, builder.graph(*outputs))
    assert ops(result) == ["FULLY_CONNECTED", *["SLICE"] * STEPS]
    product, *slices = result.graph.nodes
    assert product.inputs == (source, weights, -1)
    assert result.graph.values[product.outputs[0]].shape == (STEPS, OUTPUTS)
    assert [each.outputs[0] for each in slices] == outputs
    begins = [np.asarray(result.graph.values[each.inputs[1]].data) for each in slices]
    assert [each.tolist() for each in begins] == [[t, 0] for t in range(STEPS)]
    assert result.applied == ("FULLY_CONNECTED 1 and 3 others with its weights",)


def test_steps_with_a_batch() -> None:
    """The rows of a step are consecutive; the slices come before any later node."""
    builder = Builder()
    source, weights = builder.input(STEPS, 2, ITEMS), builder.constant(OUTPUTS, ITEMS)
    state, outputs = builder.input(2, OUTPUTS), []
    for t in range(STEPS):
        product = builder.product(builder.step(source, t), weights)
        state = builder.node("ADD", [product, state], (2, OUTPUTS))
        outputs.append(state)
    result = applied(batch_products, builder.graph(*outputs))
    expected = ["RESHAPE", "FULLY_CONNECTED", *["SLICE"] * STEPS, *["ADD"] * STEPS]
    assert ops(result) == expected
    assert result.graph.values[result.graph.nodes[1].outputs[0]].shape == (STEPS * 2, OUTPUTS)


def test_slices_that_other_nodes_read_remain() -> None:
    builder = Builder()
    source, weights = builder.input(STEPS, ITEMS), builder.constant(OUTPUTS, ITEMS)
    parts = [builder.part(source, t) for t in range(STEPS)]
    outputs = [builder.product(part, weights) for part in parts]
    graph = builder.graph(*outputs, builder.node("ABS", [parts[1]], (1, ITEMS)))
    expected = ["SLICE", "FULLY_CONNECTED", *["SLICE"] * STEPS, "ABS"]
    assert ops(applied(batch_products, graph)) == expected


def test_several_weights_are_several_products() -> None:
    builder = Builder()
    source = builder.input(STEPS, ITEMS)
    parts = [builder.part(source, t) for t in range(STEPS)]
    weights = [builder.constant(OUTPUTS, ITEMS) for _ in range(2)]
    outputs = [builder.product(part, each) for part in parts for each in weights]
    result = applied(batch_products, builder.graph(*outputs))
    assert ops(result).count("FULLY_CONNECTED") == 2
    assert len(result.applied) == 2


@pytest.mark.parametrize("activation", ["none", "relu"])
def test_a_join_of_all_parts_reads_the_product(activation: str) -> None:
    """A concatenation with an activation remains."""
    builder = Builder()
    source, weights = builder.input(STEPS, ITEMS), builder.constant(OUTPUTS, ITEMS)
    outputs = [builder.product(builder.part(source, t), weights, "relu") for t in range(STEPS)]
    whole = builder.joined(outputs, (STEPS, OUTPUTS), activation)
    result = applied(batch_products, builder.graph(whole))
    if activation == "none":
        assert ops(result)[-1] == "RESHAPE"
        assert "CONCATENATION" not in ops(result)
    else:
        assert ops(result)[-1] == "CONCATENATION"


def test_a_join_in_another_order_remains() -> None:
    builder = Builder()
    source, weights = builder.input(STEPS, ITEMS), builder.constant(OUTPUTS, ITEMS)
    outputs = [builder.product(builder.part(source, t), weights) for t in range(STEPS)]
    whole = builder.joined(outputs[::-1], (STEPS, OUTPUTS))
    assert ops(applied(batch_products, builder.graph(whole)))[-1] == "CONCATENATION"


def _one(builder: Builder, source: int, weights: int) -> list[int]:
    return [builder.product(builder.part(source, 0, STEPS), weights)]


def _other_options(builder: Builder, source: int, weights: int) -> list[int]:
    parts = builder.part(source, 0, 2), builder.part(source, 2, 2)
    return [
        builder.product(part, weights, activation)
        for part, activation in zip(parts, ("none", "relu"), strict=True)
    ]


def _few(builder: Builder, source: int, weights: int) -> list[int]:
    return [builder.product(builder.part(source, t), weights) for t in range(2)]


@pytest.mark.parametrize(
    ("write", "reasons"),
    [
        (_one, [f"FULLY_CONNECTED 1: {NO_OTHER}"]),
        (_other_options, [f"FULLY_CONNECTED {node}: {NO_OTHER}" for node in (2, 3)]),
        (_few, ["FULLY_CONNECTED 1: the products read only a part of the value"]),
    ],
)
def test_what_does_not_pay_off(
    write: Callable[[Builder, int, int], list[int]], reasons: list[str]
) -> None:
    builder = Builder()
    source, weights = builder.input(STEPS, ITEMS), builder.constant(OUTPUTS, ITEMS)
    graph = builder.graph(*write(builder, source, weights))
    assert untouched(batch_products, graph).declined == tuple(reasons)


def _computed_weights(builder: Builder) -> Graph:
    source, weights = builder.input(STEPS, ITEMS), builder.input(OUTPUTS, ITEMS)
    return builder.graph(*(builder.product(builder.part(source, t), weights) for t in range(STEPS)))


def _channels(builder: Builder) -> Graph:
    """The slices are of the items themselves."""
    source, weights = builder.input(2, 2 * ITEMS), builder.constant(OUTPUTS, ITEMS)
    parts = [builder.part(source, c, ITEMS, axis=1) for c in (0, ITEMS)]
    return builder.graph(*(builder.product(part, weights) for part in parts))


def _columns(builder: Builder) -> Graph:
    """The items of a step are not consecutive."""
    source, weights = builder.input(2, STEPS, ITEMS), builder.constant(OUTPUTS, ITEMS)
    parts = [builder.part(source, t, axis=1) for t in range(STEPS)]
    return builder.graph(*(builder.product(part, weights) for part in parts))


def _flattened(builder: Builder) -> Graph:
    """A row of the product is several items."""
    source, weights = builder.input(STEPS, 2, ITEMS), builder.constant(OUTPUTS, 2 * ITEMS)
    parts = [builder.part(source, t) for t in range(STEPS)]
    graph = builder.graph(*(builder.product(part, weights) for part in parts))
    values = {**graph.values}
    for node in graph.nodes:
        if node.op == "FULLY_CONNECTED":
            values[node.outputs[0]] = replace(values[node.outputs[0]], shape=(1, OUTPUTS))
    return replace(graph, values=values)


def _other_type(builder: Builder) -> Graph:
    """A slice whose type is not that of its source."""
    graph = builder.graph(*_few(builder, builder.input(2, ITEMS), builder.constant(5, ITEMS)))
    parts = {n.outputs[0]: DType.INT8 for n in graph.nodes if n.op == "SLICE"}
    return replace(
        graph,
        values={
            v: replace(each, dtype=parts.get(v, each.dtype)) for v, each in graph.values.items()
        },
    )


def _computed_source(builder: Builder) -> Graph:
    source = builder.node("ABS", [builder.input(STEPS, ITEMS)], (STEPS, ITEMS))
    return builder.graph(builder.product(source, builder.constant(OUTPUTS, ITEMS)))


@pytest.mark.parametrize(
    "write",
    [_computed_weights, _channels, _columns, _flattened, _other_type, _computed_source],
)
def test_what_is_no_product_of_a_slice(write: Callable[[Builder], Graph]) -> None:
    assert untouched(batch_products, write(Builder())).declined == ()


def _slice(model: Model, source: TensorRef, number: int, item: Shape) -> TensorRef:
    shape = (1, *item)
    begin = model.integers(number, *[0] * len(item))
    return model.writer.op("SLICE", [source, begin, model.integers(*shape)], [shape])


def _dense(model: Model) -> list[TensorRef]:
    """A recurrent layer whose input is a sequence."""
    source = model.input(6, ITEMS)
    weights, inner = model.constant(OUTPUTS, ITEMS), model.constant(OUTPUTS, OUTPUTS)
    state = model.input(1, OUTPUTS)
    for t in range(6):
        product = model.op("FULLY_CONNECTED", _slice(model, source, t, (ITEMS,)), weights)
        last = model.op("FULLY_CONNECTED", state, inner)
        state = model.op("MINIMUM", model.op("ADD", product, last), model.number(4.0))
    return [state]


def _images(model: Model) -> list[TensorRef]:
    """Convolutions of the pictures of a sequence."""
    source = model.input(3, 5, 6, 2)
    weights, bias, outputs = model.constant(4, 3, 3, 2), model.constant(4), []
    for t in range(3):
        part = _slice(model, source, t, (5, 6, 2))
        options = {"padding": "SAME", "stride_h": 1, "stride_w": 1}
        outputs.append(model.op("CONV_2D", part, weights, bias, **options))
    return [model.concat(0, *outputs)]


@pytest.mark.parametrize(("write", "saved"), [(_dense, 11), (_images, 5)])
def test_numbers_do_not_change(write: Write, saved: int) -> None:
    check_numbers(write, "batch_products", saved)
