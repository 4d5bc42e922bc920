"""Activations of slices of one value are applied before the value is sliced."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pytest

from litegpu.graph import EpilogueOp, Graph
from litegpu.passes.activations_before_slices import activations_before_slices
from litegpu.zoo.writer import TensorRef
from passes.graphs import RELU, GraphBuilder, Shape, applied, functions, ops, untouched
from passes.models import Model, check_numbers

SHAPE = (1, 3, 5, 24)
LOGISTIC, TANH = EpilogueOp("LOGISTIC"), EpilogueOp("TANH")


def cut(builder: GraphBuilder, source: int, begin: int, end: int, axis: int = 3) -> int:
    stops, starts = [*builder.shape(source)], [0] * 4
    starts[axis], stops[axis] = begin, end
    sizes = tuple(b - a for a, b in zip(starts, stops, strict=True))
    return builder.normalized("STRIDED_SLICE", source, sizes, starts, stops, [1] * 4)


def gates(builder: GraphBuilder, source: int, *activations: EpilogueOp) -> list[int]:
    """Add slices of equal width with activations."""
    width = builder.shape(source)[3] // len(activations)
    parts = [cut(builder, source, i * width, (i + 1) * width) for i in range(len(activations))]
    return [builder.elementwise(p, each) for p, each in zip(parts, activations, strict=True)]


def test_the_activations_of_gates() -> None:
    builder = GraphBuilder()
    source = builder.conv(builder.input(*SHAPE), 24)
    found = gates(builder, source, LOGISTIC, TANH, LOGISTIC)
    result = applied(activations_before_slices, builder.graph(*found))
    assert ops(result) == ["CONV_2D", "COPY", *["STRIDED_SLICE"] * 3]
    activation, *slices = result.graph.nodes[1:]
    assert activation.inputs == (source,)
    assert [each.inputs for each in slices] == [activation.outputs] * 3
    assert [each.outputs[0] for each in slices] == found
    assert functions(activation) == ["LOGISTIC_OR_TANH"]
    data = result.graph.values[activation.epilogue[0].operands[0]].data
    assert data is not None
    assert np.array_equal(data.ravel(), [0] * 8 + [1] * 8 + [0] * 8)


def test_one_activation_of_all() -> None:
    builder = GraphBuilder()
    found = gates(builder, builder.input(*SHAPE), TANH, TANH)
    result = applied(activations_before_slices, builder.graph(*found))
    assert [functions(each) for each in result.graph.nodes] == [["TANH"], [], []]


def _one(builder: GraphBuilder, source: int) -> list[int]:
    return [builder.elementwise(cut(builder, source, 0, 24), TANH)]


def _an_output(builder: GraphBuilder, source: int) -> list[int]:
    value = builder.conv(source, 24)
    return [value, *gates(builder, value, TANH, LOGISTIC)]


def _another_activation(builder: GraphBuilder, source: int) -> list[int]:
    return gates(builder, source, RELU, RELU)


def _rows(builder: GraphBuilder, source: int) -> list[int]:
    parts = [cut(builder, source, i, i + 1, 1) for i in range(3)]
    return [builder.elementwise(each, TANH) for each in parts]


@pytest.mark.parametrize("write", [_one, _an_output, _another_activation, _rows])
def test_what_has_no_gates(write: Callable[[GraphBuilder, int], list[int]]) -> None:
    builder = GraphBuilder()
    results = write(builder, builder.input(*SHAPE))
    assert untouched(activations_before_slices, builder.graph(*results)).declined == ()


def _another_part(builder: GraphBuilder, source: int) -> Graph:
    return builder.graph(*gates(builder, source, TANH, LOGISTIC), cut(builder, source, 0, 4))


def _read_twice(builder: GraphBuilder, source: int) -> Graph:
    part = cut(builder, source, 0, 12)
    other = builder.elementwise(cut(builder, source, 12, 24), TANH)
    return builder.graph(*(builder.elementwise(part, each) for each in (TANH, RELU)), other)


def _some_channels(builder: GraphBuilder, source: int) -> Graph:
    parts = [cut(builder, source, *each) for each in ((0, 8), (8, 16))]
    return builder.graph(*(builder.elementwise(each, TANH) for each in parts))


@pytest.mark.parametrize(
    ("write", "reason"),
    [
        (_another_part, "other nodes read other parts of the value"),
        (_read_twice, "other nodes read other parts of the value"),
        (_some_channels, "no node reads some of the channels"),
    ],
)
def test_why_it_declines(write: Callable[[GraphBuilder, int], Graph], reason: str) -> None:
    builder = GraphBuilder()
    (line,) = untouched(activations_before_slices, write(builder, builder.input(*SHAPE))).declined
    assert line.endswith(reason)


def _step(model: Model, shape: Shape, activations: Sequence[str]) -> list[TensorRef]:
    """Multiply the gates of a product."""
    channels = shape[3]
    width = channels // len(activations)
    source = model.conv(model.input(*shape), (channels, 1, 1, channels))
    source = model.op("MUL", source, model.number(0.0625))
    parts = []
    for i, each in enumerate(activations):
        sizes = [*shape[:3], width]
        operands = [source, model.integers(0, 0, 0, i * width), model.integers(*sizes)]
        parts.append(model.op(each, model.writer.op("SLICE", operands, [sizes])))
    first, second, third, *_ = parts
    return [model.op("ADD", model.op("MUL", first, second), model.op("MUL", second, third))]


@pytest.mark.parametrize(
    ("channels", "saved"),
    [(24, 2), (15, 0)],  # parts that begin in a channel block are copied
)
def test_keeps_the_numbers(channels: int, saved: int) -> None:
    step = partial(_step, shape=(1, 3, 5, channels), activations=("LOGISTIC", "TANH", "LOGISTIC"))
    check_numbers(step, "activations_before_slices", saved, 1e-5)
