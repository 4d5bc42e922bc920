"""Updates read the value before a RESHAPE, which needs no kernel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from litegpu.graph import Graph
from litegpu.ops.dynamic_update_slice import UpdateAttributes
from litegpu.passes.reshape_into_update import reshape_into_update
from litegpu.zoo.writer import TensorRef
from passes.graphs import RELU, GraphBuilder, applied, ops, untouched
from passes.models import Model, check_numbers

CACHE = (1, 1, 12, 40)
PART = (1, 1, 12, 1)


def _update(builder: GraphBuilder, part: int) -> int:
    operands = [builder.input(*CACHE), part, builder.integers([0, 0, 0, 3])]
    attributes = UpdateAttributes(PART)
    return builder.node("DYNAMIC_UPDATE_SLICE", operands, CACHE, attributes=attributes)


def test_the_reshape_vanishes() -> None:
    builder = GraphBuilder()
    source = builder.input(1, 1, 12)
    result = _update(builder, builder.reshape(source, *PART))
    found = applied(reshape_into_update, builder.graph(result))
    (node,) = found.graph.nodes
    assert node.inputs[1] == source
    assert node.attributes == UpdateAttributes(PART)
    assert found.applied == ("RESHAPE 0 into DYNAMIC_UPDATE_SLICE 1",)


def test_several_reshapes_vanish_unless_others_read_them() -> None:
    builder = GraphBuilder()
    source = builder.input(2, 6)
    between = builder.reshape(source, 12)
    result = _update(builder, builder.reshape(between, *PART))
    graph = builder.graph(result, builder.elementwise(between, RELU))
    found = applied(reshape_into_update, graph)
    assert ops(found) == ["RESHAPE", "DYNAMIC_UPDATE_SLICE", "COPY"]
    assert found.graph.nodes[1].inputs[1] == source


def _plain(builder: GraphBuilder) -> Graph:
    return builder.graph(_update(builder, builder.input(*PART)))


def _activated(builder: GraphBuilder) -> Graph:
    part = builder.reshape(builder.input(1, 1, 12), *PART)
    builder.nodes[-1] = replace(builder.nodes[-1], epilogue=(RELU,))
    return builder.graph(_update(builder, part))


def _of_the_cache(builder: GraphBuilder) -> Graph:
    cache = builder.reshape(builder.input(12, 40), *CACHE)
    operands = [cache, builder.input(*PART), builder.integers([0, 0, 0, 3])]
    attributes = UpdateAttributes(PART)
    return builder.graph(
        builder.node("DYNAMIC_UPDATE_SLICE", operands, CACHE, attributes=attributes)
    )


@pytest.mark.parametrize("write", [_plain, _activated, _of_the_cache])
def test_others_stay(write: Callable[[GraphBuilder], Graph]) -> None:
    untouched(reshape_into_update, write(GraphBuilder()))


def _cache(model: Model) -> list[TensorRef]:
    cache, source = model.input(*CACHE), model.input(1, 1, 12)
    part = model.reshape(model.op("NEG", source), *PART)
    start = model.integers(0, 0, 0, 3)
    return [model.op("DYNAMIC_UPDATE_SLICE", cache, part, start)]


def test_keeps_the_numbers() -> None:
    check_numbers(_cache, "reshape_into_update", 1)
