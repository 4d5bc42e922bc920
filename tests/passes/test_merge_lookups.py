"""Moves that treat each axis by itself become one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from litegpu.graph import Graph, Node
from litegpu.ops.move import Source
from litegpu.passes.merge_lookups import merge_lookups
from litegpu.zoo.writer import TensorRef
from passes.graphs import RELU, Maker, applied, ops, untouched
from passes.models import Model, Write, check_numbers

SHAPE = (2, 3, 4, 5)
Array = npt.NDArray[Any]


def _resized(maker: Maker, source: int, height: int, width: int) -> int:
    n, _, _, c = maker.shape(source)
    return maker.normalized(
        "RESIZE_NEAREST_NEIGHBOR",
        source,
        (n, height, width, c),
        (height, width),
        align_corners=False,
        half_pixel_centers=False,
    )


def _mirrored(maker: Maker, source: int, *pads: tuple[int, int]) -> int:
    sizes = zip(maker.shape(source), pads, strict=True)
    shape = tuple(size + sum(pair) for size, pair in sizes)
    return maker.normalized("MIRROR_PAD", source, shape, pads, mode="reflect")


def _gathered(maker: Maker, source: int, axis: int, *indices: int) -> int:
    shape = list(maker.shape(source))
    shape[axis] = len(indices)
    return maker.normalized("GATHER", source, tuple(shape), indices, axis=axis, batch_dims=0)


def _result(graph: Graph, node: Node, data: Array) -> Array:
    """Return what a move makes of an array, index by index."""
    out = graph.values[node.outputs[0]].shape
    found = np.zeros(out, data.dtype)
    for place in np.ndindex(*out):
        index = []
        for source, size in zip(node.attributes.sources, data.shape, strict=True):
            i = source.offset + sum(place[digit] * factor for digit, factor in source.terms)
            if source.mirror is not None:
                i = max(i, source.mirror - i)
                i = min(i, 2 * size - 2 - source.mirror - i)
            index.append(i if source.table is None else source.table[i])
        found[place] = data[tuple(index)]
    return found


PAIRS: dict[str, Callable[[Maker, int], int]] = {
    "resized and mirrored": lambda maker, v: _mirrored(
        maker, _resized(maker, v, 6, 9), (0, 0), (2, 1), (0, 3), (0, 0)
    ),
    "mirrored and resized": lambda maker, v: _resized(
        maker, _mirrored(maker, v, (0, 0), (1, 1), (2, 0), (0, 0)), 3, 12
    ),
    "mirrored twice": lambda maker, v: _mirrored(
        maker, _mirrored(maker, v, (1, 0), (1, 1), (2, 0), (0, 2)), (0, 1), (0, 0), (1, 1), (3, 0)
    ),
    "transposed and gathered": lambda maker, v: _gathered(
        maker, maker.transpose(v, 0, 3, 1, 2), 1, 4, 0, 2, 2
    ),
    "gathered and transposed": lambda maker, v: maker.transpose(
        _gathered(maker, v, 3, 1, 3), 3, 2, 1, 0
    ),
    "one of an axis": lambda maker, v: _mirrored(
        maker, _gathered(maker, v, 2, 3), (1, 0), (0, 1), (0, 0), (1, 1)
    ),
}


@pytest.mark.parametrize("kind", PAIRS)
def test_two_become_one_that_places_elements_alike(kind: str) -> None:
    maker = Maker()
    graph = maker.graph(PAIRS[kind](maker, maker.input(*SHAPE)))
    result = applied(merge_lookups, graph)
    assert ops(result) == ["MOVE"]
    assert result.applied == ("MOVE 0 into MOVE 1",)
    (node,) = result.graph.nodes
    assert node.merged == (0,)
    data = np.arange(2 * 3 * 4 * 5).reshape(SHAPE)
    between = _result(graph, graph.nodes[0], data)
    expected = _result(graph, graph.nodes[1], between)
    np.testing.assert_array_equal(_result(result.graph, node, data), expected)


def test_channels_that_stay_are_read_in_slices() -> None:
    maker = Maker()
    mirrored = PAIRS["resized and mirrored"](maker, maker.input(1, 3, 4, 8))
    (node,) = applied(merge_lookups, maker.graph(mirrored)).graph.nodes
    assert node.attributes.whole_slices == 0
    assert node.attributes.sources[3] == Source(((3, 1),))


def test_three_become_one() -> None:
    maker = Maker()
    value = PAIRS["resized and mirrored"](maker, maker.input(*SHAPE))
    value = _resized(maker, value, 4, 6)
    result = applied(merge_lookups, maker.graph(value))
    assert ops(result) == ["MOVE"]
    assert result.graph.nodes[0].merged == (0, 1)


def test_what_comes_back_to_the_old_order_is_a_reshape() -> None:
    maker = Maker()
    value = _gathered(maker, maker.input(*SHAPE), 3, 4, 3, 2, 1, 0)
    value = _gathered(maker, value, 3, 4, 3, 2, 1, 0)
    graph = maker.graph(_mirrored(maker, value, (0, 0), (0, 0), (1, 0), (0, 0)))
    assert ops(applied(merge_lookups, graph)) == ["RESHAPE", "MOVE"]


def _shared(maker: Maker) -> Graph:
    resized = _resized(maker, maker.input(*SHAPE), 6, 8)
    mirrored = _mirrored(maker, resized, (0, 0), (1, 1), (1, 1), (0, 0))
    return maker.graph(mirrored, maker.steps(resized, RELU))


def _output(maker: Maker) -> Graph:
    resized = _resized(maker, maker.input(*SHAPE), 6, 8)
    return maker.graph(resized, _mirrored(maker, resized, (0, 0), (1, 1), (1, 1), (0, 0)))


def _blocks(maker: Maker) -> Graph:
    deep = maker.normalized("SPACE_TO_DEPTH", maker.input(1, 4, 4, 2), (1, 2, 2, 8), block_size=2)
    return maker.graph(_mirrored(maker, deep, (0, 0), (1, 0), (0, 0), (0, 0)))


def _bounded(maker: Maker) -> Graph:
    resized = _resized(maker, maker.input(*SHAPE), 6, 8)
    mirrored = _mirrored(maker, resized, (0, 0), (1, 1), (1, 1), (0, 0))
    node = maker.nodes[-1]
    sources = [replace(source, mirror=None, bounded=True) for source in node.attributes.sources]
    maker.nodes[-1] = replace(node, attributes=replace(node.attributes, sources=tuple(sources)))
    return maker.graph(mirrored)


_OWN = "one depends on more than its own axis"
DECLINED: list[tuple[Callable[[Maker], Graph], str]] = [
    (_shared, "others read the value in between"),
    (_output, "others read the value in between"),
    (_blocks, _OWN),
    (_bounded, _OWN),
]


@pytest.mark.parametrize(("write", "reason"), DECLINED)
def test_declines_with_a_reason(write: Callable[[Maker], Graph], reason: str) -> None:
    result = untouched(merge_lookups, write(Maker()))
    assert result.declined == (f"MOVE 0 and MOVE 1: {reason}",)


def test_moves_with_steps_between_them_stay() -> None:
    maker = Maker()
    stepped = maker.steps(_resized(maker, maker.input(*SHAPE), 6, 8), RELU)
    graph = maker.graph(_mirrored(maker, stepped, (0, 0), (1, 1), (1, 1), (0, 0)))
    assert untouched(merge_lookups, graph).declined == ()


def _upsampled(model: Model) -> list[TensorRef]:
    """Write a pool over an enlarged image with a mirrored border."""
    made = model.conv(model.input(2, 4, 3, 5), (6, 3, 3, 5))
    resized = model.op("RESIZE_NEAREST_NEIGHBOR", made, model.integers(8, 6))
    pads = model.integers((0, 0), (1, 1), (1, 1), (0, 0))
    mirrored = model.op("MIRROR_PAD", resized, pads, mode="REFLECT")
    return [model.max_pool(mirrored)]


def _turned(model: Model) -> list[TensorRef]:
    turned = model.op("TRANSPOSE", model.input(2, 4, 3, 5), model.integers(0, 2, 3, 1))
    return [model.op("GATHER", turned, model.integers(4, 1, 1, 0), axis=2)]


MODELS: list[tuple[Write, int]] = [(_upsampled, 1), (_turned, 1)]


@pytest.mark.parametrize(("write", "saved"), MODELS)
def test_keeps_the_numbers(write: Write, saved: int) -> None:
    check_numbers(write, "merge_lookups", saved)
