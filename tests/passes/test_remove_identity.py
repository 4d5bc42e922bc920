"""Nodes that do not change their input are removed."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from litegpu.graph import SELF, DType, EpilogueOp
from litegpu.ops.copy import CopyAttributes
from litegpu.passes.base import NodePositions
from litegpu.passes.remove_identity import remove_identity
from litegpu.zoo.writer import TensorRef
from passes.graphs import RELU, GraphBuilder, Shape, applied, ops, untouched
from passes.models import Model, Write, check_numbers

SHAPE = (1, 4, 4, 3)
UNCHANGED: dict[str, Callable[[GraphBuilder, int], int]] = {
    "reshape": lambda builder, v: builder.node("RESHAPE", [v], SHAPE),
    "resize": lambda builder, v: builder.node("RESIZE_BILINEAR", [v], SHAPE),
    "empty pad": lambda builder, v: builder.pad(v, *[(0, 0)] * 4),
    "padv2": lambda builder, v: builder.node(
        "PADV2", [v], SHAPE, attributes=CopyAttributes(fill=2.0)
    ),
    "whole slice": lambda builder, v: builder.node(
        "STRIDED_SLICE", [v], SHAPE, attributes=CopyAttributes()
    ),
    "plain copy": lambda builder, v: builder.elementwise(v),
    "cast": lambda builder, v: builder.node("CAST", [v], SHAPE),
    "concat of one": lambda builder, v: builder.concat(3, v),
}


def test_constants_under_another_shape_are_constants() -> None:
    builder = GraphBuilder()
    constant = builder.value((2, 6), np.arange(12, dtype=np.float32).reshape(2, 6))
    between = builder.node("RESHAPE", [constant], (3, 4))
    view = builder.node("RESHAPE", [between], (1, 4, 3))
    total = builder.node("ADD", [builder.input(1, 4, 3), view], (1, 4, 3))
    found = applied(remove_identity, builder.graph(total))
    assert ops(found) == ["ADD"]
    value = found.graph.values[found.graph.nodes[0].inputs[1]]
    assert value.data is not None
    np.testing.assert_array_equal(value.data, np.arange(12).reshape(1, 4, 3))


def test_names_may_come_back() -> None:
    """Each reader follows the renames from the one on that it was there for."""
    builder = GraphBuilder()
    first, second, third = (builder.input(*SHAPE) for _ in range(3))
    graph = builder.graph(*(builder.elementwise(v, RELU) for v in (first, second, third)))
    for renames, expected in (
        ([(first, second), (second, first)], [first, first, third]),
        ([(first, second), (third, first)], [second, second, first]),
        ([(first, second), (second, third), (third, first)], [first, first, first]),
        ([(first, first)], [first, second, third]),
    ):
        nodes = NodePositions(graph.nodes)
        for old, new in renames:
            nodes.rename(old, new)
        assert [node.inputs[0] for node in nodes if node] == expected
        found = {v: nodes.readers(v) for v in (first, second, third)}
        assert found == {v: [i for i, e in enumerate(expected) if e == v] for v in found}


@pytest.mark.parametrize("kind", UNCHANGED)
def test_the_consumer_reads_the_input_instead(kind: str) -> None:
    builder = GraphBuilder()
    source = builder.input(*SHAPE)
    out = builder.conv(UNCHANGED[kind](builder, source), 2)
    graph = builder.graph(out)
    result = applied(remove_identity, graph)
    assert ops(result) == ["CONV_2D"]
    assert result.graph.nodes[0].inputs == (source,)
    assert result.applied == (f"{graph.nodes[0].op} 0 changes nothing",)


def test_a_chain_of_them_goes_at_once() -> None:
    builder = GraphBuilder()
    source = builder.input(*SHAPE)
    value = source
    for kind in ("reshape", "resize", "empty pad"):
        value = UNCHANGED[kind](builder, value)
    result = applied(remove_identity, builder.graph(builder.conv(value, 2)))
    assert ops(result) == ["CONV_2D"]
    assert result.graph.nodes[0].inputs == (source,)


def test_operands_of_epilogue_ops_are_renamed_too() -> None:
    builder = GraphBuilder()
    source = builder.input(*SHAPE)
    same = UNCHANGED["reshape"](builder, source)
    computed = builder.conv(source, 3)
    out = builder.elementwise(computed, EpilogueOp("ADD", (same,)), EpilogueOp("MUL", (SELF,)))
    result = applied(remove_identity, builder.graph(out))
    assert result.graph.nodes[-1].epilogue == (
        EpilogueOp("ADD", (source,)),
        EpilogueOp("MUL", (SELF,)),
    )


def test_all_readers_are_renamed() -> None:
    builder = GraphBuilder()
    source = builder.input(*SHAPE)
    same = UNCHANGED["reshape"](builder, source)
    graph = builder.graph(builder.conv(same, 2), builder.concat(3, same, source))
    result = applied(remove_identity, graph)
    assert [node.inputs for node in result.graph.nodes] == [(source,), (source, source)]


@pytest.mark.parametrize(("before", "after"), [((1, 6), (6,)), ((6,), (1, 6)), ((4, 6), (1, 4, 6))])
def test_elementwise_ops_skip_leading_axes_of_size_one(before: Shape, after: Shape) -> None:
    builder = GraphBuilder()
    source, other = builder.input(*before), builder.input(1, 4, 6)
    view = builder.node("RESHAPE", [source], after)
    out = builder.elementwise(other, EpilogueOp("ADD", (view,)))
    result = applied(remove_identity, builder.graph(out))
    assert ops(result) == ["COPY"]
    assert result.graph.nodes[0].epilogue == (EpilogueOp("ADD", (source,)),)


def _of_other_axes(builder: GraphBuilder) -> int:
    return builder.node("RESHAPE", [builder.input(2, 6)], (12,))


def _of_another_type(builder: GraphBuilder) -> int:
    return builder.node("RESHAPE", [builder.value((1, 6), dtype=DType.INT32)], (6,))


@pytest.mark.parametrize("write", [_of_other_axes, _of_another_type])
def test_elementwise_ops_read_other_views(write: Callable[[GraphBuilder], int]) -> None:
    builder = GraphBuilder()
    view = write(builder)
    builder.inputs = [*{*builder.inputs, builder.nodes[0].inputs[0]}]
    out = builder.elementwise(builder.input(4, *builder.shape(view)), EpilogueOp("ADD", (view,)))
    assert untouched(remove_identity, builder.graph(out)).declined == ()


def test_a_view_that_another_op_reads_remains() -> None:
    """The rank of its operand can matter to any other op, as can that of a smaller result."""
    builder = GraphBuilder()
    view = builder.node("RESHAPE", [builder.input(1, 6)], (6,))
    total = builder.elementwise(builder.input(1, 6), EpilogueOp("ADD", (view,)))
    pooled = builder.node("MAX_POOL_2D", [view], (6,))
    assert untouched(remove_identity, builder.graph(total, pooled)).declined == ()
    builder = GraphBuilder()
    view = builder.node("RESHAPE", [builder.input(1, 6)], (6,))
    graph = builder.graph(builder.elementwise(view, RELU))
    assert untouched(remove_identity, graph).declined == ()
    builder = GraphBuilder()
    view = builder.node("RESHAPE", [builder.input(1, 6)], (6,))
    graph = builder.graph(builder.node("MAX_POOL_2D", [builder.elementwise(view)], (6,)))
    assert ops(applied(remove_identity, graph)) == ["RESHAPE", "MAX_POOL_2D"]


@pytest.mark.parametrize("kind", UNCHANGED)
def test_outputs_are_declined(kind: str) -> None:
    builder = GraphBuilder()
    graph = builder.graph(UNCHANGED[kind](builder, builder.input(*SHAPE)))
    result = untouched(remove_identity, graph)
    assert result.declined == (f"{graph.nodes[0].op} 0 computes an output of the partition",)


def _flipped(builder: GraphBuilder, v: int) -> int:
    attributes = CopyAttributes(begin=(0, 3, 0, 0), step=(1, -1, 1, 1))
    return builder.node("STRIDED_SLICE", [v], SHAPE, attributes=attributes)


def _shifted(builder: GraphBuilder, v: int) -> int:
    """A slice that begins later and a size that agrees by chance is no identity."""
    attributes = CopyAttributes(begin=(0, 1, 0, 0))
    return builder.node("PAD", [v], SHAPE, attributes=attributes)


CHANGED: dict[str, Callable[[GraphBuilder, int], int]] = {
    "flipped": _flipped,
    "shifted": _shifted,
    "other shape": lambda builder, v: builder.node("RESHAPE", [v], (1, 16, 1, 3)),
    "padded": lambda builder, v: builder.pad(v, (0, 0), (0, 1), (0, 0), (0, 0)),
    "with an epilogue": lambda builder, v: builder.pad(v, *[(0, 0)] * 4, epilogue=[RELU]),
    "elementwise": lambda builder, v: builder.elementwise(v, RELU),
    "pool": lambda builder, v: builder.node("MAX_POOL_2D", [v], SHAPE),
    "concat of two": lambda builder, v: builder.concat(3, v, v),
}


@pytest.mark.parametrize("kind", CHANGED)
def test_what_changes_something_stays(kind: str) -> None:
    builder = GraphBuilder()
    graph = builder.graph(builder.conv(CHANGED[kind](builder, builder.input(*SHAPE)), 2))
    assert untouched(remove_identity, graph).declined == ()


def _before_a_pool(model: Model) -> list[TensorRef]:
    source = model.pad(model.input(1, 4, 3, 5), *[(0, 0)] * 4)
    return [model.max_pool(source)]


def _input_to_output(model: Model) -> list[TensorRef]:
    return [model.reshape(model.input(1, 4, 3, 5), 1, 4, 3, 5)]


def _both_names_of_a_value(model: Model) -> list[TensorRef]:
    """The epilogue op reads its running value under another name."""
    computed = model.conv(model.input(1, 4, 3, 5), (5, 1, 1, 5))
    return [model.op("ADD", computed, model.op("CONCATENATION", computed, axis=3))]


def _difference_of_both_names(model: Model) -> list[TensorRef]:
    computed = model.conv(model.input(1, 4, 3, 5), (5, 1, 1, 5))
    return [model.op("SUB", model.op("RELU", computed), model.reshape(computed, 1, 4, 3, 5))]


def _also_an_output(model: Model) -> list[TensorRef]:
    computed = model.conv(model.input(1, 4, 3, 5), (5, 1, 1, 5))
    same = model.reshape(computed, 1, 4, 3, 5)
    return [same, model.op("NEG", same)]


def _a_sum_of_a_row(model: Model) -> list[TensorRef]:
    """The row is the result of a product, as in recurrent layers of Keras."""
    product = model.op("FULLY_CONNECTED", model.input(1, 5), model.constant(6, 5))
    row = model.reshape(product, 6)
    first = model.op("MAXIMUM", model.input(1, 6), model.number(1.0))
    return [model.op("ADD", first, row), model.op("ABS", first)]


MODELS: list[tuple[Write, int]] = [
    (_a_sum_of_a_row, 1),
    (_before_a_pool, 1),
    (_input_to_output, 0),
    (_both_names_of_a_value, 0),
    (_difference_of_both_names, 1),
    (_also_an_output, 0),
]


@pytest.mark.parametrize(("write", "saved"), MODELS)
def test_keeps_the_numbers(write: Write, saved: int) -> None:
    check_numbers(write, "remove_identity", saved)
