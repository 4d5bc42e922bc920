"""Pixels that no node reads are not computed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from litegpu.graph import EpilogueOp, Graph, Node
from litegpu.ops.common.window import Pair, PoolAttributes, Window
from litegpu.ops.copy import CopyAttributes
from litegpu.passes import PassResult
from litegpu.passes.drop_dead_pixels import drop_dead_pixels
from litegpu.zoo.writer import TensorRef
from passes.graphs import BY_POSITION, RELU, GraphBuilder, applied, functions, ops, untouched
from passes.models import Model, check_numbers

SHAPE = (2, 5, 6, 8)
HALVED = (2, 3, 3, 8)


def strided(
    builder: GraphBuilder, source: int, channels: int, stride: Pair = (2, 2), kernel: int = 1
) -> int:
    """Add a convolution that takes pixels which lie apart."""
    n, h, w, _ = builder.shape(source)
    output = builder.conv(source, channels, kernel)
    node = builder.nodes[-1]
    window = replace(node.attributes.window, stride=stride)
    builder.nodes[-1] = replace(node, attributes=replace(node.attributes, window=window))
    shape = (n, -(-h // stride[0]), -(-w // stride[1]), channels)
    builder.values[output] = replace(builder.values[output], shape=shape)
    return output


def cut(builder: GraphBuilder, source: int, stride: Pair, begin: int = 0) -> int:
    """Add a slice of pixels that lie apart."""
    n, h, w, c = builder.shape(source)
    attributes = CopyAttributes((0, begin, 0, 0), (1, *stride, 1))
    shape = (n, -(-(h - begin) // stride[0]), -(-w // stride[1]), c)
    return builder.node("STRIDED_SLICE", [source], shape, attributes=attributes)


def added(builder: GraphBuilder, left: int, right: int) -> int:
    return builder.elementwise(left, EpilogueOp("ADD", (right,)), RELU)


def windows(result: PassResult) -> list[tuple[Pair, Pair]]:
    """Return kernel and stride of each convolution."""
    convolutions = [node for node in result.graph.nodes if node.op == "CONV_2D"]
    return [(n.attributes.window.kernel, n.attributes.window.stride) for n in convolutions]


def shape_of(result: PassResult, node: Node) -> tuple[int, ...]:
    return result.graph.values[node.outputs[0]].shape


def test_the_end_of_a_residual_epilogue_op() -> None:
    """All the way up to the last 3x3; the shortcut, read whole elsewhere, is read in part."""
    builder = GraphBuilder()
    shortcut = builder.elementwise(builder.input(*SHAPE), RELU)
    reduced = builder.conv(shortcut, 4)
    inner = builder.conv(builder.conv(reduced, 4, 3), 8)
    total = added(builder, shortcut, inner)
    result = applied(
        drop_dead_pixels, builder.graph(strided(builder, total, 4), strided(builder, total, 12))
    )
    point, all_pixels = (1, 1), (1, 1)
    assert windows(result) == [
        (point, all_pixels),
        ((3, 3), (2, 2)),
        (point, all_pixels),
        (point, all_pixels),
        (point, all_pixels),
    ]
    relu, part, *_ = result.graph.nodes
    assert (part.op, part.inputs) == ("STRIDED_SLICE", relu.outputs)
    assert part.attributes == CopyAttributes(step=(1, 2, 2, 1))
    (sum_,) = (node for node in result.graph.nodes if functions(node) == ["ADD", "RELU"])
    assert sum_.inputs == part.outputs
    assert shape_of(result, sum_) == shape_of(result, part) == HALVED
    assert len(result.applied) == 3
    assert result.applied[0] == "COPY 4: only pixels (2, 2) apart are read"
    assert result.declined == ("COPY 0: other nodes read other pixels",)


def test_what_a_window_has_left_out_already_is_left_out_on_top() -> None:
    builder = GraphBuilder()
    output = strided(builder, builder.input(1, 20, 21, 4), 4, (2, 1), kernel=3)
    result = applied(drop_dead_pixels, builder.graph(strided(builder, output, 4, (2, 3))))
    assert windows(result) == [((3, 3), (4, 3)), ((1, 1), (1, 1))]
    assert shape_of(result, result.graph.nodes[0]) == (1, 5, 7, 4)


@pytest.mark.parametrize("op", ["MAX_POOL_2D", "AVERAGE_POOL_2D"])
def test_pools_of_one_pixel_are_readers_too(op: str) -> None:
    builder = GraphBuilder()
    output = builder.conv(builder.input(*SHAPE), 8, 3)
    pool = builder.node(op, [output], HALVED, attributes=PoolAttributes(Window((1, 1), (2, 2))))
    result = applied(drop_dead_pixels, builder.graph(pool))
    assert windows(result) == [((3, 3), (2, 2))]
    assert result.graph.nodes[1].attributes.window.stride == (1, 1)


def test_slices_are_readers_too() -> None:
    builder = GraphBuilder()
    output = builder.conv(builder.input(*SHAPE), 8, 3)
    result = applied(drop_dead_pixels, builder.graph(cut(builder, output, (2, 2))))
    assert ops(result) == ["CONV_2D", "COPY"]
    assert windows(result) == [((3, 3), (2, 2))]


def test_operands_that_are_broadcast_stay_so() -> None:
    builder = GraphBuilder()
    source = builder.conv(builder.input(*SHAPE), 8, 3)
    row, pixel = builder.constant(6, 8), builder.input(2, 1, 1, 8)
    epilogue_ops = (
        EpilogueOp("MUL", (pixel,)),
        EpilogueOp("ADD", (row,)),
        EpilogueOp("ADD", (builder.number(2.0),)),
    )
    output = builder.elementwise(source, *epilogue_ops)
    graph = builder.graph(strided(builder, output, 4))
    result = applied(drop_dead_pixels, graph)
    (node,) = (n for n in result.graph.nodes if n.op == "COPY")
    (mul,), (add,), (number,) = (epilogue_op.operands for epilogue_op in node.epilogue)
    assert (mul, number) == (pixel, epilogue_ops[2].operands[0])
    array = result.graph.values[add].data
    np.testing.assert_array_equal(array, graph.values[row].data[::2])  # type: ignore[index]


def test_an_input_is_read_in_part() -> None:
    builder = GraphBuilder()
    left, right = builder.input(*SHAPE), builder.input(*SHAPE)
    graph = builder.graph(strided(builder, added(builder, left, right), 4))
    result = applied(drop_dead_pixels, graph)
    assert ops(result) == ["STRIDED_SLICE", "STRIDED_SLICE", "COPY", "CONV_2D"]
    assert {node.inputs[0] for node in result.graph.nodes[:2]} == {left, right}


def _read_whole(builder: GraphBuilder) -> Graph:
    output = builder.conv(builder.input(*SHAPE), 8, 3)
    return builder.graph(strided(builder, output, 4), builder.conv(output, 4))


def _an_output(builder: GraphBuilder) -> Graph:
    output = builder.conv(builder.input(*SHAPE), 8, 3)
    return builder.graph(strided(builder, output, 4), output)


def _other_strides(builder: GraphBuilder) -> Graph:
    output = builder.conv(builder.input(*SHAPE), 8, 3)
    return builder.graph(strided(builder, output, 4), strided(builder, output, 4, (2, 1)))


def _as_an_operand(builder: GraphBuilder) -> Graph:
    output = builder.conv(builder.input(*SHAPE), 8, 3)
    other = builder.elementwise(builder.input(*SHAPE), EpilogueOp("ADD", (output,)))
    return builder.graph(strided(builder, output, 4), other)


def _another_begin(builder: GraphBuilder) -> Graph:
    output = builder.conv(builder.input(*SHAPE), 8, 3)
    return builder.graph(strided(builder, output, 4), cut(builder, output, (2, 2), begin=1))


def _not_by_pixels(builder: GraphBuilder) -> Graph:
    output = builder.node("SOFTMAX", [builder.input(*SHAPE)], SHAPE)
    return builder.graph(strided(builder, output, 4))


def _by_position(builder: GraphBuilder) -> Graph:
    output = builder.elementwise(builder.input(*SHAPE), BY_POSITION)
    return builder.graph(strided(builder, output, 4))


_OTHERS = "CONV_2D 0: other nodes read other pixels"


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (_read_whole, _OTHERS),
        (_an_output, _OTHERS),
        (_other_strides, _OTHERS),
        (_as_an_operand, _OTHERS),
        (_another_begin, _OTHERS),
        (_by_position, "COPY 0: the epilogue depends on the positions of elements"),
        (_not_by_pixels, "SOFTMAX 0: the node does not compute each pixel independently"),
    ],
)
def test_declines(make: Callable[[GraphBuilder], Graph], reason: str) -> None:
    assert untouched(drop_dead_pixels, make(GraphBuilder())).declined == (reason,)


def test_larger_windows_read_all() -> None:
    builder = GraphBuilder()
    output = builder.conv(builder.input(*SHAPE), 8)
    assert (
        untouched(drop_dead_pixels, builder.graph(strided(builder, output, 4, kernel=3))).declined
        == ()
    )


def test_single_rows_have_no_pixels_to_drop() -> None:
    builder = GraphBuilder()
    output = builder.conv(builder.input(2, 1, 1, 8), 8)
    assert untouched(drop_dead_pixels, builder.graph(strided(builder, output, 4))).declined == ()


def test_numbers_stay() -> None:
    check_numbers(_residual_epilogue, "drop_dead_pixels", saved=0)


def _residual_epilogue(model: Model) -> list[TensorRef]:
    strides = {"padding": "VALID", "stride_h": 2, "stride_w": 2}
    x = model.op("RELU", model.input(2, 7, 6, 5))
    inner = model.conv(model.conv(x, (3, 3, 3, 5)), (5, 1, 1, 3))
    total = model.op("RELU", model.op("ADD", x, inner))
    rest = model.conv(x, (4, 1, 1, 5))
    output = [
        model.op("CONV_2D", total, model.constant(n, 1, 1, 5), model.constant(n), **strides)
        for n in (4, 9)
    ]
    return [*output, rest]
