"""A PAD of H and W becomes part of the convolutions and pools that read it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from litegpu.graph import ABSENT, EpilogueOp, Graph
from litegpu.ops.common.window import PoolAttributes, Window
from litegpu.ops.quantized_depthwise import QUANTIZED_DEPTHWISE, QuantizedDepthwiseAttributes
from litegpu.passes.pad_into_window import pad_into_window
from litegpu.zoo.writer import TensorRef
from passes.graphs import RELU, GraphBuilder, applied, ops, untouched
from passes.models import Model, Write, check_numbers

NONE = (0, 0)


def test_the_convolution_reads_the_unpadded_image() -> None:
    builder = GraphBuilder()
    source = builder.input(1, 6, 5, 3)
    padded = builder.pad(source, NONE, (1, 2), (2, 0), NONE)
    graph = builder.graph(builder.depthwise(padded))
    result = applied(pad_into_window, graph)
    (node,) = result.graph.nodes
    assert node.inputs == (source,)
    assert node.attributes.window.pads == (1, 2)
    assert node.merged == (0,)
    assert result.applied == ("PAD 0 into DEPTHWISE_CONV_2D 1",)


def test_it_adds_to_the_padding_that_is_there() -> None:
    builder = GraphBuilder()
    padded = builder.pad(builder.input(1, 6, 5, 3), NONE, (1, 0), (3, 0), NONE)
    result = applied(pad_into_window, builder.graph(builder.conv(padded, 4, kernel=3)))
    assert result.graph.nodes[0].attributes.window.pads == (2, 4)


def test_every_reader_is_changed() -> None:
    builder = GraphBuilder()
    source = builder.input(1, 6, 5, 4)
    padded = builder.pad(source, NONE, (1, 1), (1, 1), NONE)
    first, second = builder.conv(padded, 4), builder.depthwise(padded)
    result = applied(pad_into_window, builder.graph(first, second))
    assert ops(result) == ["CONV_2D", "DEPTHWISE_CONV_2D"]
    assert [node.inputs for node in result.graph.nodes] == [(source,), (source,)]
    assert [node.attributes.window.pads for node in result.graph.nodes] == [(1, 1), (1, 1)]
    assert result.applied == ("PAD 0 into CONV_2D 1, DEPTHWISE_CONV_2D 2",)


def test_computed_weights_stay() -> None:
    builder = GraphBuilder()
    source, taps = builder.input(1, 6, 5, 4), builder.input(1, 3, 3, 4)
    output = builder.depthwise(builder.pad(source, NONE, (1, 1), (1, 1), NONE))
    reader = builder.nodes[-1]
    del builder.values[reader.attributes.weights]
    attached = replace(reader.attributes, weights=taps)
    builder.nodes[-1] = replace(reader, inputs=(*reader.inputs, taps), attributes=attached)
    result = applied(pad_into_window, builder.graph(output))
    assert result.graph.nodes[0].inputs == (source, taps)


def _pool(builder: GraphBuilder, source: int, view: Window, size: tuple[int, int]) -> int:
    shape = (1, *size, builder.values[source].shape[3])
    return builder.node("MAX_POOL_2D", [source], shape, attributes=PoolAttributes(view))


def test_a_pool_counts_zeros_outside() -> None:
    builder = GraphBuilder()
    source = builder.input(1, 6, 5, 4)
    padded = builder.pad(source, NONE, (1, 1), (2, 0), NONE)
    graph = builder.graph(_pool(builder, padded, Window((2, 3), (2, 2)), (4, 3)))
    (node,) = applied(pad_into_window, graph).graph.nodes
    assert node.inputs == (source,)
    assert node.attributes == PoolAttributes(Window((2, 3), (2, 2), pads=(1, 2)), outside=0.0)


def _quantized(builder: GraphBuilder, fill: float) -> Graph:
    """A depthwise convolution of bytes whose zero point is 3, of an image padded with `fill`."""
    source, taps = builder.input(1, 6, 5, 4), builder.constant(1, 3, 3, 4, dtype="int8")
    padded = builder.pad(source, NONE, (1, 1), (1, 1), NONE)
    (pad,) = builder.nodes
    builder.nodes[0] = replace(pad, attributes=replace(pad.attributes, fill=fill))
    attributes = QuantizedDepthwiseAttributes(Window((3, 3), (1, 1)), taps, ABSENT, 3, 0)
    output = builder.node(QUANTIZED_DEPTHWISE, [padded], (1, 6, 5, 4), attributes=attributes)
    return builder.graph(output)


def test_a_border_of_zero_points_is_zero() -> None:
    result = applied(pad_into_window, _quantized(GraphBuilder(), 3.0))
    assert ops(result) == [QUANTIZED_DEPTHWISE]
    assert result.graph.nodes[0].attributes.window.pads == (1, 1)


def test_a_border_of_other_integers_stays() -> None:
    reason = "PAD 0: the padding value is not the zero point that a reader uses"
    assert untouched(pad_into_window, _quantized(GraphBuilder(), 0.0)).declined == (reason,)


def test_only_the_last_pad_of_two_has_a_convolution_after_it() -> None:
    builder = GraphBuilder()
    padded = builder.pad(builder.input(1, 6, 5, 4), NONE, (1, 1), (1, 1), NONE)
    again = builder.pad(padded, NONE, (1, 0), (0, 1), NONE)
    result = applied(pad_into_window, builder.graph(builder.conv(again, 2)))
    assert ops(result) == ["PAD", "CONV_2D"]
    assert result.graph.nodes[1].inputs == (padded,)
    assert result.declined == ("PAD 0: not only convolutions and pools read its result",)


def _output(builder: GraphBuilder) -> Graph:
    padded = builder.pad(builder.input(1, 6, 5, 4), NONE, (1, 1), (1, 1), NONE)
    return builder.graph(builder.conv(padded, 2), padded)


def _sum_too(builder: GraphBuilder) -> Graph:
    padded = builder.pad(builder.input(1, 6, 5, 4), NONE, (1, 1), (1, 1), NONE)
    return builder.graph(builder.conv(padded, 2), builder.node("MEAN", [padded], (1, 4)))


def _pool_that_pads(builder: GraphBuilder) -> Graph:
    """What the pool leaves out and what it counts as zero would be one border."""
    padded = builder.pad(builder.input(1, 6, 5, 4), NONE, (1, 1), (1, 1), NONE)
    return builder.graph(_pool(builder, padded, Window((2, 2), (1, 1)), (8, 7)))


def _with_epilogue(builder: GraphBuilder) -> Graph:
    source = builder.input(1, 6, 5, 4)
    padded = builder.pad(source, NONE, (1, 1), (1, 1), NONE, epilogue=[RELU])
    return builder.graph(builder.conv(padded, 2))


def _unread(builder: GraphBuilder) -> Graph:
    source = builder.input(1, 6, 5, 4)
    builder.pad(source, NONE, (1, 1), (1, 1), NONE)
    return builder.graph(builder.conv(source, 2))


def _data_and_operand(builder: GraphBuilder) -> Graph:
    padded = builder.pad(builder.input(1, 6, 5, 4), NONE, (1, 1), (1, 1), NONE)
    return builder.graph(builder.conv(padded, 4, epilogue=[EpilogueOp("ADD", (padded,))]))


def _operand_only(builder: GraphBuilder) -> Graph:
    source = builder.input(1, 6, 5, 4)
    padded = builder.pad(source, NONE, (1, 0), NONE, NONE)
    other = builder.input(1, 7, 5, 4)
    return builder.graph(builder.conv(other, 4, epilogue=[EpilogueOp("ADD", (padded,))]))


def _batch(builder: GraphBuilder) -> Graph:
    padded = builder.pad(builder.input(1, 6, 5, 4), (0, 1), (1, 1), (1, 1), NONE)
    return builder.graph(builder.conv(padded, 2))


def _channels(builder: GraphBuilder) -> Graph:
    padded = builder.pad(builder.input(1, 6, 5, 4), NONE, (1, 1), (1, 1), (1, 0))
    return builder.graph(builder.conv(padded, 2))


_MIXED = "not only convolutions and pools read its result"
_OPERAND = "a reader also has the result as another operand"
DECLINED: list[tuple[Callable[[GraphBuilder], Graph], str]] = [
    (_output, "the result is an output of the partition"),
    (_sum_too, _MIXED),
    (_pool_that_pads, "a window of a pool exceeds the image"),
    (_with_epilogue, _MIXED),
    (_unread, _MIXED),
    (_data_and_operand, _OPERAND),
    (_operand_only, _OPERAND),
    (_batch, "the node pads the batch or the channels"),
    (_channels, "the node pads the batch or the channels"),
]


@pytest.mark.parametrize(("make", "reason"), DECLINED)
def test_declines(make: Callable[[GraphBuilder], Graph], reason: str) -> None:
    assert untouched(pad_into_window, make(GraphBuilder())).declined == (f"PAD 0: {reason}",)


def test_padding_with_another_value_is_left_alone() -> None:
    builder = GraphBuilder()
    padded = builder.pad(builder.input(1, 6, 5, 4), NONE, (1, 1), (1, 1), NONE)
    builder.nodes[0] = replace(builder.nodes[0], op="PADV2")
    assert untouched(pad_into_window, builder.graph(builder.conv(padded, 2))).declined == ()


def _of_a_convolution(model: Model) -> list[TensorRef]:
    padded = model.pad(model.input(2, 4, 3, 5), NONE, (2, 0), (0, 3), NONE)
    return [model.conv(padded, (6, 3, 3, 5), "VALID")]


def _of_a_padded_convolution(model: Model) -> list[TensorRef]:
    padded = model.pad(model.input(1, 4, 3, 5), NONE, (1, 2), (3, 0), NONE)
    return [model.conv(padded, (3, 3, 3, 5), "SAME")]


def _of_two(model: Model) -> list[TensorRef]:
    padded = model.pad(model.input(1, 4, 3, 5), NONE, (1, 1), (1, 1), NONE)
    return [model.depthwise(padded, 5), model.conv(padded, (3, 2, 2, 5), "VALID")]


def _of_a_pool_too(model: Model) -> list[TensorRef]:
    source = model.op("NEG", model.op("ABS", model.input(1, 4, 3, 5)))
    padded = model.pad(source, NONE, (1, 1), (1, 1), NONE)
    return [model.max_pool(padded), model.conv(padded, (3, 2, 2, 5), "VALID")]


def _of_a_residual(model: Model) -> list[TensorRef]:
    padded = model.pad(model.input(1, 4, 3, 5), NONE, (1, 0), (0, 1), NONE)
    return [model.op("ADD", padded, model.conv(padded, (5, 1, 1, 5)))]


def _far_outside(model: Model) -> list[TensorRef]:
    """Some windows lie in the padding altogether."""
    padded = model.pad(model.input(1, 2, 2, 3), NONE, (4, 5), (5, 4), NONE)
    return [model.conv(padded, (4, 2, 2, 3), "VALID"), model.depthwise(padded, 3)]


MODELS: list[tuple[Write, int]] = [
    (_of_a_convolution, 1),
    (_of_a_padded_convolution, 1),
    (_of_two, 1),
    (_of_a_pool_too, 0),
    (_of_a_residual, 0),
    (_far_outside, 1),
]


@pytest.mark.parametrize(("write", "saved"), MODELS)
def test_keeps_the_numbers(write: Write, saved: int) -> None:
    check_numbers(write, "pad_into_window", saved)
