"""A convolution between SPACE_TO_BATCH_ND and BATCH_TO_SPACE_ND becomes a dilated one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from litegpu.graph import EpilogueOp, Graph, Node
from litegpu.ops.base import get
from litegpu.ops.common.window import Window
from litegpu.ops.quantized_depthwise import QUANTIZED_DEPTHWISE, QuantizedDepthwiseAttributes
from litegpu.passes.blocks_into_dilation import blocks_into_dilation
from litegpu.zoo.writer import TensorRef
from passes.graphs import BY_POSITION, RELU, GraphBuilder, Shape, applied, functions, ops, untouched
from passes.models import Model, Write, check_numbers

Edges = tuple[tuple[int, int], ...]
SHAPE = (2, 8, 6, 4)
PADS: Edges = ((2, 2), (2, 2))
NONE: Edges = ((0, 0), (0, 0))


def _move(builder: GraphBuilder, op: str, source: int, sizes: tuple[int, ...], edges: Edges) -> int:
    """Add one of the two moves as its op is normalized."""
    operands = (source, builder.integers(sizes), builder.integers(edges))
    graph = Graph(builder.values, (), (), ())
    (shape,) = get(op).infer(graph, Node(0, op, 1, operands, ()))
    for v in operands[1:]:
        del builder.values[v]
    return builder.normalized(op, source, shape, sizes, edges)


def _cut(
    builder: GraphBuilder, source: int, sizes: tuple[int, ...] = (2, 2), edges: Edges = PADS
) -> int:
    return _move(builder, "SPACE_TO_BATCH_ND", source, sizes, edges)


def _join(
    builder: GraphBuilder, source: int, sizes: tuple[int, ...] = (2, 2), edges: Edges = NONE
) -> int:
    return _move(builder, "BATCH_TO_SPACE_ND", source, sizes, edges)


def _merged(graph: Graph) -> Node:
    """Return the convolution that is all that is left."""
    result = applied(blocks_into_dilation, graph)
    (node,) = result.graph.nodes
    assert node.inputs[0] == graph.inputs[0]
    assert node.outputs == graph.outputs
    assert result.declined == ()
    return node


def test_the_convolution_reads_the_whole_image() -> None:
    builder = GraphBuilder()
    batches = builder.depthwise(_cut(builder, builder.input(*SHAPE)))
    graph = builder.graph(_join(builder, batches))
    node = _merged(graph)
    assert node.op == "DEPTHWISE_CONV_2D"
    assert node.attributes.window == Window((3, 3), (1, 1), (2, 2), (2, 2))
    assert node.merged == (0, 2)
    assert applied(blocks_into_dilation, graph).applied == (
        "INDEX_MAP 0 and INDEX_MAP 2 into DEPTHWISE_CONV_2D 1",
    )


@pytest.mark.parametrize(
    ("sizes", "pads", "crops", "window"),
    [
        ((2, 2), ((2, 4), (2, 0)), ((0, 2), (0, 0)), Window((3, 3), (1, 1), (2, 2), (2, 2))),
        ((4, 3), ((4, 4), (3, 6)), ((1, 2), (2, 0)), Window((3, 3), (1, 1), (4, 3), (3, 1))),
        ((1, 2), ((0, 0), (1, 1)), NONE, Window((3, 3), (1, 1), (1, 2), (0, 1))),
        ((2, 2), ((0, 2), (0, 2)), ((2, 1), (1, 0)), Window((3, 3), (1, 1), (2, 2), (-2, -1))),
    ],
)
def test_paddings_and_crops_are_combined(
    sizes: tuple[int, ...], pads: Edges, crops: Edges, window: Window
) -> None:
    builder = GraphBuilder()
    batches = builder.depthwise(_cut(builder, builder.input(*SHAPE), sizes, pads))
    assert _merged(builder.graph(_join(builder, batches, sizes, crops))).attributes.window == window


def test_padding_and_dilation_inside_count_in_blocks() -> None:
    builder = GraphBuilder()
    cut = _cut(builder, builder.input(*SHAPE), edges=((0, 2), (1, 1)))
    batches = builder.conv(cut, 3, kernel=3)
    window = Window((3, 3), (1, 1), (1, 2), (1, 2))
    builder.nodes[-1] = replace(
        builder.nodes[-1], attributes=replace(builder.nodes[-1].attributes, window=window)
    )
    node = _merged(builder.graph(_join(builder, batches, edges=((1, 1), (0, 0)))))
    assert node.attributes.window == Window((3, 3), (1, 1), (2, 4), (0 + 2 - 1, 1 + 4 - 0))


def test_epilogue_ops_in_between_go_over_the_whole_image() -> None:
    builder = GraphBuilder()
    batches = builder.depthwise(_cut(builder, builder.input(*SHAPE)))
    epilogue_ops = builder.elementwise(batches, EpilogueOp("MUL", (builder.constant(4),)), RELU)
    epilogue_ops = builder.elementwise(epilogue_ops, EpilogueOp("ADD", (builder.number(1.0),)))
    graph = builder.graph(_join(builder, epilogue_ops))
    result = applied(blocks_into_dilation, graph)
    assert ops(result) == ["DEPTHWISE_CONV_2D", "COPY", "COPY"]
    first, second, third = result.graph.nodes
    assert (second.inputs, third.inputs) == (first.outputs, second.outputs)
    assert third.outputs == graph.outputs
    assert functions(second) == ["MUL", "RELU"]
    assert {result.graph.values[n.outputs[0]].shape for n in result.graph.nodes} == {SHAPE}


@pytest.mark.parametrize("upright", [False, True])
def test_sequences_that_are_seen_as_images(upright: bool) -> None:
    builder = GraphBuilder()
    batches = _cut(builder, builder.input(2, 9, 4), (2,), ((2, 1),))
    image = builder.node("RESHAPE", [batches], (4, 6, 1, 4) if upright else (4, 1, 6, 4))
    output = builder.conv(image, 5)
    output = builder.elementwise(output, RELU)
    flat = builder.elementwise(builder.node("RESHAPE", [output], (4, 6, 5)), EpilogueOp("ABS"))
    graph = builder.graph(_join(builder, flat, (2,), ((1, 0),)))
    result = applied(blocks_into_dilation, graph)
    assert ops(result) == ["RESHAPE", "CONV_2D", "COPY", "COPY", "RESHAPE"]
    assert result.graph.nodes[0].inputs == graph.inputs
    assert result.graph.nodes[-1].outputs == graph.outputs
    shapes = [result.graph.values[node.outputs[0]].shape for node in result.graph.nodes]
    whole_image = (2, 9, 1, 4) if upright else (2, 1, 9, 4)
    whole = (2, 11, 1, 5) if upright else (2, 1, 11, 5)
    assert shapes == [whole_image, whole, whole, whole, (2, 11, 5)]
    dilation, pads = ((2, 1), (1, 0)) if upright else ((1, 2), (0, 1))
    window = result.graph.nodes[1].attributes.window
    assert (window.dilation, window.pads) == (dilation, pads)


def test_batches_that_others_read_stay() -> None:
    builder = GraphBuilder()
    batches = _cut(builder, builder.input(*SHAPE))
    out = _join(builder, builder.depthwise(batches))
    result = applied(blocks_into_dilation, builder.graph(out, builder.conv(batches, 2)))
    assert ops(result) == ["INDEX_MAP", "DEPTHWISE_CONV_2D", "CONV_2D"]


def test_several_convolutions_of_the_same_batches() -> None:
    builder = GraphBuilder()
    batches = _cut(builder, builder.input(*SHAPE))
    outputs = [_join(builder, builder.depthwise(batches)) for _ in range(2)]
    result = applied(blocks_into_dilation, builder.graph(*outputs))
    assert ops(result) == ["DEPTHWISE_CONV_2D", "DEPTHWISE_CONV_2D"]


def test_computed_weights_stay() -> None:
    builder = GraphBuilder()
    source, taps = builder.input(*SHAPE), builder.input(1, 3, 3, 4)
    output = builder.depthwise(_cut(builder, source))
    reader = builder.nodes[-1]
    del builder.values[reader.attributes.weights]
    attached = replace(reader.attributes, weights=taps)
    builder.nodes[-1] = replace(reader, inputs=(*reader.inputs, taps), attributes=attached)
    result = applied(blocks_into_dilation, builder.graph(_join(builder, output)))
    assert result.graph.nodes[0].inputs == (source, taps)


# Declined


def _strides(builder: GraphBuilder) -> Graph:
    batches = builder.depthwise(_cut(builder, builder.input(*SHAPE)))
    node = builder.nodes[-1]
    window = replace(node.attributes.window, stride=(1, 2))
    builder.nodes[-1] = replace(node, attributes=replace(node.attributes, window=window))
    return builder.graph(_join(builder, batches))


def _other_blocks(builder: GraphBuilder) -> Graph:
    batches = builder.depthwise(_cut(builder, builder.input(*SHAPE)))
    return builder.graph(_join(builder, batches, (4, 1)))


def _read_elsewhere(builder: GraphBuilder) -> Graph:
    batches = builder.depthwise(_cut(builder, builder.input(*SHAPE)))
    return builder.graph(_join(builder, batches), builder.elementwise(batches, RELU))


def _output(builder: GraphBuilder) -> Graph:
    batches = builder.depthwise(_cut(builder, builder.input(*SHAPE)))
    return builder.graph(_join(builder, batches), batches)


def _no_join(builder: GraphBuilder) -> Graph:
    return builder.graph(builder.conv(builder.depthwise(_cut(builder, builder.input(*SHAPE))), 2))


def _pooled(builder: GraphBuilder) -> Graph:
    batches = builder.depthwise(_cut(builder, builder.input(*SHAPE)))
    pooled = builder.node("MAX_POOL_2D", [batches], builder.shape(batches))
    return builder.graph(_join(builder, pooled))


def _square(builder: GraphBuilder) -> Graph:
    batches = builder.depthwise(_cut(builder, builder.input(*SHAPE)))
    return builder.graph(
        _join(builder, builder.elementwise(batches, EpilogueOp("MUL", (batches,))))
    )


def _by_pixel(builder: GraphBuilder) -> Graph:
    batches = builder.depthwise(_cut(builder, builder.input(*SHAPE)))
    grid = builder.constant(4, 3, 1)
    return builder.graph(_join(builder, builder.elementwise(batches, EpilogueOp("MUL", (grid,)))))


def _own_epilogue_op_by_pixel(builder: GraphBuilder) -> Graph:
    batches = builder.depthwise(_cut(builder, builder.input(*SHAPE)))
    epilogue_op = EpilogueOp("ADD", (builder.constant(8, 1, 1, 4),))
    builder.nodes[-1] = replace(builder.nodes[-1], epilogue=(epilogue_op,))
    return builder.graph(_join(builder, batches))


def _broadcast(builder: GraphBuilder) -> Graph:
    batches = builder.conv(_cut(builder, builder.input(*SHAPE)), 1)
    wide = builder.elementwise(
        batches, EpilogueOp("MUL", (builder.constant(5),)), shape=(8, 6, 5, 5)
    )
    return builder.graph(_join(builder, wide))


def _reshaped_otherwise(builder: GraphBuilder) -> Graph:
    batches = _cut(builder, builder.input(2, 10, 4), (2,), ((1, 1),))
    output = builder.conv(builder.node("RESHAPE", [batches], (4, 2, 3, 4)), 5)
    return builder.graph(
        _join(builder, builder.node("RESHAPE", [output], (4, 6, 5)), (2,), ((0, 0),))
    )


def _reshaped_once(builder: GraphBuilder) -> Graph:
    batches = _cut(builder, builder.input(*SHAPE))
    flat = builder.node("RESHAPE", [builder.conv(batches, 4)], (8, 30, 4))
    return builder.graph(_join(builder, flat, (2,), ((0, 0),)))


_ALONE = "the result is not read by exactly one BATCH_TO_SPACE_ND"


def _by_position(builder: GraphBuilder) -> Graph:
    output = builder.depthwise(_cut(builder, builder.input(*SHAPE)))
    return builder.graph(_join(builder, builder.elementwise(output, BY_POSITION)))


def _of_bytes(builder: GraphBuilder, edges: Edges, crops: Edges, zero: int = 3) -> Graph:
    """Write a depthwise convolution of bytes with the zero point 3 between blocks."""
    cut = _cut(builder, builder.input(*SHAPE), edges=edges)
    moved = builder.nodes[-1]
    filled = replace(moved.attributes, fill=float(zero))
    builder.nodes[-1] = replace(moved, attributes=filled)
    output = builder.depthwise(cut)
    node = builder.nodes[-1]
    own = node.attributes
    attributes = QuantizedDepthwiseAttributes(own.window, own.weights, own.bias, 3, 0)
    builder.nodes[-1] = replace(node, op=QUANTIZED_DEPTHWISE, attributes=attributes)
    return builder.graph(_join(builder, output, edges=crops))


def test_blocks_of_bytes_are_filled_with_their_zero_point() -> None:
    node = _merged(_of_bytes(GraphBuilder(), PADS, NONE))
    assert node.attributes.window == Window((3, 3), (1, 1), (2, 2), (2, 2))


_PIXELS = "an epilogue op's operand differs from pixel to pixel"
_SHAPE = "the image has another shape than the blocks"
DECLINED: list[tuple[Callable[[GraphBuilder], Graph], str]] = [
    (_strides, "the convolution has strides"),
    (
        _other_blocks,
        "the blocks [2, 2] before the convolution differ from the blocks [4, 1] after it",
    ),
    (_read_elsewhere, _ALONE),
    (_output, _ALONE),
    (_no_join, _ALONE),
    (_pooled, _ALONE),
    (_square, _ALONE),
    (_by_pixel, _PIXELS),
    (_own_epilogue_op_by_pixel, _PIXELS),
    (_by_position, "an epilogue op depends on the positions of elements"),
    (
        partial(_of_bytes, edges=PADS, crops=NONE, zero=0),
        "the padding of the blocks is not the zero point of the convolution's input",
    ),
    (
        partial(_of_bytes, edges=((0, 2), (0, 2)), crops=((2, 1), (1, 0))),
        "quantized convolutions have no negative padding",
    ),
    (_broadcast, "an epilogue op broadcasts its result"),
    (_reshaped_otherwise, _SHAPE),
    (_reshaped_once, _SHAPE),
]


@pytest.mark.parametrize(("write", "reason"), DECLINED)
def test_declines_with_a_reason(write: Callable[[GraphBuilder], Graph], reason: str) -> None:
    builder = GraphBuilder()
    result = untouched(blocks_into_dilation, write(builder))
    ops = ("CONV_2D", "DEPTHWISE_CONV_2D", QUANTIZED_DEPTHWISE)
    (node,) = [n for n in builder.nodes if n.op in ops][:1]
    assert result.declined[0] == f"{node.op} {node.index} between blocks: {reason}"


def test_other_index_maps_are_no_blocks() -> None:
    builder = GraphBuilder()
    source = builder.input(*SHAPE)
    joined = _join(builder, _cut(builder, source))
    output = builder.conv(joined, 3)
    graph = builder.graph(builder.conv(builder.pad(output, *[(0, 0)] * 4), 2))
    assert untouched(blocks_into_dilation, graph).declined == ()


# Numbers


def _padded(padding: str, model: Model) -> list[TensorRef]:
    sizes = model.integers(2, 2)
    cut = (model.input(2, 7, 5, 5), sizes, model.integers((2, 3), (1, 2)))
    output = model.conv(model.op("SPACE_TO_BATCH_ND", *cut), (6, 3, 3, 5), padding)
    output = model.op("RELU", model.op("ADD", output, model.constant(6)))
    return [model.op("BATCH_TO_SPACE_ND", output, sizes, model.integers((0, 1), (1, 0)))]


def _computed_paddings(model: Model) -> list[TensorRef]:
    """Write paddings as converters do that did not know the image: computed from its shape."""

    def integers(name: str, *inputs: TensorRef, shape: Shape = (2,), **options: Any) -> TensorRef:
        return model.writer.op(name, inputs, [shape], options=options, dtype="int32")

    source, sizes = model.input(1, 9, 7, 4), model.integers(2, 2)
    size = integers("SHAPE", source, shape=(4,), out_type="INT32")
    inner = integers("STRIDED_SLICE", size, *(model.integers(n) for n in (1, 3, 1)))
    odd = integers("FLOOR_MOD", inner, sizes)
    edges = [(model.integers(2, 2), integers("ADD", odd, sizes)), (model.integers(0, 0), odd)]
    pads, crops = (integers("PACK", *pair, shape=(2, 2), axis=1, values_count=2) for pair in edges)
    output = model.depthwise(model.op("SPACE_TO_BATCH_ND", source, sizes, pads), 4)
    return [model.op("BATCH_TO_SPACE_ND", output, sizes, crops)]


def _sequence(model: Model) -> list[TensorRef]:
    cut = (model.input(2, 11, 5), model.integers(3), model.integers((6, 1)))
    batches = model.op("SPACE_TO_BATCH_ND", *cut)
    image = model.op("EXPAND_DIMS", batches, model.integers(1))
    output = model.conv(image, (4, 1, 3, 5), "VALID")
    flat = model.op("SQUEEZE", output, squeeze_dims=[1])
    return [model.op("BATCH_TO_SPACE_ND", flat, model.integers(3), model.integers((0, 1)))]


MODELS: list[tuple[Write, int]] = [
    (partial(_padded, "VALID"), 2),
    (partial(_padded, "SAME"), 2),
    (_computed_paddings, 2),
    (_sequence, 2),
]


@pytest.mark.parametrize(("write", "saved"), MODELS)
def test_keeps_the_numbers(write: Write, saved: int) -> None:
    check_numbers(write, "blocks_into_dilation", saved)
