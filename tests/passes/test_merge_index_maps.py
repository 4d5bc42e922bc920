"""Index maps that treat each axis separately are merged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from litegpu.graph import Graph, Node
from litegpu.ops.index_map import Source
from litegpu.passes.merge_index_maps import merge_index_maps
from litegpu.zoo.writer import TensorRef
from passes.graphs import RELU, GraphBuilder, applied, ops, untouched
from passes.models import Model, Write, check_numbers

SHAPE = (2, 3, 4, 5)
Array = npt.NDArray[Any]


def _resized(builder: GraphBuilder, source: int, height: int, width: int) -> int:
    n, _, _, c = builder.shape(source)
    return builder.normalized(
        "RESIZE_NEAREST_NEIGHBOR",
        source,
        (n, height, width, c),
        (height, width),
        align_corners=False,
        half_pixel_centers=False,
    )


def _mirrored(builder: GraphBuilder, source: int, *pads: tuple[int, int]) -> int:
    sizes = zip(builder.shape(source), pads, strict=True)
    shape = tuple(size + sum(pair) for size, pair in sizes)
    return builder.normalized("MIRROR_PAD", source, shape, pads, mode="reflect")


def _gathered(builder: GraphBuilder, source: int, axis: int, *indices: int) -> int:
    shape = list(builder.shape(source))
    shape[axis] = len(indices)
    return builder.normalized("GATHER", source, tuple(shape), indices, axis=axis, batch_dims=0)


def _result(graph: Graph, node: Node, data: Array) -> Array:
    """Return what a move makes of an array, index by index."""
    out = graph.values[node.outputs[0]].shape
    found = np.zeros(out, data.dtype)
    for position in np.ndindex(*out):
        index = []
        for source, size in zip(node.attributes.sources, data.shape, strict=True):
            i = source.offset + sum(position[digit] * factor for digit, factor in source.terms)
            if source.mirror is not None:
                i = max(i, source.mirror - i)
                i = min(i, 2 * size - 2 - source.mirror - i)
            index.append(i if source.table is None else source.table[i])
        found[position] = data[tuple(index)]
    return found


PAIRS: dict[str, Callable[[GraphBuilder, int], int]] = {
    "resized and mirrored": lambda builder, v: _mirrored(
        builder, _resized(builder, v, 6, 9), (0, 0), (2, 1), (0, 3), (0, 0)
    ),
    "mirrored and resized": lambda builder, v: _resized(
        builder, _mirrored(builder, v, (0, 0), (1, 1), (2, 0), (0, 0)), 3, 12
    ),
    "mirrored twice": lambda builder, v: _mirrored(
        builder,
        _mirrored(builder, v, (1, 0), (1, 1), (2, 0), (0, 2)),
        (0, 1),
        (0, 0),
        (1, 1),
        (3, 0),
    ),
    "transposed and gathered": lambda builder, v: _gathered(
        builder, builder.transpose(v, 0, 3, 1, 2), 1, 4, 0, 2, 2
    ),
    "gathered and transposed": lambda builder, v: builder.transpose(
        _gathered(builder, v, 3, 1, 3), 3, 2, 1, 0
    ),
    "two of an axis": lambda builder, v: _mirrored(
        builder, _gathered(builder, v, 2, 2, 0), (1, 0), (0, 1), (0, 0), (1, 1)
    ),
}


@pytest.mark.parametrize("kind", PAIRS)
def test_two_become_one_that_places_elements_alike(kind: str) -> None:
    builder = GraphBuilder()
    graph = builder.graph(PAIRS[kind](builder, builder.input(*SHAPE)))
    result = applied(merge_index_maps, graph)
    assert ops(result) == ["INDEX_MAP"]
    assert result.applied == ("INDEX_MAP 0 into INDEX_MAP 1",)
    (node,) = result.graph.nodes
    assert node.merged == (0,)
    data = np.arange(2 * 3 * 4 * 5).reshape(SHAPE)
    between = _result(graph, graph.nodes[0], data)
    expected = _result(graph, graph.nodes[1], between)
    np.testing.assert_array_equal(_result(result.graph, node, data), expected)


def test_a_slice_goes_into_the_map_after_it() -> None:
    builder = GraphBuilder()
    source = builder.input(2, 6, 9, 5)
    bounds = (0, 1, 8, 0), (2, 6, 0, 5), (1, 2, -2, 1)
    cut = builder.normalized("STRIDED_SLICE", source, (2, 3, 4, 5), *bounds)
    graph = builder.graph(_resized(builder, cut, 6, 8))
    result = applied(merge_index_maps, graph)
    assert result.applied == ("STRIDED_SLICE 0 into INDEX_MAP 1",)
    (node,) = result.graph.nodes
    assert (node.op, node.inputs) == ("INDEX_MAP", (source,))
    data = np.arange(2 * 6 * 9 * 5).reshape(2, 6, 9, 5)
    expected = data[:, 1::2, 8:0:-2].repeat(2, axis=1).repeat(2, axis=2)
    np.testing.assert_array_equal(_result(result.graph, node, data), expected)


@pytest.mark.parametrize(("begin", "computed", "merged"), [(8, 1, 0), (8, 0, 1), (4, 1, 1)])
def test_whole_units_of_channels_before_a_transpose_are_a_view(
    begin: int, computed: int, merged: int
) -> None:
    builder = GraphBuilder()
    source = builder.input(2, 3, 4, 24)
    source = builder.conv(source, 24) if computed else source
    bounds = (0, 0, 0, begin), (2, 3, 4, begin + 8), (1, 1, 1, 1)
    cut = builder.normalized("STRIDED_SLICE", source, (2, 3, 4, 8), *bounds)
    result = merge_index_maps(builder.graph(builder.transpose(cut, 0, 1, 3, 2)))
    assert len(result.applied) == merged
    if not merged:
        (reason,) = result.declined
        assert "the slice is a view, and attention may read it in another order" in reason


def test_two_slices_stay_slices() -> None:
    builder = GraphBuilder()
    source = builder.input(*SHAPE)
    first = builder.normalized(
        "STRIDED_SLICE", source, (2, 2, 4, 5), (0, 1, 0, 0), SHAPE, (1, 1, 1, 1)
    )
    second = builder.normalized(
        "STRIDED_SLICE", first, (2, 1, 4, 5), (0, 1, 0, 0), (2, 2, 4, 5), (1, 1, 1, 1)
    )
    assert untouched(merge_index_maps, builder.graph(second)).declined == ()


def test_channels_that_stay_are_read_in_slices() -> None:
    builder = GraphBuilder()
    mirrored = PAIRS["resized and mirrored"](builder, builder.input(1, 3, 4, 8))
    (node,) = applied(merge_index_maps, builder.graph(mirrored)).graph.nodes
    assert node.attributes.whole_block_start == 0
    assert node.attributes.sources[3] == Source(((3, 1),))


def test_three_become_one() -> None:
    builder = GraphBuilder()
    value = PAIRS["resized and mirrored"](builder, builder.input(*SHAPE))
    value = _resized(builder, value, 4, 6)
    result = applied(merge_index_maps, builder.graph(value))
    assert ops(result) == ["INDEX_MAP"]
    assert result.graph.nodes[0].merged == (0, 1)


def test_what_comes_back_to_the_old_order_is_a_reshape() -> None:
    builder = GraphBuilder()
    value = _gathered(builder, builder.input(*SHAPE), 3, 4, 3, 2, 1, 0)
    value = _gathered(builder, value, 3, 4, 3, 2, 1, 0)
    graph = builder.graph(_mirrored(builder, value, (0, 0), (0, 0), (1, 0), (0, 0)))
    assert ops(applied(merge_index_maps, graph)) == ["RESHAPE", "INDEX_MAP"]


def _shared(builder: GraphBuilder) -> Graph:
    resized = _resized(builder, builder.input(*SHAPE), 6, 8)
    mirrored = _mirrored(builder, resized, (0, 0), (1, 1), (1, 1), (0, 0))
    return builder.graph(mirrored, builder.elementwise(resized, RELU))


def _output(builder: GraphBuilder) -> Graph:
    resized = _resized(builder, builder.input(*SHAPE), 6, 8)
    return builder.graph(resized, _mirrored(builder, resized, (0, 0), (1, 1), (1, 1), (0, 0)))


def _blocks(builder: GraphBuilder) -> Graph:
    deep = builder.normalized(
        "SPACE_TO_DEPTH", builder.input(1, 4, 4, 2), (1, 2, 2, 8), block_size=2
    )
    return builder.graph(_mirrored(builder, deep, (0, 0), (1, 0), (0, 0), (0, 0)))


def _bounded(builder: GraphBuilder) -> Graph:
    resized = _resized(builder, builder.input(*SHAPE), 6, 8)
    mirrored = _mirrored(builder, resized, (0, 0), (1, 1), (1, 1), (0, 0))
    node = builder.nodes[-1]
    sources = [replace(source, mirror=None, bounded=True) for source in node.attributes.sources]
    builder.nodes[-1] = replace(node, attributes=replace(node.attributes, sources=tuple(sources)))
    return builder.graph(mirrored)


_OWN = "an index depends on more than its own axis"
DECLINED: list[tuple[Callable[[GraphBuilder], Graph], str]] = [
    (_shared, "other nodes read the value in between"),
    (_output, "other nodes read the value in between"),
    (_blocks, _OWN),
    (_bounded, _OWN),
]


@pytest.mark.parametrize(("write", "reason"), DECLINED)
def test_declines_with_a_reason(write: Callable[[GraphBuilder], Graph], reason: str) -> None:
    result = untouched(merge_index_maps, write(GraphBuilder()))
    assert result.declined == (f"INDEX_MAP 0 and INDEX_MAP 1: {reason}",)


def test_index_maps_with_epilogue_ops_between_them_stay() -> None:
    builder = GraphBuilder()
    stepped = builder.elementwise(_resized(builder, builder.input(*SHAPE), 6, 8), RELU)
    graph = builder.graph(_mirrored(builder, stepped, (0, 0), (1, 1), (1, 1), (0, 0)))
    assert untouched(merge_index_maps, graph).declined == ()


def _upsampled(model: Model) -> list[TensorRef]:
    """Write a pool over an enlarged image with a mirrored border."""
    output = model.conv(model.input(2, 4, 3, 5), (6, 3, 3, 5))
    resized = model.op("RESIZE_NEAREST_NEIGHBOR", output, model.integers(8, 6))
    pads = model.integers((0, 0), (1, 1), (1, 1), (0, 0))
    mirrored = model.op("MIRROR_PAD", resized, pads, mode="REFLECT")
    return [model.max_pool(mirrored)]


def _turned(model: Model) -> list[TensorRef]:
    turned = model.op("TRANSPOSE", model.input(2, 4, 3, 5), model.integers(0, 2, 3, 1))
    return [model.op("GATHER", turned, model.integers(4, 1, 1, 0), axis=2)]


MODELS: list[tuple[Write, int]] = [(_upsampled, 1), (_turned, 1)]


@pytest.mark.parametrize(("write", "saved"), MODELS)
def test_keeps_the_numbers(write: Write, saved: int) -> None:
    check_numbers(write, "merge_index_maps", saved)
