"""ARG_MAX resizes its input while it searches."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from litegpu.graph import Graph
from litegpu.ops.arg_max import ArgAttributes
from litegpu.ops.resize_bilinear import ResizeAttributes
from litegpu.passes.resize_into_arg import resize_into_arg
from passes.graphs import RELU, GraphBuilder, applied, untouched

RESIZE = ResizeAttributes(align_corners=True, half_pixel=False)


def _resized(builder: GraphBuilder) -> int:
    source = builder.input(2, 3, 4, 21)
    return builder.node("RESIZE_BILINEAR", [source], (2, 9, 7, 21), attributes=RESIZE)


def _arg(builder: GraphBuilder, source: int, axis: int = 3, op: str = "ARG_MAX") -> int:
    shape = tuple(1 if i == axis else size for i, size in enumerate(builder.shape(source)))
    return builder.node(op, [source], shape, attributes=ArgAttributes(axis))


@pytest.mark.parametrize("op", ["ARG_MAX", "ARG_MIN"])
def test_the_large_image_vanishes(op: str) -> None:
    builder = GraphBuilder()
    graph = builder.graph(_arg(builder, _resized(builder), op=op))
    result = applied(resize_into_arg, graph)
    (node,) = result.graph.nodes
    assert (node.op, node.inputs, node.merged) == (op, graph.inputs, (0,))
    assert node.attributes == ArgAttributes(3, RESIZE)
    assert result.applied == (f"RESIZE_BILINEAR 0 into {op} 1",)


def _output(builder: GraphBuilder) -> Graph:
    resized = _resized(builder)
    return builder.graph(_arg(builder, resized), resized)


def _two_readers(builder: GraphBuilder) -> Graph:
    resized = _resized(builder)
    return builder.graph(_arg(builder, resized), _arg(builder, resized, op="ARG_MIN"))


def _another_reader(builder: GraphBuilder) -> Graph:
    return builder.graph(builder.conv(_resized(builder), 4))


def _another_axis(builder: GraphBuilder) -> Graph:
    return builder.graph(_arg(builder, _resized(builder), axis=1))


def _elementwise(builder: GraphBuilder) -> Graph:
    source = builder.input(2, 3, 4, 21)
    output = builder.node("RESIZE_BILINEAR", [source], (2, 9, 7, 21), [RELU], attributes=RESIZE)
    return builder.graph(_arg(builder, output))


_OTHERS = "not read by one ARG_MAX or ARG_MIN alone"
DECLINED: list[tuple[Callable[[GraphBuilder], Graph], str]] = [
    (_output, _OTHERS),
    (_two_readers, _OTHERS),
    (_another_reader, _OTHERS),
    (_another_axis, "ARG_MAX 1 does not search along the channels"),
    (_elementwise, "epilogue ops follow it"),
]


@pytest.mark.parametrize(("make", "reason"), DECLINED)
def test_declines(make: Callable[[GraphBuilder], Graph], reason: str) -> None:
    result = untouched(resize_into_arg, make(GraphBuilder()))
    assert result.declined == (f"RESIZE_BILINEAR 0: {reason}",)
