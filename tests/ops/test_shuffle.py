"""Moves that only reorder place elements as NumPy does, composed and written back as nodes."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from litegpu.graph import Graph, Node
from litegpu.ops.move import Digits, MoveAttributes, Source, index_steps
from litegpu.ops.shuffle import Shuffle, keeps_order, shuffle_of, shuffled, then
from passes.graphs import RELU, Maker, Shape

Indices = npt.NDArray[np.int64]


def _indices(steps: list[tuple[int, int]]) -> Indices:
    """Return the input index of each output element, digit by digit."""
    found = np.zeros(1, np.int64)
    for size, step in steps:
        found = (found[:, None] + np.arange(size) * step).ravel()
    return found


def _as_numpy(node: Node, maker: Maker) -> Indices:
    """Return the input index of each output element of a node."""
    attributes = node.attributes
    count = maker.values[node.outputs[0]].elements
    if not isinstance(attributes, MoveAttributes):
        return np.arange(count)
    shape = maker.shape(node.inputs[0])
    steps = index_steps(attributes, shape)
    assert steps is not None
    axes = [math.prod(axis.sizes) for axis in attributes.digits]
    assert axes == list(maker.shape(node.outputs[0]))
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
def test_two_moves_in_one_place_elements_as_numpy_does(
    pair: tuple[tuple[Shape, tuple[int, ...]], ...],
) -> None:
    (shape, order), (other, further) = pair
    maker = Maker()
    for size, axes in pair:
        maker.transpose(maker.input(*size), *axes)
    first, second = maker.nodes
    graph = Graph(maker.values, (), (), ())
    one, two = shuffle_of(graph, first), shuffle_of(graph, second)
    assert one is not None and two is not None
    whole = then(one, two)
    assume(whole is not None)
    assert whole is not None
    elements = np.arange(math.prod(shape))
    expected = elements.reshape(shape).transpose(order).reshape(other).transpose(further).ravel()
    assert keeps_order(whole) == bool(np.all(expected == elements))
    np.testing.assert_array_equal(_indices(list(whole)), expected)
    node = Node(0, "MOVE", 1, first.inputs[:1], second.outputs)
    made = shuffled(graph, node, whole)
    if made is not None:
        assert (made.inputs, made.outputs) == (node.inputs, node.outputs)
        np.testing.assert_array_equal(_as_numpy(made, maker), expected)


def _move(maker: Maker, shape: Shape, attributes: MoveAttributes, out: Shape) -> Node:
    return Node(0, "MOVE", 1, (maker.input(*shape),), (maker.value(out),), attributes=attributes)


_TWICE = (Digits((2, 3)), Digits((4,)))
_PLAIN = (Digits((6,)), Digits((4,)))
_SAME = (Source(((0, 1),)), Source(((1, 1),)))


@pytest.mark.parametrize(
    ("shape", "attributes", "out"),
    [
        (
            (3, 4),
            MoveAttributes((Digits((2, 3)), Digits((4,))), (Source(((1, 1),)), Source(((2, 1),)))),
            (6, 4),
        ),
        ((6, 4), MoveAttributes((Digits((6,)), Digits((2,))), _SAME), (6, 2)),
        ((6, 4), MoveAttributes(_PLAIN, (Source(((0, 1),)), Source(((1, 1),), 1))), (6, 4)),
        ((6, 4), MoveAttributes(_PLAIN, (Source(((0, 1),)), Source(((1, -1),), 3))), (6, 4)),
        ((6, 4), MoveAttributes((Digits((6,), 1), Digits((4,))), _SAME), (5, 4)),
        ((6, 4), MoveAttributes(_PLAIN, (_SAME[0], Source(((1, 1),), bounded=True))), (6, 4)),
        ((6, 4), MoveAttributes(_PLAIN, (_SAME[0], Source(((1, 1),), table=(3, 1, 0, 2)))), (6, 4)),
    ],
    ids=["repeats", "leaves out", "shifted", "reversed", "begins later", "bounded", "looked up"],
)
def test_other_moves_are_no_shuffles(shape: Shape, attributes: MoveAttributes, out: Shape) -> None:
    maker = Maker()
    node = _move(maker, shape, attributes, out)
    assert shuffle_of(Graph(maker.values, (), (), ()), node) is None


def test_what_is_no_move_or_has_steps_is_no_shuffle() -> None:
    maker = Maker()
    source = maker.input(2, 3)
    maker.pad(source, (0, 0), (0, 0))
    maker.node("RESHAPE", [source], (3, 2), [RELU])
    graph = Graph(maker.values, tuple(maker.nodes), (), ())
    assert [shuffle_of(graph, node) for node in graph.nodes] == [None, None]


@pytest.mark.parametrize(
    ("first", "second"),
    [(((2, 3), (3, 1)), ((3, 2), (2, 1))), (((2, 1), (3, 2)), ((2, 1), (3, 2)))],
)
def test_digits_that_run_across_each_other_do_not_compose(first: Shuffle, second: Shuffle) -> None:
    assert then(first, second) is None


def test_a_shuffle_whose_digits_run_across_the_axes_makes_no_node() -> None:
    maker = Maker()
    graph = Graph(maker.values, (), (), ())
    for shape, out in (((6, 2), (3, 4)), ((4, 3), (2, 6))):
        node = Node(0, "MOVE", 1, (maker.input(*shape),), (maker.value(out),))
        assert shuffled(graph, node, ((2, 1), (6, 2))) is None
