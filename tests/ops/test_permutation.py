"""Permutations place elements as NumPy does, also when composed or converted to nodes."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from litegpu.graph import Graph, Node
from litegpu.ops.common.permutation import (
    Permutation,
    keeps_order,
    permutation_of,
    permuted,
    repetition_of,
    then,
)
from litegpu.ops.index_map import IndexMapAttributes, MixedRadix, Source, index_strides
from passes.graphs import RELU, GraphBuilder, Shape

Indices = npt.NDArray[np.int64]


def _indices(steps: list[tuple[int, int]]) -> Indices:
    """Return the input index of each output element, digit by digit."""
    found = np.zeros(1, np.int64)
    for size, step in steps:
        found = (found[:, None] + np.arange(size) * step).ravel()
    return found


def _as_numpy(node: Node, builder: GraphBuilder) -> Indices:
    """Return the input index of each output element of a node."""
    attributes = node.attributes
    count = builder.values[node.outputs[0]].elements
    if not isinstance(attributes, IndexMapAttributes):
        return np.arange(count)
    shape = builder.shape(node.inputs[0])
    steps = index_strides(attributes, shape)
    assert steps is not None
    axes = [math.prod(axis.sizes) for axis in attributes.digits]
    assert axes == list(builder.shape(node.outputs[0]))
    assert len(attributes.sources) == len(shape)
    for source, size in zip(attributes.sources, shape, strict=True):
        assert 1 + sum((attributes.sizes[d] - 1) * f for d, f in source.terms) == size
    return _indices(list(zip(attributes.sizes, steps, strict=True)))


@st.composite
def _factors(draw: st.DrawFn, total: int) -> Shape:
    """Draw a shape of so many elements."""
    shape: list[int] = []
    while len(shape) < 4 and total > 1:
        size = draw(st.sampled_from([d for d in range(1, total + 1) if total % d == 0]))
        shape.append(size)
        total //= size
    return (*shape, total)


@st.composite
def _pairs(draw: st.DrawFn) -> tuple[tuple[Shape, tuple[int, ...]], ...]:
    """Draw two TRANSPOSEs, the second of the first's elements under another shape."""
    total = draw(st.sampled_from([1, 8, 24, 36, 60]))
    shapes = [draw(_factors(total)) for _ in range(2)]
    return tuple((s, tuple(draw(st.permutations(range(len(s)))))) for s in shapes)


@given(pair=_pairs())
def test_two_index_maps_in_one_place_elements_as_numpy_does(
    pair: tuple[tuple[Shape, tuple[int, ...]], ...],
) -> None:
    (shape, order), (other, further) = pair
    builder = GraphBuilder()
    for size, axes in pair:
        builder.transpose(builder.input(*size), *axes)
    first, second = builder.nodes
    graph = Graph(builder.values, (), (), ())
    one, two = permutation_of(graph, first), permutation_of(graph, second)
    assert one is not None and two is not None
    whole = then(one, two)
    assume(whole is not None)
    assert whole is not None
    elements = np.arange(math.prod(shape))
    expected = elements.reshape(shape).transpose(order).reshape(other).transpose(further).ravel()
    assert keeps_order(whole) == bool(np.all(expected == elements))
    np.testing.assert_array_equal(_indices(list(whole)), expected)
    node = Node(0, "INDEX_MAP", 1, first.inputs[:1], second.outputs)
    output = permuted(graph, node, whole)
    if output is not None:
        assert (output.inputs, output.outputs) == (node.inputs, node.outputs)
        np.testing.assert_array_equal(_as_numpy(output, builder), expected)


def _move(builder: GraphBuilder, shape: Shape, attributes: IndexMapAttributes, out: Shape) -> Node:
    return Node(
        0, "INDEX_MAP", 1, (builder.input(*shape),), (builder.value(out),), attributes=attributes
    )


_TWICE = (MixedRadix((2, 3)), MixedRadix((4,)))
_PLAIN = (MixedRadix((6,)), MixedRadix((4,)))
_SAME = (Source(((0, 1),)), Source(((1, 1),)))


@pytest.mark.parametrize(
    ("shape", "attributes", "out"),
    [
        (
            (3, 4),
            IndexMapAttributes(
                (MixedRadix((2, 3)), MixedRadix((4,))), (Source(((1, 1),)), Source(((2, 1),)))
            ),
            (6, 4),
        ),
        ((6, 4), IndexMapAttributes((MixedRadix((6,)), MixedRadix((2,))), _SAME), (6, 2)),
        ((6, 4), IndexMapAttributes(_PLAIN, (Source(((0, 1),)), Source(((1, 1),), 1))), (6, 4)),
        ((6, 4), IndexMapAttributes(_PLAIN, (Source(((0, 1),)), Source(((1, -1),), 3))), (6, 4)),
        ((6, 4), IndexMapAttributes((MixedRadix((6,), 1), MixedRadix((4,))), _SAME), (5, 4)),
        ((6, 4), IndexMapAttributes(_PLAIN, (_SAME[0], Source(((1, 1),), bounded=True))), (6, 4)),
        (
            (6, 4),
            IndexMapAttributes(_PLAIN, (_SAME[0], Source(((1, 1),), table=(3, 1, 0, 2)))),
            (6, 4),
        ),
    ],
    ids=["repeats", "leaves out", "shifted", "reversed", "begins later", "bounded", "looked up"],
)
def test_other_index_maps_are_no_permutation(
    shape: Shape, attributes: IndexMapAttributes, out: Shape
) -> None:
    builder = GraphBuilder()
    node = _move(builder, shape, attributes, out)
    assert permutation_of(Graph(builder.values, (), (), ()), node) is None


def test_what_is_no_move_or_has_steps_is_no_permutation() -> None:
    builder = GraphBuilder()
    source = builder.input(2, 3)
    builder.pad(source, (0, 0), (0, 0))
    builder.node("RESHAPE", [source], (3, 2), [RELU])
    graph = Graph(builder.values, tuple(builder.nodes), (), ())
    assert [permutation_of(graph, node) for node in graph.nodes] == [None, None]


@pytest.mark.parametrize(
    ("first", "second"),
    [(((2, 3), (3, 1)), ((3, 2), (2, 1))), (((2, 1), (3, 2)), ((2, 1), (3, 2)))],
)
def test_digits_that_run_across_each_other_do_not_compose(
    first: Permutation, second: Permutation
) -> None:
    assert then(first, second) is None


def test_a_permutation_whose_digits_run_across_the_axes_makes_no_node() -> None:
    builder = GraphBuilder()
    graph = Graph(builder.values, (), (), ())
    for shape, out in (((6, 2), (3, 4)), ((4, 3), (2, 6))):
        node = Node(0, "INDEX_MAP", 1, (builder.input(*shape),), (builder.value(out),))
        assert permuted(graph, node, ((2, 1), (6, 2))) is None


def test_repeated_elements_have_steps_of_0() -> None:
    builder = GraphBuilder()
    source = builder.input(1, 2, 1, 3)
    builder.normalized("BROADCAST_TO", source, (1, 2, 4, 3), (1, 2, 4, 3))
    builder.concat(2, source, source)
    builder.concat(1, source, source)
    builder.concat(2, source, builder.input(1, 2, 1, 3))
    builder.elementwise(source, RELU)
    builder.transpose(source, 3, 1, 2, 0)
    graph = Graph(builder.values, tuple(builder.nodes), (), ())
    assert [repetition_of(graph, node) for node in graph.nodes] == [
        ((2, 3), (4, 0), (3, 1)),
        ((2, 3), (2, 0), (3, 1)),
        ((2, 0), (6, 1)),
        None,
        None,
        ((3, 1), (2, 3)),
    ]


def test_what_reads_repeated_elements_repeats_them() -> None:
    repeated = ((2, 3), (4, 0), (3, 1))
    assert then(repeated, ((4, 3), (2, 12), (3, 1))) == ((4, 0), (6, 1))
    assert then(repeated, ((24, 1), (5, 0))) == ((2, 3), (4, 0), (3, 1), (5, 0))
