"""A pointwise convolution of few channels is computed where the channels are gathered."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from litegpu.graph import EpilogueOp, Graph
from litegpu.ops.channel_maps import CHANNEL_MAPS, ChannelMap, ChannelMapsAttributes
from litegpu.ops.common.lookups import Lookup
from litegpu.passes.matrix_into_channels import matrix_into_channels
from litegpu.zoo.writer import TensorRef
from passes.graphs import RELU, GraphBuilder, applied, untouched
from passes.models import Model, Write, check_numbers

IMAGE = (Lookup(0, (0,)), Lookup(1, (0, 1, 2)), Lookup(2, (0, 1)))


def _looked_up(builder: GraphBuilder, *epilogue: EpilogueOp) -> int:
    attributes = ChannelMapsAttributes(tuple(ChannelMap(IMAGE, c) for c in (2, 0)))
    source = builder.input(1, 3, 2, 3)
    return builder.node(CHANNEL_MAPS, [source], (1, 3, 2, 2), epilogue, attributes)


def test_the_matrix_has_a_row_for_each_result() -> None:
    builder = GraphBuilder()
    result = builder.conv(_looked_up(builder), 3, epilogue=[RELU])
    graph = builder.graph(result)
    (node,) = applied(matrix_into_channels, graph).graph.nodes
    assert node.attributes.matrix == ((1, 2, 0), (3, 4, 0), (5, 6, 0))
    assert (node.op, node.index, node.epilogue, node.merged) == (CHANNEL_MAPS, 1, (RELU,), (0,))


def _window(builder: GraphBuilder) -> Graph:
    return builder.graph(builder.conv(_looked_up(builder), 3, kernel=3))


def _wide(builder: GraphBuilder) -> Graph:
    return builder.graph(builder.conv(_looked_up(builder), 5))


def _no_convolution(builder: GraphBuilder) -> Graph:
    return builder.graph(builder.elementwise(_looked_up(builder), RELU))


def _output(builder: GraphBuilder) -> Graph:
    found = _looked_up(builder)
    return builder.graph(found, builder.conv(found, 3))


def _own_operand(builder: GraphBuilder) -> Graph:
    found = _looked_up(builder)
    return builder.graph(builder.conv(found, 2, epilogue=[EpilogueOp("ADD", (found,))]))


def _epilogue(builder: GraphBuilder) -> Graph:
    return builder.graph(builder.conv(_looked_up(builder, RELU), 3))


def _mixed(builder: GraphBuilder) -> Graph:
    found = _looked_up(builder)
    node = builder.nodes[-1]
    mixed = replace(node.attributes, matrix=((1.0, 0.0, 0.0), (0.0, 1.0, 0.0)))
    builder.nodes[-1] = replace(node, attributes=mixed)
    return builder.graph(builder.conv(found, 3))


_ALONE = "not read by one convolution alone"
DECLINED: list[tuple[Callable[[GraphBuilder], Graph], str]] = [
    (_window, "CONV_2D 1 is not only a matrix product over all channels"),
    (_mixed, "CONV_2D 1 is not only a matrix product over all channels"),
    (_wide, "CONV_2D 1 has computed weights, or more than 4 results"),
    (_no_convolution, _ALONE),
    (_output, _ALONE),
    (_own_operand, _ALONE),
    (_epilogue, "epilogue ops follow it"),
]


@pytest.mark.parametrize(("make", "reason"), DECLINED)
def test_declines(make: Callable[[GraphBuilder], Graph], reason: str) -> None:
    result = untouched(matrix_into_channels, make(GraphBuilder()))
    assert result.declined == (f"CHANNEL_MAPS 0: {reason}",)


def _mixed_channels(model: Model) -> list[TensorRef]:
    """Write a matrix of channels in another order."""
    source = model.op("NEG", model.input(2, 4, 3, 5))
    parts = []
    for first in (3, 0):
        bounds = ((0, 0, 0, first), (2, 4, 3, first + 2), (1, 1, 1, 1))
        parts.append(model.op("STRIDED_SLICE", source, *(model.integers(*b) for b in bounds)))
    return [model.op("ABS", model.conv(model.concat(3, *parts), (3, 1, 1, 4)))]


MODELS: list[tuple[Write, int]] = [(_mixed_channels, 1)]


@pytest.mark.parametrize(("write", "saved"), MODELS)
def test_keeps_the_numbers(write: Write, saved: int) -> None:
    check_numbers(write, "matrix_into_channels", saved)
