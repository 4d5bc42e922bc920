"""Elementwise ops that depend on one value become one epilogue op."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from cases.base import SUMS
from litegpu.graph import SELF, DType, EpilogueOp, Graph, Step
from litegpu.ops.common.functions import EXPRESSION, expressions, is_bounded, near_poles
from litegpu.passes.compose_elementwise import compose_elementwise
from litegpu.zoo.writer import TensorRef
from passes.graphs import BY_POSITION, RELU, GraphBuilder, applied, functions, untouched
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
    builder = GraphBuilder()
    x = builder.conv(builder.input(*SHAPE), 5)
    out = builder.elementwise(_spelled(builder, SPELLED[name], x), RELU)
    graph = builder.graph(out)
    result = applied(compose_elementwise, graph)
    (composed,) = (node for node in result.graph.nodes if EXPRESSION in functions(node))
    assert composed.inputs == (x,)
    assert len(composed.epilogue) == 1
    # At most a scale behind the expression stays: another pass fuses it.
    removed = len(graph.nodes) - len(result.graph.nodes)
    assert len(result.graph.nodes) <= 4
    assert len(composed.merged) == removed
    assert result.applied[-1] == f"COPY {composed.index}: one op for {removed + 1} nodes"


def test_each_step_reads_earlier_results() -> None:
    builder = GraphBuilder()
    x = builder.input(*SHAPE)
    slopes, one = builder.constant(5), builder.number(1.0)
    gate = builder.elementwise(x, EpilogueOp("MUL", (slopes,)), EpilogueOp("TANH"))
    sums = builder.elementwise(gate, EpilogueOp("SUB", (one,), 1))
    graph = builder.graph(builder.elementwise(sums, EpilogueOp("MUL", (x,)), RELU))
    (composed,) = applied(compose_elementwise, graph).graph.nodes
    (epilogue_op,) = composed.epilogue
    assert epilogue_op.operands == (slopes,)
    assert epilogue_op.steps == (
        Step("NUMBER", (), (("value", 1.0),)),
        Step("MUL", (0, 1)),
        Step("TANH", (3,)),
        Step("SUB", (2, 4)),
        Step("MUL", (5, 0)),
        Step("RELU", (6,)),
    )
    assert expressions(epilogue_op) == (
        "SPLAT4(1.0f)",
        "{x} * {0}",
        "TANH4({step[1]})",
        "{step[0]} - {step[2]}",
        "{step[3]} * {x}",
        "CLAMP_MIN4(SPLAT4(0.0f), {step[4]})",
    )
    assert not is_bounded(epilogue_op)


@pytest.mark.parametrize(
    ("expression", "near"),
    [
        # A quotient by a small x is large, one by 1 + |x| is not.
        (("DIV", ("TANH", X), X), True),
        (("DIV", X, ("ADD", ("ABS", X), 1.0)), False),
        (("MUL", X, ("RSQRT", ("SQUARE", X))), True),
    ],
)
def test_poles_within_an_expression_are_known(expression: Expression, near: bool) -> None:
    builder = GraphBuilder()
    graph = builder.graph(_spelled(builder, expression, builder.input(*SHAPE)))
    (composed,) = applied(compose_elementwise, graph).graph.nodes
    assert near_poles(composed.epilogue[0], near=False) == ({SELF} if near else set())


def test_one_behind_the_other() -> None:
    builder = GraphBuilder()
    value = builder.input(*SHAPE)
    for name in ("product_over_six", "mish", "sigmoid"):
        value = _spelled(builder, SPELLED[name], value)
    result = applied(compose_elementwise, builder.graph(value))
    assert [functions(node) for node in result.graph.nodes] == [
        [EXPRESSION],
        ["DIV"],
        [EXPRESSION],
        [EXPRESSION],
    ]


def test_an_expression_of_an_expression_is_one() -> None:
    builder = GraphBuilder()
    x = builder.input(*SHAPE)
    inner = _spelled(builder, SPELLED["mish"], x)
    graph = builder.graph(builder.elementwise(x, EpilogueOp("ADD", (inner,))))
    (composed,) = applied(compose_elementwise, graph).graph.nodes
    assert [step.function for step in composed.epilogue[0].steps][-2:] == ["MUL", "ADD"]
    assert sorted((*composed.merged, composed.index)) == [0, 1, 2, 3, 4, 5]


def test_x_may_be_made_by_epilogue_ops_and_read_by_others() -> None:
    builder = GraphBuilder()
    x = builder.elementwise(builder.input(*SHAPE), EpilogueOp("MUL", (builder.number(2.0),)))
    out = _spelled(builder, SPELLED["sigmoid"], x)
    result = applied(
        compose_elementwise, builder.graph(out, builder.elementwise(x, EpilogueOp("NEG")))
    )
    assert [functions(node) for node in result.graph.nodes] == [["MUL"], [EXPRESSION], ["NEG"]]
    assert result.graph.nodes[1].inputs == (x,)


def _inner_output(builder: GraphBuilder) -> Graph:
    x = builder.input(*SHAPE)
    shifted = _spelled(builder, ("ADD", X, 3.0, "RELU6"), x)
    return builder.graph(builder.elementwise(x, EpilogueOp("MUL", (shifted,))), shifted)


def _inner_read(builder: GraphBuilder) -> Graph:
    x = builder.input(*SHAPE)
    gate = builder.elementwise(x, EpilogueOp("LOGISTIC"))
    return builder.graph(builder.elementwise(x, EpilogueOp("MUL", (gate,))), builder.conv(gate, 2))


@pytest.mark.parametrize("write", [_inner_output, _inner_read])
def test_values_in_between_that_others_read_are_declined(
    write: Callable[[GraphBuilder], Graph],
) -> None:
    result = untouched(compose_elementwise, write(GraphBuilder()))
    assert result.declined == ("COPY 1: other nodes read a value in between",)


def _two_values(builder: GraphBuilder) -> int:
    x = builder.input(*SHAPE)
    return builder.elementwise(
        builder.input(*SHAPE), EpilogueOp("MUL", (builder.elementwise(x, EpilogueOp("LOGISTIC")),))
    )


def _many_constants(builder: GraphBuilder) -> int:
    x = builder.input(*SHAPE)
    scale, shift, slope = (EpilogueOp(op, (builder.constant(5),)) for op in ("MUL", "ADD", "PRELU"))
    return builder.elementwise(x, EpilogueOp("MUL", (builder.elementwise(x, scale, shift, slope),)))


def _chain(builder: GraphBuilder) -> int:
    x = builder.elementwise(builder.input(*SHAPE), EpilogueOp("TANH"))
    return builder.elementwise(x, EpilogueOp("MUL", (SELF,)))


def _extended(builder: GraphBuilder) -> int:
    x = builder.input(*SHAPE)
    gate = builder.elementwise(x, EpilogueOp("TANH"))
    return builder.elementwise(x, EpilogueOp("MUL", (gate,)), EpilogueOp("ADD", (x,), extend=True))


def _by_position(builder: GraphBuilder) -> int:
    x = builder.input(*SHAPE)
    return builder.elementwise(x, EpilogueOp("MUL", (builder.elementwise(x, BY_POSITION),)))


def _integers(builder: GraphBuilder) -> int:
    x = builder.value(SHAPE, dtype=DType.INT32)
    builder.inputs.append(x)
    doubled = builder.elementwise(x, EpilogueOp("INTEGER_ADD", (SELF,)))
    builder.values[doubled] = replace(builder.values[doubled], dtype=DType.INT32)
    return builder.elementwise(x, EpilogueOp("INTEGER_MUL", (doubled,)))


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


@pytest.mark.parametrize(
    "write",
    [
        _two_values,
        _many_constants,
        _chain,
        _extended,
        _by_position,
        _integers,
        _pooled_gate,
        _broadcast,
    ],
)
def test_other_ops_stay(write: Callable[[GraphBuilder], int]) -> None:
    builder = GraphBuilder()
    graph = builder.graph(write(builder))
    assert untouched(compose_elementwise, graph).declined == ()


def test_an_expression_has_64_steps_at_most() -> None:
    builder = GraphBuilder()
    x = value = builder.input(*SHAPE)
    for _ in range(100):
        value = builder.elementwise(value, EpilogueOp("ADD", (x,)))
    result = applied(compose_elementwise, builder.graph(value))
    first, *others = result.graph.nodes
    assert len(first.epilogue[0].steps) == 64
    assert [functions(node) for node in others] == [["ADD"]] * 36


def _in_a_model(name: str, behind: bool, model: Model) -> list[TensorRef]:
    x = model.input(1, 4, 3, 5)
    x = model.conv(x, (7, 1, 1, 5)) if behind else x

    def build(op: str, operands: list[Any], activation: str) -> TensorRef:
        refs = [model.number(v) if isinstance(v, float) else v for v in operands]
        options = {} if activation == "NONE" else {"fused_activation_function": activation}
        return model.op(op, *refs, **options)

    return [spell(SPELLED[name], x, build)]


@pytest.mark.parametrize(
    ("name", "behind", "saved"),
    [
        ("product_by_sixth", True, 1),
        ("product_by_sixth", False, 0),
        ("tanh_of_products", True, 2),
        ("sigmoid", True, 1),
        ("erf_by_polynomial", True, 5),
        ("mish", True, 1),
    ],
)
def test_keeps_the_numbers(name: str, behind: bool, saved: int) -> None:
    write = partial(_in_a_model, name, behind)
    check_numbers(write, "compose_elementwise", saved, tolerance=SUMS)
