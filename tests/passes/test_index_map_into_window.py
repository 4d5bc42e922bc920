"""Convolutions compute mirror padding and upsampling themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from litegpu.graph import ABSENT, EpilogueOp, Graph
from litegpu.ops.common.window import Window
from litegpu.ops.index_map import INDEX_MAP, IndexMapAttributes, Source, plain
from litegpu.ops.quantized_conv import QUANTIZED_CONV, QuantizedConvAttributes
from litegpu.passes.index_map_into_window import index_map_into_window
from litegpu.zoo.writer import TensorRef
from passes.graphs import GraphBuilder, applied, ops, untouched
from passes.models import Model, Write, check_numbers

SHAPE = (1, 6, 5, 8)
ROWS = (Source(((0, 1),)), Source(((3, 1),)))


def border(
    builder: GraphBuilder, source: int, pads: tuple[int, int] = (1, 2), edge: int = 0
) -> int:
    """Add a mirrored border of (rows, columns) on all sides."""
    n, h, w, c = builder.shape(source)
    shape = (n, h + 2 * pads[0], w + 2 * pads[1], c)
    inner = (Source(((axis, 1),), -pads[axis - 1], mirror=edge) for axis in (1, 2))
    attributes = IndexMapAttributes(plain(shape), (ROWS[0], *inner, ROWS[1]))
    return builder.node(INDEX_MAP, [source], shape, attributes=attributes)


def enlarged(builder: GraphBuilder, source: int, zoom: tuple[int, int] = (2, 3)) -> int:
    n, h, w, c = builder.shape(source)
    shape = (n, h * zoom[0], w * zoom[1], c)
    inner = []
    for axis in (1, 2):
        table = tuple(i // zoom[axis - 1] for i in range(shape[axis]))
        inner.append(Source(((axis, 1),), table=table if zoom[axis - 1] > 1 else None))
    attributes = IndexMapAttributes(plain(shape), (ROWS[0], *inner, ROWS[1]))
    return builder.node(INDEX_MAP, [source], shape, attributes=attributes)


def valid(builder: GraphBuilder, source: int, kernel: int = 3) -> int:
    """Add a convolution that stays inside its image."""
    n, h, w, _ = builder.shape(source)
    output = builder.conv(source, 4, kernel)
    node = builder.nodes[-1]
    attributes = replace(node.attributes, window=Window((kernel, kernel), (1, 1)))
    builder.nodes[-1] = replace(node, attributes=attributes)
    shape = (n, h - kernel + 1, w - kernel + 1, 4)
    builder.values[output] = replace(builder.values[output], shape=shape)
    return output


def of_bytes(builder: GraphBuilder) -> None:
    """Let the last convolution be one of bytes with a zero point."""
    node = builder.nodes[-1]
    own = node.attributes
    attributes = QuantizedConvAttributes(own.window, own.weights, ABSENT, own.shape, 1, 3, 0)
    builder.nodes[-1] = replace(node, op=QUANTIZED_CONV, attributes=attributes)


def window_of(graph: Graph) -> Window:
    (node,) = graph.nodes
    found: Window = node.attributes.window
    return found


@pytest.mark.parametrize("edge", [0, -1])
def test_a_border_is_seen(edge: int) -> None:
    builder = GraphBuilder()
    source = builder.input(*SHAPE)
    out = valid(builder, border(builder, source, edge=edge))
    result = applied(index_map_into_window, builder.graph(out))
    assert result.graph.nodes[0].inputs[0] == source
    assert result.graph.nodes[0].merged == (0,)
    assert window_of(result.graph) == Window((3, 3), (1, 1), pads=(1, 2), mirror=edge)
    assert result.applied == ("INDEX_MAP 0 into CONV_2D 1",)


@pytest.mark.parametrize("zoom", [(2, 3), (1, 2)])
def test_an_enlarged_image_is_seen_among_zeros(zoom: tuple[int, int]) -> None:
    builder = GraphBuilder()
    out = builder.conv(enlarged(builder, builder.input(*SHAPE), zoom), 4, 3)
    result = applied(index_map_into_window, builder.graph(out))
    view = window_of(result.graph)
    assert view == Window((3, 3), (1, 1), pads=(1, 1), zoom=zoom)
    assert view.seen((6, 5)) == (6 * zoom[0], 5 * zoom[1])
    assert not replace(view, kernel=(1, 1), pads=(0, 0)).pointwise


def test_a_border_around_an_enlarged_image_is_seen() -> None:
    builder = GraphBuilder()
    out = valid(builder, border(builder, enlarged(builder, builder.input(*SHAPE))))
    result = applied(index_map_into_window, builder.graph(out))
    wanted = Window((3, 3), (1, 1), pads=(1, 2), zoom=(2, 3), mirror=0)
    assert window_of(result.graph) == wanted


def test_all_readers_see_it() -> None:
    builder = GraphBuilder()
    moved = border(builder, builder.input(*SHAPE))
    result = applied(
        index_map_into_window, builder.graph(valid(builder, moved), valid(builder, moved, 2))
    )
    assert ops(result) == ["CONV_2D", "CONV_2D"]


def _an_output(builder: GraphBuilder) -> Graph:
    moved = border(builder, builder.input(*SHAPE))
    return builder.graph(valid(builder, moved), moved)


def _read_by_others(builder: GraphBuilder) -> Graph:
    moved = border(builder, builder.input(*SHAPE))
    return builder.graph(valid(builder, moved), builder.elementwise(moved, EpilogueOp("NEG")))


def _read_by_nobody(builder: GraphBuilder) -> Graph:
    source = builder.input(*SHAPE)
    border(builder, source)
    return builder.graph(valid(builder, source))


def _read_twice(builder: GraphBuilder) -> Graph:
    moved = border(builder, builder.input(1, 6, 5, 4))
    output = builder.conv(moved, 4, 1, [EpilogueOp("ADD", (moved,))])
    return builder.graph(output)


def _enlarged_by_one_of_its_readers(builder: GraphBuilder) -> Graph:
    moved = border(builder, builder.input(*SHAPE))
    plain_reader, output = valid(builder, moved), valid(builder, moved)
    node = builder.nodes[-1]
    window = replace(node.attributes.window, zoom=(2, 2))
    builder.nodes[-1] = replace(node, attributes=replace(node.attributes, window=window))
    n, h, w, _ = builder.shape(moved)
    builder.values[output] = replace(builder.values[output], shape=(n, 2 * h - 2, 2 * w - 2, 4))
    return builder.graph(plain_reader, output)


def _of_a_reader_that_leaves_it(builder: GraphBuilder) -> Graph:
    return builder.graph(builder.conv(border(builder, builder.input(*SHAPE)), 4, 3))


def _left_by_one_of_its_readers(builder: GraphBuilder) -> Graph:
    moved = border(builder, builder.input(*SHAPE))
    return builder.graph(valid(builder, moved), builder.conv(moved, 4, 3))


def _of_channels(builder: GraphBuilder) -> Graph:
    source = builder.input(*SHAPE)
    sources = (*(Source(((axis, 1),)) for axis in range(3)), Source(((3, 1),), -1, mirror=0))
    shape = (*SHAPE[:3], 10)
    moved = builder.node(
        INDEX_MAP, [source], shape, attributes=IndexMapAttributes(plain(shape), sources)
    )
    return builder.graph(valid(builder, moved))


def _transposed(builder: GraphBuilder) -> Graph:
    source = builder.input(*SHAPE)
    sources = tuple(Source(((axis, 1),)) for axis in (0, 2, 1, 3))
    shape = (1, 5, 6, 8)
    moved = builder.node(
        INDEX_MAP, [source], shape, attributes=IndexMapAttributes(plain(shape), sources)
    )
    return builder.graph(valid(builder, moved))


def _of_other_rows(builder: GraphBuilder) -> Graph:
    source = builder.input(*SHAPE)
    rows = Source(((1, 1),), table=(0, 0, 1, 3, 3, 4, 5))
    shape = (1, 7, 5, 8)
    sources = (ROWS[0], rows, Source(((2, 1),)), ROWS[1])
    moved = builder.node(
        INDEX_MAP, [source], shape, attributes=IndexMapAttributes(plain(shape), sources)
    )
    return builder.graph(valid(builder, moved))


def _of_the_first_rows(builder: GraphBuilder) -> Graph:
    source = builder.input(*SHAPE)
    sources = tuple(Source(((axis, 1),)) for axis in range(4))
    shape = (1, 4, 5, 8)
    moved = builder.node(
        INDEX_MAP, [source], shape, attributes=IndexMapAttributes(plain(shape), sources)
    )
    return builder.graph(builder.conv(moved, 4, 3))


def _of_three_dimensions(builder: GraphBuilder) -> Graph:
    source = builder.input(6, 5, 8)
    sources = (Source(((0, 1),), -1, mirror=0), Source(((1, 1),)), Source(((2, 1),)))
    shape = (8, 5, 8)
    moved = builder.node(
        INDEX_MAP, [source], shape, attributes=IndexMapAttributes(plain(shape), sources)
    )
    return builder.graph(builder.node("FULLY_CONNECTED", [moved], shape))


def test_convolutions_of_bytes_see_borders_and_enlarged_images() -> None:
    for view in (border, enlarged):
        builder = GraphBuilder()
        output = valid(builder, view(builder, builder.input(*SHAPE)))
        of_bytes(builder)
        result = applied(index_map_into_window, builder.graph(output))
        assert ops(result) == [QUANTIZED_CONV]
        assert not window_of(result.graph).plain


NEITHER = "the index map neither mirrors nor upsamples rows and columns"
DECLINED: list[tuple[Callable[[GraphBuilder], Graph], str]] = [
    (_an_output, "the result is an output of the partition"),
    (_read_by_others, "not only convolutions read the result"),
    (_read_by_nobody, "not only convolutions read the result"),
    (_read_twice, "a reader also has the result as another operand"),
    (_enlarged_by_one_of_its_readers, "a reader already upsamples the result"),
    (_of_a_reader_that_leaves_it, "a window of a reader exceeds the image"),
    (_left_by_one_of_its_readers, "a window of a reader exceeds the image"),
    (_of_channels, "the index map moves elements along other axes than rows and columns"),
    (_transposed, NEITHER),
    (_of_other_rows, NEITHER),
    (_of_the_first_rows, NEITHER),
    (_of_three_dimensions, "the index map changes the order of elements"),
]


@pytest.mark.parametrize(("make", "reason"), DECLINED)
def test_declines(make: Callable[[GraphBuilder], Graph], reason: str) -> None:
    (line,) = untouched(index_map_into_window, make(GraphBuilder())).declined
    assert line == f"INDEX_MAP 0: {reason}"


def test_an_enlarged_border_stays() -> None:
    builder = GraphBuilder()
    out = builder.conv(enlarged(builder, border(builder, builder.input(*SHAPE))), 4, 3)
    result = applied(index_map_into_window, builder.graph(out))
    assert ops(result) == [INDEX_MAP, "CONV_2D"]
    assert result.declined == ("INDEX_MAP 0: a reader already upsamples the result",)


def test_other_nodes_are_left_alone() -> None:
    builder = GraphBuilder()
    output = builder.conv(builder.input(*SHAPE), 4, 3)
    assert untouched(index_map_into_window, builder.graph(output)).declined == ()


def _mirrored(model: Model, source: TensorRef, mode: str) -> TensorRef:
    pads = model.writer.constant([(0, 0), (1, 2), (2, 1), (0, 0)], "int32")
    return model.op("MIRROR_PAD", source, pads, mode=mode)


def _a_border(model: Model) -> list[TensorRef]:
    seen = _mirrored(model, model.input(2, 4, 3, 5), "SYMMETRIC")
    return [model.conv(seen, (6, 3, 2, 5), "VALID")]


def _all_of_it(model: Model) -> list[TensorRef]:
    size = model.writer.constant((8, 9), "int32")
    source = model.input(1, 4, 3, 5)
    large = model.op("RESIZE_NEAREST_NEIGHBOR", source, size)
    seen = _mirrored(model, large, "REFLECT")
    return [model.conv(seen, (6, 3, 3, 5), "VALID"), model.op("NEG", source)]


def _zeros_around_it(model: Model) -> list[TensorRef]:
    size = model.writer.constant((8, 9), "int32")
    large = model.op("RESIZE_NEAREST_NEIGHBOR", model.input(1, 4, 3, 5), size)
    padded = model.pad(large, (0, 0), (1, 1), (2, 0), (0, 0))
    return [model.conv(padded, (6, 3, 3, 5))]


MODELS: list[tuple[Write, int]] = [(_a_border, 1), (_all_of_it, 1), (_zeros_around_it, 1)]


@pytest.mark.parametrize(("write", "saved"), MODELS)
def test_keeps_the_numbers(write: Write, saved: int) -> None:
    check_numbers(write, "index_map_into_window", saved)
