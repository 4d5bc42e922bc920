"""A convolution between SPACE_TO_BATCH_ND and BATCH_TO_SPACE_ND becomes a dilated one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from litegpu.graph import Graph, Node, Stage
from litegpu.ops.base import get
from litegpu.ops.window import Window
from litegpu.passes.blocks_into_dilation import blocks_into_dilation
from litegpu.zoo.writer import TensorRef
from passes.graphs import RELU, Maker, Shape, applied, functions, ops, untouched
from passes.models import Model, Write, check_numbers

Edges = tuple[tuple[int, int], ...]
SHAPE = (2, 8, 6, 4)
PADS: Edges = ((2, 2), (2, 2))
NONE: Edges = ((0, 0), (0, 0))


def _move(maker: Maker, op: str, source: int, sizes: tuple[int, ...], edges: Edges) -> int:
    """Add one of the two moves as its op is normalized."""
    operands = (source, maker.integers(sizes), maker.integers(edges))
    graph = Graph(maker.values, (), (), ())
    (shape,) = get(op).infer(graph, Node(0, op, 1, operands, ()))
    for v in operands[1:]:
        del maker.values[v]
    return maker.normalized(op, source, shape, sizes, edges)


def _cut(maker: Maker, source: int, sizes: tuple[int, ...] = (2, 2), edges: Edges = PADS) -> int:
    return _move(maker, "SPACE_TO_BATCH_ND", source, sizes, edges)


def _join(maker: Maker, source: int, sizes: tuple[int, ...] = (2, 2), edges: Edges = NONE) -> int:
    return _move(maker, "BATCH_TO_SPACE_ND", source, sizes, edges)


def _merged(graph: Graph) -> Node:
    """Return the convolution that is all that is left."""
    result = applied(blocks_into_dilation, graph)
    (node,) = result.graph.nodes
    assert node.inputs[0] == graph.inputs[0]
    assert node.outputs == graph.outputs
    assert result.declined == ()
    return node


def test_the_convolution_reads_the_whole_image() -> None:
    maker = Maker()
    batches = maker.depthwise(_cut(maker, maker.input(*SHAPE)))
    graph = maker.graph(_join(maker, batches))
    node = _merged(graph)
    assert node.op == "DEPTHWISE_CONV_2D"
    assert node.attributes.window == Window((3, 3), (1, 1), (2, 2), (2, 2))
    assert node.merged == (0, 2)
    assert applied(blocks_into_dilation, graph).applied == (
        "MOVE 0 and MOVE 2 into DEPTHWISE_CONV_2D 1",
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
    maker = Maker()
    batches = maker.depthwise(_cut(maker, maker.input(*SHAPE), sizes, pads))
    assert _merged(maker.graph(_join(maker, batches, sizes, crops))).attributes.window == window


def test_padding_and_dilation_inside_count_in_blocks() -> None:
    maker = Maker()
    cut = _cut(maker, maker.input(*SHAPE), edges=((0, 2), (1, 1)))
    batches = maker.conv(cut, 3, kernel=3)
    window = Window((3, 3), (1, 1), (1, 2), (1, 2))
    maker.nodes[-1] = replace(
        maker.nodes[-1], attributes=replace(maker.nodes[-1].attributes, window=window)
    )
    node = _merged(maker.graph(_join(maker, batches, edges=((1, 1), (0, 0)))))
    assert node.attributes.window == Window((3, 3), (1, 1), (2, 4), (0 + 2 - 1, 1 + 4 - 0))


def test_steps_in_between_go_over_the_whole_image() -> None:
    maker = Maker()
    batches = maker.depthwise(_cut(maker, maker.input(*SHAPE)))
    steps = maker.steps(batches, Stage("MUL", (maker.constant(4),)), RELU)
    steps = maker.steps(steps, Stage("ADD", (maker.number(1.0),)))
    graph = maker.graph(_join(maker, steps))
    result = applied(blocks_into_dilation, graph)
    assert ops(result) == ["DEPTHWISE_CONV_2D", "COPY", "COPY"]
    first, second, third = result.graph.nodes
    assert (second.inputs, third.inputs) == (first.outputs, second.outputs)
    assert third.outputs == graph.outputs
    assert functions(second) == ["MUL", "RELU"]
    assert {result.graph.values[n.outputs[0]].shape for n in result.graph.nodes} == {SHAPE}


@pytest.mark.parametrize("upright", [False, True])
def test_sequences_that_are_seen_as_images(upright: bool) -> None:
    maker = Maker()
    batches = _cut(maker, maker.input(2, 9, 4), (2,), ((2, 1),))
    image = maker.node("RESHAPE", [batches], (4, 6, 1, 4) if upright else (4, 1, 6, 4))
    made = maker.conv(image, 5)
    made = maker.steps(made, RELU)
    flat = maker.steps(maker.node("RESHAPE", [made], (4, 6, 5)), Stage("ABS"))
    graph = maker.graph(_join(maker, flat, (2,), ((1, 0),)))
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
    maker = Maker()
    batches = _cut(maker, maker.input(*SHAPE))
    out = _join(maker, maker.depthwise(batches))
    result = applied(blocks_into_dilation, maker.graph(out, maker.conv(batches, 2)))
    assert ops(result) == ["MOVE", "DEPTHWISE_CONV_2D", "CONV_2D"]


def test_several_convolutions_of_the_same_batches() -> None:
    maker = Maker()
    batches = _cut(maker, maker.input(*SHAPE))
    outputs = [_join(maker, maker.depthwise(batches)) for _ in range(2)]
    result = applied(blocks_into_dilation, maker.graph(*outputs))
    assert ops(result) == ["DEPTHWISE_CONV_2D", "DEPTHWISE_CONV_2D"]


def test_computed_weights_stay() -> None:
    maker = Maker()
    source, taps = maker.input(*SHAPE), maker.input(1, 3, 3, 4)
    made = maker.depthwise(_cut(maker, source))
    reader = maker.nodes[-1]
    del maker.values[reader.attributes.weights]
    held = replace(reader.attributes, weights=taps)
    maker.nodes[-1] = replace(reader, inputs=(*reader.inputs, taps), attributes=held)
    result = applied(blocks_into_dilation, maker.graph(_join(maker, made)))
    assert result.graph.nodes[0].inputs == (source, taps)


# Declined


def _strides(maker: Maker) -> Graph:
    batches = maker.depthwise(_cut(maker, maker.input(*SHAPE)))
    node = maker.nodes[-1]
    window = replace(node.attributes.window, stride=(1, 2))
    maker.nodes[-1] = replace(node, attributes=replace(node.attributes, window=window))
    return maker.graph(_join(maker, batches))


def _other_blocks(maker: Maker) -> Graph:
    batches = maker.depthwise(_cut(maker, maker.input(*SHAPE)))
    return maker.graph(_join(maker, batches, (4, 1)))


def _read_elsewhere(maker: Maker) -> Graph:
    batches = maker.depthwise(_cut(maker, maker.input(*SHAPE)))
    return maker.graph(_join(maker, batches), maker.steps(batches, RELU))


def _output(maker: Maker) -> Graph:
    batches = maker.depthwise(_cut(maker, maker.input(*SHAPE)))
    return maker.graph(_join(maker, batches), batches)


def _no_join(maker: Maker) -> Graph:
    return maker.graph(maker.conv(maker.depthwise(_cut(maker, maker.input(*SHAPE))), 2))


def _pooled(maker: Maker) -> Graph:
    batches = maker.depthwise(_cut(maker, maker.input(*SHAPE)))
    pooled = maker.node("MAX_POOL_2D", [batches], maker.shape(batches))
    return maker.graph(_join(maker, pooled))


def _square(maker: Maker) -> Graph:
    batches = maker.depthwise(_cut(maker, maker.input(*SHAPE)))
    return maker.graph(_join(maker, maker.steps(batches, Stage("MUL", (batches,)))))


def _by_pixel(maker: Maker) -> Graph:
    batches = maker.depthwise(_cut(maker, maker.input(*SHAPE)))
    grid = maker.constant(4, 3, 1)
    return maker.graph(_join(maker, maker.steps(batches, Stage("MUL", (grid,)))))


def _own_step_by_pixel(maker: Maker) -> Graph:
    batches = maker.depthwise(_cut(maker, maker.input(*SHAPE)))
    step = Stage("ADD", (maker.constant(8, 1, 1, 4),))
    maker.nodes[-1] = replace(maker.nodes[-1], stages=(step,))
    return maker.graph(_join(maker, batches))


def _broadcast(maker: Maker) -> Graph:
    batches = maker.conv(_cut(maker, maker.input(*SHAPE)), 1)
    wide = maker.steps(batches, Stage("MUL", (maker.constant(5),)), shape=(8, 6, 5, 5))
    return maker.graph(_join(maker, wide))


def _reshaped_otherwise(maker: Maker) -> Graph:
    batches = _cut(maker, maker.input(2, 10, 4), (2,), ((1, 1),))
    made = maker.conv(maker.node("RESHAPE", [batches], (4, 2, 3, 4)), 5)
    return maker.graph(_join(maker, maker.node("RESHAPE", [made], (4, 6, 5)), (2,), ((0, 0),)))


def _reshaped_once(maker: Maker) -> Graph:
    batches = _cut(maker, maker.input(*SHAPE))
    flat = maker.node("RESHAPE", [maker.conv(batches, 4)], (8, 30, 4))
    return maker.graph(_join(maker, flat, (2,), ((0, 0),)))


_ALONE = "no BATCH_TO_SPACE_ND alone reads its result"
_PIXELS = "a step's operand differs from pixel to pixel"
_SHAPE = "its image has another shape than the blocks"
DECLINED: list[tuple[Callable[[Maker], Graph], str]] = [
    (_strides, "it has strides"),
    (_other_blocks, "blocks [2, 2] before it and [4, 1] after it"),
    (_read_elsewhere, _ALONE),
    (_output, _ALONE),
    (_no_join, _ALONE),
    (_pooled, _ALONE),
    (_square, _ALONE),
    (_by_pixel, _PIXELS),
    (_own_step_by_pixel, _PIXELS),
    (_broadcast, "a step broadcasts its result"),
    (_reshaped_otherwise, _SHAPE),
    (_reshaped_once, _SHAPE),
]


@pytest.mark.parametrize(("write", "reason"), DECLINED)
def test_declines_with_a_reason(write: Callable[[Maker], Graph], reason: str) -> None:
    maker = Maker()
    result = untouched(blocks_into_dilation, write(maker))
    (node,) = [n for n in maker.nodes if n.op.endswith("CONV_2D")][:1]
    assert result.declined[0] == f"{node.op} {node.index} between blocks: {reason}"


def test_other_moves_are_no_blocks() -> None:
    maker = Maker()
    source = maker.input(*SHAPE)
    joined = _join(maker, _cut(maker, source))
    made = maker.conv(joined, 3)
    graph = maker.graph(maker.conv(maker.pad(made, *[(0, 0)] * 4), 2))
    assert untouched(blocks_into_dilation, graph).declined == ()


# Numbers


def _padded(padding: str, model: Model) -> list[TensorRef]:
    sizes = model.integers(2, 2)
    cut = (model.input(2, 7, 5, 5), sizes, model.integers((2, 3), (1, 2)))
    made = model.conv(model.op("SPACE_TO_BATCH_ND", *cut), (6, 3, 3, 5), padding)
    made = model.op("RELU", model.op("ADD", made, model.constant(6)))
    return [model.op("BATCH_TO_SPACE_ND", made, sizes, model.integers((0, 1), (1, 0)))]


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
    made = model.depthwise(model.op("SPACE_TO_BATCH_ND", source, sizes, pads), 4)
    return [model.op("BATCH_TO_SPACE_ND", made, sizes, crops)]


def _sequence(model: Model) -> list[TensorRef]:
    cut = (model.input(2, 11, 5), model.integers(3), model.integers((6, 1)))
    batches = model.op("SPACE_TO_BATCH_ND", *cut)
    image = model.op("EXPAND_DIMS", batches, model.integers(1))
    made = model.conv(image, (4, 1, 3, 5), "VALID")
    flat = model.op("SQUEEZE", made, squeeze_dims=[1])
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
