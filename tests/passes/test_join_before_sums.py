"""A sum of products of slices becomes a sum of one product."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from litegpu.graph import DType, Graph
from litegpu.passes.join_before_sums import join_before_sums
from passes.graphs import GraphBuilder, Shape, applied, ops, untouched

SHAPE = (2, 3, 4, 6)
HALF = (2, 3, 4, 3)
Floats = npt.NDArray[np.float32]


class Builder(GraphBuilder):
    """Makes graphs of a model's own operations."""

    def op(self, name: str, *inputs: int, shape: Shape = HALF, **params: str | int) -> int:
        output = self.node(name, inputs, shape)
        self.nodes[-1] = replace(self.nodes[-1], params=params)
        return output

    def halves(self, source: int, axis: int = 3) -> tuple[int, int]:
        """Cut a value of `SHAPE` into halves of an axis."""
        size = [*SHAPE]
        size[axis] //= 2
        begins = [[0] * 4, [0] * 4]
        begins[1][axis] = size[axis]
        low, high = (
            self.op("SLICE", source, *map(self.integers, (begin, size)), shape=tuple(size))
            for begin in begins
        )
        return low, high

    def mul(self, *pair: int) -> int:
        shape = max(map(self.shape, pair), key=np.prod)
        return self.op("MUL", *pair, shape=shape, activation="none")

    def total(self, op: str, *products: int, activation: str = "none") -> int:
        return self.op(op, *products, shape=self.shape(products[0]), activation=activation)

    def joined(self, *parts: int, axis: int = 3) -> Graph:
        whole = self.op("CONCATENATION", *parts, shape=SHAPE, axis=axis, activation="none")
        return self.graph(whole)


def computed(graph: Graph, *inputs: Floats) -> Floats:
    """Return the output of a graph of such operations."""
    found = dict(zip(graph.inputs, inputs, strict=True))
    found |= {v: np.asarray(each.data) for v, each in graph.values.items() if each.is_constant}
    functions: dict[str, Callable[..., Floats]] = {
        "MUL": np.multiply,
        "ADD": np.add,
        "SUB": np.subtract,
        "NEG": np.negative,
        "SLICE": lambda x, begin, size: x[
            tuple(slice(b, b + s) for b, s in zip(begin, size, strict=True))
        ],
    }
    for node in graph.nodes:
        operands = [found[v] for v in node.inputs]
        if node.op == "CONCATENATION":
            found[node.outputs[0]] = np.concatenate(operands, node.params["axis"])
        else:
            found[node.outputs[0]] = functions[node.op](*operands)
        assert found[node.outputs[0]].shape == graph.values[node.outputs[0]].shape, node
    return found[graph.outputs[0]]


def numbers(*shape: int) -> Floats:
    return np.random.default_rng(sum(shape)).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("turned", [False, True], ids=["in order", "exchanged"])
@pytest.mark.parametrize("axis", [3, -1, 2])
@pytest.mark.parametrize("constant", [False, True])
def test_rotary_positions(constant: bool, axis: int, turned: bool) -> None:
    builder = Builder()
    source = builder.input(*SHAPE)
    factor = (1, 3, 1, 3) if axis % 4 == 3 else (1, 1, 2, 6)
    arrays = [numbers(*factor), numbers(*factor) * 2]
    cosine, sine = (
        builder.value(factor, each) if constant else builder.input(*factor) for each in arrays
    )
    low, high = builder.halves(source, axis % 4)
    first = builder.total("SUB", builder.mul(low, cosine), builder.mul(high, sine))
    terms = [
        builder.mul(high, cosine),
        builder.mul(sine, low) if turned else builder.mul(low, sine),
    ]
    second = builder.total("ADD", *terms[:: -1 if turned else 1])
    graph = builder.joined(first, second, axis=axis)
    result = applied(join_before_sums, graph)
    factors = 0 if constant else 1
    joins = ["CONCATENATION"]
    after = ["SLICE", *joins * factors, "MUL", "NEG", *joins * (1 + factors), "MUL", "ADD"]
    assert ops(result) == ["SLICE", *after]
    products = [node for node in result.graph.nodes if node.op == "MUL"]
    assert products[0].inputs[0] == source, "the parts in their order are the value itself"
    assert result.applied == ("CONCATENATION 8 before SUB 4, ADD 7",)
    inputs = [numbers(*SHAPE), *([] if constant else arrays)]
    np.testing.assert_array_equal(computed(result.graph, *inputs), computed(graph, *inputs))


def test_other_parts_are_joined() -> None:
    """Three thirds, none of which is where it was."""
    builder = Builder()
    source = builder.input(*SHAPE)
    size = (2, 3, 4, 2)
    parts = [
        builder.op("SLICE", source, *map(builder.integers, ((0, 0, 0, i), size)), shape=size)
        for i in (4, 0, 2)
    ]
    factors = [builder.value((2,), numbers(2) * (i + 1)) for i in range(2)]
    sums = [
        builder.total(op, builder.mul(part, factors[0]), builder.mul(other, factors[1]))
        for op, part, other in zip(("ADD", "SUB", "SUB"), parts, parts[::-1], strict=True)
    ]
    graph = builder.joined(*sums)
    result = applied(join_before_sums, graph)
    assert ops(result)[3:] == ["CONCATENATION", "MUL", "NEG", "NEG", "CONCATENATION", "MUL", "ADD"]
    given = numbers(*SHAPE)
    np.testing.assert_array_equal(computed(result.graph, given), computed(graph, given))


def _sums(builder: Builder, sources: tuple[int, int], factors: tuple[int, int]) -> list[int]:
    (low, _), (_, high) = map(builder.halves, sources)
    return [
        builder.total("ADD", builder.mul(low, factors[0]), builder.mul(high, factors[1]))
        for _ in range(2)
    ]


@pytest.mark.parametrize(
    ("sources", "shapes", "reason"),
    [
        (2, ((3,), (3,)), "the sums read parts of several values"),
        (1, ((3,), (1,)), "MUL 5 repeats its factor along the axis"),
        (1, ((), (3,)), "MUL 4 repeats its factor along the axis"),
        (1, ((4, 3), (1, 3)), "the factors have several shapes"),
    ],
)
def test_what_cannot_be_joined(sources: int, shapes: tuple[Shape, Shape], reason: str) -> None:
    builder = Builder()
    found = [builder.input(*SHAPE) for _ in range(sources)]
    factors = builder.constant(*shapes[0]), builder.constant(*shapes[1])
    graph = builder.joined(*_sums(builder, (found[0], found[-1]), factors))
    assert untouched(join_before_sums, graph).declined == (f"CONCATENATION 10: {reason}",)


def _with_activation(builder: Builder, products: list[int]) -> Graph:
    sums = [builder.total("ADD", *products[:2], activation="relu")]
    return builder.joined(*sums, builder.total("ADD", *products[2:]))


def _other_readers(builder: Builder, products: list[int]) -> Graph:
    sums = [builder.total("ADD", *products[i : i + 2]) for i in (0, 2)]
    return replace(graph := builder.joined(*sums), outputs=(*graph.outputs, products[0]))


def _whole_numbers(builder: Builder, products: list[int]) -> Graph:
    sums = [builder.total("ADD", *products[i : i + 2]) for i in (0, 2)]
    builder.values[products[1]] = replace(builder.values[products[1]], dtype=DType.INT32)
    return builder.joined(*sums)


def _without_products(builder: Builder, products: list[int]) -> Graph:
    low, high = builder.halves(builder.inputs[0])
    return builder.joined(builder.total("ADD", low, high), builder.total("ADD", *products[:2]))


@pytest.mark.parametrize(
    "build", [_with_activation, _other_readers, _whole_numbers, _without_products]
)
def test_what_is_no_such_sum(build: Callable[[Builder, list[int]], Graph]) -> None:
    builder = Builder()
    parts = builder.halves(builder.input(*SHAPE))
    factor = builder.constant(3)
    graph = build(builder, [builder.mul(parts[i % 2], factor) for i in range(4)])
    assert untouched(join_before_sums, graph).declined == ()
