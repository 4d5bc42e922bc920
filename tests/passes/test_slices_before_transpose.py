"""Slices of a transposed value move before the transpose."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from litegpu.graph import Graph, Node
from litegpu.passes.slices_before_transpose import slices_before_transpose
from passes.graphs import GraphBuilder, Shape, applied, ops, untouched


def transpose(builder: GraphBuilder, source: int, order: Sequence[int]) -> int:
    shape = tuple(builder.shape(source)[axis] for axis in order)
    return builder.node("TRANSPOSE", [source, builder.integers(order)], shape)


def cut(builder: GraphBuilder, source: int, begin: Shape, size: Shape) -> int:
    found = tuple(
        whole - first if count < 0 else count
        for whole, first, count in zip(builder.shape(source), begin, size, strict=True)
    )
    operands = [source, builder.integers(begin), builder.integers(size)]
    return builder.node("SLICE", operands, found)


def computed(graph: Graph, source: npt.NDArray[np.float32]) -> list[npt.NDArray[np.float32]]:
    """Return the outputs of a graph of TRANSPOSE and SLICE."""
    found = {graph.inputs[0]: source}
    for node in graph.nodes:
        value, operands = found[node.inputs[0]], [graph.values[v].data for v in node.inputs[1:]]
        if node.op == "RESHAPE":
            found[node.outputs[0]] = value.reshape(graph.values[node.outputs[0]].shape)
            continue
        first, *others = operands
        assert first is not None
        if node.op == "TRANSPOSE":
            value = value.transpose(first)
        else:
            (sizes,) = others
            assert sizes is not None
            parts = zip(first.tolist(), sizes.tolist(), strict=True)
            value = value[tuple(slice(a, None if n < 0 else a + n) for a, n in parts)]
        assert value.shape == graph.values[node.outputs[0]].shape
        found[node.outputs[0]] = value
    return [found[v] for v in graph.outputs]


@pytest.mark.parametrize(
    ("shape", "order", "parts"),
    [
        ((2, 5, 3), (2, 0, 1), [((i, 0, 0), (1, -1, -1)) for i in range(3)]),
        ((2, 5, 6, 3), (0, 2, -1, 1), [((0, 1, 0, 2), (2, 3, 3, 1)), ((1, 0, 1, 0), (1, 6, 2, 5))]),
        ((2, 5, 3, 2, 4), (2, 0, 3, 1, 4), [((i, 0, 0, 0, 0), (1, 2, 2, 5, 4)) for i in range(3)]),
        ((1, 2, 5, 3, 2, 3), (3, 0, 1, 4, 2, 5), [((1, 0, 0, 0, 0, 0), (2, 1, 2, 2, 5, 3))]),
    ],
)
def test_parts_are_cut_first(
    shape: Shape, order: Shape, parts: Sequence[tuple[Shape, Shape]]
) -> None:
    builder = GraphBuilder()
    source = builder.input(*shape)
    moved = transpose(builder, source, order)
    graph = builder.graph(*(cut(builder, moved, *part) for part in parts))
    result = applied(slices_before_transpose, graph)
    assert ops(result) == ["SLICE", "TRANSPOSE"] * len(parts)
    assert all(each.inputs[0] == source for each in result.graph.nodes[::2])
    number = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    for before, after in zip(computed(graph, number), computed(result.graph, number), strict=True):
        np.testing.assert_array_equal(before, after)


ParamsOf = tuple[str, Callable[[GraphBuilder], list[int]], dict[str, int], list[Shape]]
"""An operation, its operands after the value, its options and the shapes of its results."""


def _strided(builder: GraphBuilder) -> list[int]:
    return [builder.integers(each) for each in ((1, 0, 0), (2, 2, 4), (1, 1, 1))]


PARTS: dict[str, tuple[ParamsOf, list[Any]]] = {
    "strided": (("STRIDED_SLICE", _strided, {}, [(1, 2, 4)]), [np.s_[1:2]]),
    "one": (("STRIDED_SLICE", _strided, {"shrink_axis_mask": 1}, [(2, 4)]), [1]),
    "split": (
        ("SPLIT", lambda builder: [builder.integers([0])], {"num_splits": 3}, [(1, 2, 4)] * 3),
        [np.s_[i : i + 1] for i in range(3)],
    ),
    "sizes": (
        (
            "SPLIT_V",
            lambda builder: [builder.integers([1, 2]), builder.integers(0)],
            {"num_splits": 2},
            [(1, 2, 4), (2, 2, 4)],
        ),
        [np.s_[:1], np.s_[1:]],
    ),
    "unpack": (("UNPACK", lambda _: [], {"num": 3, "axis": 0}, [(2, 4)] * 3), [0, 1, 2]),
    "gather": (("GATHER", lambda builder: [builder.integers(2)], {"axis": 0}, [(2, 4)]), [2]),
    "rows": (
        ("GATHER", lambda builder: [builder.integers([1, 2])], {"axis": 0}, [(2, 2, 4)]),
        [np.s_[1:]],
    ),
}


@pytest.mark.parametrize("kind", PARTS)
def test_every_operation_that_takes_parts(kind: str) -> None:
    """Take parts of [3, 2, 4], which is transposed from [2, 4, 3]."""
    (op, operands, params, shapes), wanted = PARTS[kind]
    builder = GraphBuilder()
    source = builder.input(2, 4, 3)
    moved = transpose(builder, source, (2, 0, 1))
    inputs = [moved, *operands(builder)]
    if op == "SPLIT":
        inputs.reverse()
    outputs = [builder.value(shape) for shape in shapes]
    builder.nodes.append(Node(1, op, 1, tuple(inputs), tuple(outputs), params=params))
    result = applied(slices_before_transpose, builder.graph(*outputs))
    assert set(ops(result)) <= {"SLICE", "TRANSPOSE", "RESHAPE"}
    assert ops(result).count("SLICE") == len(outputs)
    number = np.arange(24, dtype=np.float32).reshape(2, 4, 3)
    for part, found in zip(wanted, computed(result.graph, number), strict=True):
        np.testing.assert_array_equal(found, number.transpose(2, 0, 1)[part])


def _with_steps(builder: GraphBuilder) -> Graph:
    moved = transpose(builder, builder.input(2, 4, 3), (2, 0, 1))
    bounds = [builder.integers(each) for each in ((0, 0, 0), (3, 2, 4), (2, 1, 1))]
    return builder.graph(builder.node("STRIDED_SLICE", [moved, *bounds], (2, 2, 4)))


def _permuted(builder: GraphBuilder) -> Graph:
    moved = transpose(builder, builder.input(2, 4, 3), (2, 0, 1))
    found = builder.node("GATHER", [moved, builder.integers([2, 0])], (2, 2, 4))
    builder.nodes[-1] = replace(builder.nodes[-1], params={"axis": 0})
    return builder.graph(found)


def _other_operand(builder: GraphBuilder) -> Graph:
    """Read the result of a transpose as the indices."""
    moved = transpose(builder, builder.input(3, 2), (1, 0))
    found = builder.node("GATHER", [builder.constant(4, 5), moved], (2, 3, 5))
    builder.nodes[-1] = replace(builder.nodes[-1], params={"axis": 0})
    return builder.graph(found)


def _read_whole(builder: GraphBuilder) -> Graph:
    moved = transpose(builder, builder.input(2, 3), (1, 0))
    return builder.graph(cut(builder, moved, (0, 0), (1, 2)), builder.reshape(moved, 6))


def _output(builder: GraphBuilder) -> Graph:
    moved = transpose(builder, builder.input(2, 3), (1, 0))
    return builder.graph(cut(builder, moved, (0, 0), (1, 2)), moved)


def _computed_begin(builder: GraphBuilder) -> Graph:
    moved = transpose(builder, builder.input(2, 3), (1, 0))
    operands = [moved, builder.input(2), builder.integers((1, 2))]
    return builder.graph(builder.node("SLICE", operands, (1, 2)))


def _computed_order(builder: GraphBuilder) -> Graph:
    moved = builder.node("TRANSPOSE", [builder.input(2, 3), builder.input(2)], (3, 2))
    return builder.graph(cut(builder, moved, (0, 0), (1, 2)))


@pytest.mark.parametrize(
    "write",
    [
        *(_with_steps, _permuted, _other_operand),
        *(_read_whole, _output, _computed_begin, _computed_order),
    ],
)
def test_what_stays_as_it_is(write: Callable[[GraphBuilder], Graph]) -> None:
    untouched(slices_before_transpose, write(GraphBuilder()))
