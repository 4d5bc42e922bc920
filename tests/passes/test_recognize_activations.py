"""Activations that a model spells out become one op."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from cases.base import SUMS
from litegpu.graph import SELF, EpilogueOp, Graph
from litegpu.passes.recognize_activations import recognize_activations
from litegpu.zoo.writer import TensorRef
from passes.graphs import RELU, GraphBuilder, applied, functions, ops, untouched
from passes.models import Model, check_numbers
from spellings import SPELLED, Expression, X, spell

SHAPE = (2, 3, 4, 5)


def _spelled(builder: GraphBuilder, expression: Expression, x: int) -> int:
    """Add an expression as ops are normalized."""

    def build(name: str, operands: list[Any], activation: str) -> int:
        refs = [builder.number(each) if isinstance(each, float) else each for each in operands]
        after = [] if activation == "NONE" else [EpilogueOp(activation)]
        if len(refs) == 1:
            return builder.elementwise(refs[0], EpilogueOp(name), *after)
        position = next(i for i, v in enumerate(refs) if not builder.values[v].is_constant)
        other = refs[1 - position]
        operand = SELF if other == refs[position] else other
        return builder.elementwise(refs[position], EpilogueOp(name, (operand,), position), *after)

    found: int = spell(expression, x, build)
    return found


@pytest.mark.parametrize("name", SPELLED)
def test_a_spelling_becomes_one_epilogue_op(name: str) -> None:
    function, expression = SPELLED[name]
    builder = GraphBuilder()
    x = builder.conv(builder.input(*SHAPE), 5)
    out = builder.elementwise(_spelled(builder, expression, x), RELU)
    graph = builder.graph(out)
    result = applied(recognize_activations, graph)
    assert ops(result) == ["CONV_2D", "COPY", "COPY"]
    _, epilogue_op, last = result.graph.nodes
    assert epilogue_op.inputs == (x,)
    assert functions(epilogue_op) == [function]
    assert last.inputs == epilogue_op.outputs
    count = len(graph.nodes) - 2
    assert len(epilogue_op.merged) == count - 1
    assert result.applied == (f"COPY {count}: {function} for {count} nodes",)


@pytest.mark.parametrize(
    ("name", "scale"),
    [("sigmoid", 1.0), ("sigmoid_of_multiple", 1.702), ("sigmoid_of_negative", -1)],
)
def test_swish_keeps_the_multiple_of_x(name: str, scale: float) -> None:
    builder = GraphBuilder()
    graph = builder.graph(_spelled(builder, SPELLED[name][1], builder.input(*SHAPE)))
    (epilogue_op,) = applied(recognize_activations, graph).graph.nodes
    ((attribute, value),) = epilogue_op.epilogue[0].attributes
    assert attribute == "scale"
    assert value == pytest.approx(scale)


def test_one_behind_the_other() -> None:
    builder = GraphBuilder()
    value = builder.input(*SHAPE)
    for name in ("product_by_sixth", "tanh_of_power", "sigmoid"):
        value = _spelled(builder, SPELLED[name][1], value)
    result = applied(recognize_activations, builder.graph(value))
    assert [functions(node) for node in result.graph.nodes] == [
        ["HARD_SWISH"],
        ["GELU_TANH"],
        ["SWISH"],
    ]


def test_x_may_be_made_by_epilogue_ops_and_read_by_others() -> None:
    builder = GraphBuilder()
    x = builder.elementwise(builder.input(*SHAPE), EpilogueOp("MUL", (builder.number(2.0),)))
    out = _spelled(builder, SPELLED["product_by_sixth"][1], x)
    result = applied(
        recognize_activations, builder.graph(out, builder.elementwise(x, EpilogueOp("NEG")))
    )
    assert [functions(node) for node in result.graph.nodes] == [["MUL"], ["HARD_SWISH"], ["NEG"]]
    assert result.graph.nodes[1].inputs == (x,)


_SHIFTED = ("ADD", X, 3.0, "RELU6")
_ROUNDED = ("MUL", 0.79788, ("ADD", X, ("MUL", 0.044715, ("POW", X, 3.0))))
CLOSE: dict[str, tuple[str, Expression]] = {
    "a fifth": ("HARD_SWISH", ("DIV", ("MUL", X, _SHIFTED), 6.1)),
    "an inexact sixth": ("HARD_SWISH", ("MUL", ("MUL", X, _SHIFTED), 0.16667)),
    "another shift": ("HARD_SWISH", ("DIV", ("MUL", X, ("ADD", X, 3.01, "RELU6")), 6.0)),
    "a rounded root": ("GELU_TANH", ("MUL", ("MUL", 0.5, X), ("ADD", 1.0, ("TANH", _ROUNDED)))),
}


@pytest.mark.parametrize("name", CLOSE)
def test_other_constants_are_declined(name: str) -> None:
    function, expression = CLOSE[name]
    builder = GraphBuilder()
    out = _spelled(builder, expression, builder.input(*SHAPE))
    result = untouched(recognize_activations, builder.graph(out))
    last = len(builder.nodes) - 1
    assert result.declined == (f"COPY {last}: {function}, but the constants differ",)


def _inner_output(builder: GraphBuilder) -> Graph:
    x = builder.input(*SHAPE)
    shifted = _spelled(builder, _SHIFTED, x)
    product = builder.elementwise(x, EpilogueOp("MUL", (shifted,)))
    out = builder.elementwise(product, EpilogueOp("DIV", (builder.number(6.0),)))
    return builder.graph(out, shifted)


def _inner_read(builder: GraphBuilder) -> Graph:
    x = builder.input(*SHAPE)
    gate = builder.elementwise(x, EpilogueOp("LOGISTIC"))
    return builder.graph(builder.elementwise(x, EpilogueOp("MUL", (gate,))), builder.conv(gate, 2))


@pytest.mark.parametrize(
    ("write", "text"), [(_inner_output, "COPY 2: HARD_SWISH"), (_inner_read, "COPY 1: SWISH")]
)
def test_values_in_between_that_others_read_are_declined(
    write: Callable[[GraphBuilder], Graph], text: str
) -> None:
    result = untouched(recognize_activations, write(GraphBuilder()))
    assert result.declined == (f"{text}, but other nodes read a value in between",)


OTHERS: dict[str, Expression] = {
    "of a square": ("MUL", X, ("LOGISTIC", ("MUL", X, X))),
    "shifted": ("MUL", X, ("LOGISTIC", ("ADD", X, 1.0))),
    "two functions": ("MUL", ("LOGISTIC", X), ("MUL", X, ("TANH", X))),
    "divided by x": ("DIV", 6.0, ("MUL", X, _SHIFTED)),
    "another power": ("MUL", ("POW", X, 0.5), ("LOGISTIC", X)),
    "power of a number": ("MUL", ("POW", 2.0, X), ("LOGISTIC", X)),
    "another function": ("MUL", X, ("SIN", X)),
    "cut below zero": ("MUL", X, ("MAXIMUM", ("MINIMUM", X, 6.0), -1.0)),
    "two computed bounds": ("MUL", X, ("MAXIMUM", ("MUL", X, 2.0), ("ADD", X, 3.0))),
    "many terms": ("MUL", ("MUL", ("POW", ("ADD", X, 1.0), 3.0), ("POW", X, 3.0)), ("TANH", X)),
    "polynomial": ("MUL", X, ("ADD", X, 3.0)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_functions_stay(name: str) -> None:
    builder = GraphBuilder()
    graph = builder.graph(_spelled(builder, OTHERS[name], builder.input(*SHAPE)))
    assert untouched(recognize_activations, graph).declined == ()


def _two_values(builder: GraphBuilder) -> int:
    x = builder.input(*SHAPE)
    return builder.elementwise(
        builder.input(*SHAPE), EpilogueOp("MUL", (builder.elementwise(x, EpilogueOp("LOGISTIC")),))
    )


def _by_channel(builder: GraphBuilder) -> int:
    x = builder.input(*SHAPE)
    shifted = builder.elementwise(x, EpilogueOp("ADD", (builder.constant(5),)), EpilogueOp("RELU6"))
    product = builder.elementwise(x, EpilogueOp("MUL", (shifted,)))
    return builder.elementwise(product, EpilogueOp("DIV", (builder.number(6.0),)))


def _pooled_gate(builder: GraphBuilder) -> int:
    """Squeeze and excitation: the gate is made of another value."""
    x = builder.input(*SHAPE)
    gate = builder.elementwise(builder.node("MEAN", [x], (2, 1, 1, 5)), EpilogueOp("LOGISTIC"))
    return builder.elementwise(x, EpilogueOp("MUL", (gate,)))


def _broadcast(builder: GraphBuilder) -> int:
    x = builder.input(1, 1, 1, 5)
    wide = builder.elementwise(x, EpilogueOp("MUL", (builder.constant(2, 3, 4, 1),)), shape=SHAPE)
    return builder.elementwise(
        wide, EpilogueOp("MUL", (builder.elementwise(x, EpilogueOp("LOGISTIC")),))
    )


@pytest.mark.parametrize("write", [_two_values, _by_channel, _pooled_gate, _broadcast])
def test_what_depends_on_more_than_one_value_stays(write: Callable[[GraphBuilder], int]) -> None:
    builder = GraphBuilder()
    graph = builder.graph(write(builder))
    assert untouched(recognize_activations, graph).declined == ()


def test_a_long_chain_is_not_searched_forever() -> None:
    builder = GraphBuilder()
    x = value = builder.input(*SHAPE)
    for _ in range(40):
        value = builder.elementwise(value, EpilogueOp("ADD", (x,)))
    assert untouched(recognize_activations, builder.graph(value)).declined == ()


def _in_a_model(name: str, behind: bool, model: Model) -> list[TensorRef]:
    x = model.input(1, 4, 3, 5)
    x = model.conv(x, (7, 1, 1, 5)) if behind else x

    def build(op: str, operands: list[Any], activation: str) -> TensorRef:
        refs = [model.number(v) if isinstance(v, float) else v for v in operands]
        options = {} if activation == "NONE" else {"fused_activation_function": activation}
        return model.op(op, *refs, **options)

    return [spell(SPELLED[name][1], x, build)]


@pytest.mark.parametrize(
    ("name", "behind", "saved"),
    [
        ("product_by_sixth", True, 1),
        ("product_by_sixth", False, 0),
        ("tanh_of_products", True, 2),
        ("sigmoid", True, 1),
    ],
)
def test_keeps_the_numbers(name: str, behind: bool, saved: int) -> None:
    write = partial(_in_a_model, name, behind)
    check_numbers(write, "recognize_activations", saved, tolerance=SUMS)
