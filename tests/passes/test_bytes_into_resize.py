"""A bilinear resize reads integers, and picks their channels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from cases.base import CLOSE
from litegpu.graph import DType, EpilogueOp, Graph
from litegpu.ops.resize_bilinear import ResizeAttributes
from litegpu.passes.bytes_into_resize import bytes_into_resize
from litegpu.zoo.writer import TensorRef
from passes.graphs import RELU, GraphBuilder, Shape, applied, ops, untouched
from passes.models import Model, Write, check_numbers

CAST = EpilogueOp("CAST_I32_FLOAT32")
RESIZE = ResizeAttributes(align_corners=False, half_pixel=True)
SHAPE = (2, 3, 4, 4)


def _bytes(builder: GraphBuilder, shape: Shape = SHAPE) -> int:
    v = builder.input(*shape)
    builder.values[v] = replace(builder.values[v], dtype=DType.UINT8)
    return v


def _resized(builder: GraphBuilder, source: int) -> int:
    shape = (2, 9, 7, builder.shape(source)[3])
    return builder.node("RESIZE_BILINEAR", [source], shape, attributes=RESIZE)


def _picked(
    builder: GraphBuilder, source: int, begin: Shape, end: Shape, step: int, *epilogue: EpilogueOp
) -> int:
    """Add a slice with steps along the channels, and what follows it in one kernel."""
    size = len(range(begin[3], end[3], step))
    shape = (*(e - b for b, e in zip(begin[:3], end[:3], strict=True)), size)
    ends = (*end[:3], max(end[3], 0))
    picked = builder.normalized(
        *("STRIDED_SLICE", source, shape, begin, ends, (1, 1, 1, step)),
        end_mask=0b1000 if end[3] < 0 else 0,
    )
    builder.nodes[-1] = replace(builder.nodes[-1], epilogue=epilogue)
    return picked


def _reversed(builder: GraphBuilder, source: int) -> int:
    return _picked(builder, source, (0, 0, 0, 2), (2, 3, 4, -1), -1, CAST)


@pytest.mark.parametrize(
    ("cast", "lanes"),
    [
        (lambda builder, v: builder.elementwise(v, CAST), ()),
        (_reversed, (2, 1, 0)),
        (lambda b, v: _picked(b, v, (0, 0, 0, 1), (2, 3, 4, 4), 2, CAST), (1, 3)),
    ],
)
def test_the_floats_vanish(
    cast: Callable[[GraphBuilder, int], int], lanes: tuple[int, ...]
) -> None:
    builder = GraphBuilder()
    graph = builder.graph(_resized(builder, cast(builder, _bytes(builder))))
    result = applied(bytes_into_resize, graph)
    (node,) = result.graph.nodes
    assert (node.inputs, node.merged) == (graph.inputs, (0,))
    assert node.attributes == replace(RESIZE, lanes=lanes)
    assert result.applied == (f"{graph.nodes[0].op} 0 into RESIZE_BILINEAR 1",)


def _two_readers(builder: GraphBuilder) -> Graph:
    floats = builder.elementwise(_bytes(builder), CAST)
    return builder.graph(_resized(builder, floats), builder.elementwise(floats, RELU))


def _output(builder: GraphBuilder) -> Graph:
    floats = builder.elementwise(_bytes(builder), CAST)
    return builder.graph(floats, _resized(builder, floats))


def _rows(builder: GraphBuilder) -> Graph:
    cut = _picked(builder, _bytes(builder), (0, 1, 0, 0), (2, 3, 4, 3), 1, CAST)
    return builder.graph(_resized(builder, cut))


def _first_rows(builder: GraphBuilder) -> Graph:
    cut = _picked(builder, _bytes(builder), (0, 0, 0, 0), (2, 2, 4, 3), 1, CAST)
    return builder.graph(_resized(builder, cut))


def _deep(builder: GraphBuilder) -> Graph:
    cut = _picked(builder, _bytes(builder, (2, 3, 4, 5)), (0, 0, 0, 1), (2, 3, 4, 4), 1, CAST)
    return builder.graph(_resized(builder, cut))


def _broadcast(builder: GraphBuilder) -> Graph:
    wide = builder.elementwise(_bytes(builder, (2, 3, 4, 1)), CAST, shape=SHAPE)
    return builder.graph(_resized(builder, wide))


DECLINED: list[tuple[Callable[[GraphBuilder], Graph], str]] = [
    (_two_readers, "other nodes also read the floats"),
    (_output, "other nodes also read the floats"),
    (_rows, "the node moves elements along other axes than the channels"),
    (_first_rows, "the node moves elements along other axes than the channels"),
    (_broadcast, "the node moves elements along other axes than the channels"),
    (_deep, "the node moves channels, and there are more than 4"),
]


@pytest.mark.parametrize(("make", "reason"), DECLINED)
def test_declines(make: Callable[[GraphBuilder], Graph], reason: str) -> None:
    graph = make(GraphBuilder())
    result = untouched(bytes_into_resize, graph)
    (found,) = result.declined
    assert found.endswith(f"into RESIZE_BILINEAR 1: {reason}")


@pytest.mark.parametrize("epilogue", [(CAST, RELU), (RELU,), ()])
def test_what_is_computed_before_stays(epilogue: tuple[EpilogueOp, ...]) -> None:
    builder = GraphBuilder()
    graph = builder.graph(_resized(builder, builder.elementwise(_bytes(builder), *epilogue)))
    assert untouched(bytes_into_resize, graph).declined == ()


def test_floats_stay_floats() -> None:
    builder = GraphBuilder()
    graph = builder.graph(_resized(builder, builder.elementwise(builder.input(*SHAPE), CAST)))
    assert ops(untouched(bytes_into_resize, graph)) == ["COPY", "RESIZE_BILINEAR"]


def _picture(model: Model) -> list[TensorRef]:
    """Write a resize of bytes whose channels are in another order."""
    bytes_ = as_bytes(model, model.input(2, 5, 4, 4))
    picked = cut(model, bytes_, (0, 0, 0, 3), (2, 5, 4, 0), (1, 1, 1, -1))
    floats = model.op("CAST", picked, in_data_type="UINT8", out_data_type="FLOAT32")
    return [model.op("RESIZE_BILINEAR", floats, model.integers(10, 8))]


def as_bytes(model: Model, source: TensorRef) -> TensorRef:
    """Add what makes bytes of whole numbers."""
    options = {"in_data_type": "FLOAT32", "out_data_type": "UINT8"}
    operands = [model.op("ABS", source)]
    return model.writer.op("CAST", operands, [(1,)], options=options, dtype="uint8")


def cut(model: Model, source: TensorRef, begin: Shape, end: Shape, step: Shape) -> TensorRef:
    operands = [source, *(model.integers(*each) for each in (begin, end, step))]
    return model.writer.op("STRIDED_SLICE", operands, [(1,)], dtype="uint8")


MODELS: list[tuple[Write, int]] = [(_picture, 1)]


@pytest.mark.parametrize(("write", "saved"), MODELS)
def test_keeps_the_numbers(write: Write, saved: int) -> None:
    check_numbers(write, "bytes_into_resize", saved, CLOSE)
