"""ARG_MAX searches channels that it resizes itself."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from litegpu.graph import Graph
from litegpu.ops.arg_max import ArgAttributes
from litegpu.ops.resize_bilinear import ResizeAttributes
from litegpu.passes.resize_into_arg import resize_into_arg
from passes.graphs import RELU, Maker, applied, untouched

RESIZE = ResizeAttributes(align_corners=True, half_pixel=False)


def _resized(maker: Maker) -> int:
    source = maker.input(2, 3, 4, 21)
    return maker.node("RESIZE_BILINEAR", [source], (2, 9, 7, 21), attributes=RESIZE)


def _arg(maker: Maker, source: int, axis: int = 3, op: str = "ARG_MAX") -> int:
    shape = tuple(1 if i == axis else size for i, size in enumerate(maker.shape(source)))
    return maker.node(op, [source], shape, attributes=ArgAttributes(axis))


@pytest.mark.parametrize("op", ["ARG_MAX", "ARG_MIN"])
def test_the_large_image_vanishes(op: str) -> None:
    maker = Maker()
    graph = maker.graph(_arg(maker, _resized(maker), op=op))
    result = applied(resize_into_arg, graph)
    (node,) = result.graph.nodes
    assert (node.op, node.inputs, node.merged) == (op, graph.inputs, (0,))
    assert node.attributes == ArgAttributes(3, RESIZE)
    assert result.applied == (f"RESIZE_BILINEAR 0 into {op} 1",)


def _output(maker: Maker) -> Graph:
    resized = _resized(maker)
    return maker.graph(_arg(maker, resized), resized)


def _two_readers(maker: Maker) -> Graph:
    resized = _resized(maker)
    return maker.graph(_arg(maker, resized), _arg(maker, resized, op="ARG_MIN"))


def _another_reader(maker: Maker) -> Graph:
    return maker.graph(maker.conv(_resized(maker), 4))


def _another_axis(maker: Maker) -> Graph:
    return maker.graph(_arg(maker, _resized(maker), axis=1))


def _steps(maker: Maker) -> Graph:
    source = maker.input(2, 3, 4, 21)
    made = maker.node("RESIZE_BILINEAR", [source], (2, 9, 7, 21), [RELU], attributes=RESIZE)
    return maker.graph(_arg(maker, made))


_OTHERS = "not read by one ARG_MAX or ARG_MIN alone"
DECLINED: list[tuple[Callable[[Maker], Graph], str]] = [
    (_output, _OTHERS),
    (_two_readers, _OTHERS),
    (_another_reader, _OTHERS),
    (_another_axis, "ARG_MAX 1 does not search along the channels"),
    (_steps, "steps follow it"),
]


@pytest.mark.parametrize(("make", "reason"), DECLINED)
def test_declines(make: Callable[[Maker], Graph], reason: str) -> None:
    result = untouched(resize_into_arg, make(Maker()))
    assert result.declined == (f"RESIZE_BILINEAR 0: {reason}",)
