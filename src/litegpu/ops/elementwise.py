"""Element-wise ops: one table of expressions. Each op becomes a stage of the kernel before it.

In an expression {a} is the first input and {b} the second; other words are attributes. All are
float4, written with the words of the portable dialect.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from litegpu.graph import SELF, Graph, Node, Stage
from litegpu.ops import checks
from litegpu.ops.base import COPY, NewValue, Op, Shape, add

_ZERO, _ONE = "SPLAT4(0.0f)", "SPLAT4(1.0f)"


def _clamp(low: str, high: str) -> str:
    return f"MIN4(MAX4({{a}}, SPLAT4({low})), SPLAT4({high}))"


@dataclass(frozen=True, slots=True)
class Function:
    """An expression, the highest op version that means it, and the node parameters it uses."""

    expression: str
    max_version: int = 2
    params: tuple[str, ...] = ()


UNARY: Mapping[str, Function] = {
    "ABS": Function("ABS4({a})"),
    "CEIL": Function("CEIL4({a})"),
    "COS": Function("COS4({a})"),
    "ELU": Function(f"WHERE4(LESS4({{a}}, {_ZERO}), EXPM14({{a}}), {{a}})"),
    "EXP": Function("EXP4({a})"),
    "FLOOR": Function("FLOOR4({a})"),
    "HARD_SWISH": Function(
        "{a} * MIN4(MAX4({a} + SPLAT4(3.0f), SPLAT4(0.0f)), SPLAT4(6.0f)) / SPLAT4(6.0f)"
    ),
    "LEAKY_RELU": Function(
        f"WHERE4(LESS4({{a}}, {_ZERO}), {{a}} * SPLAT4({{alpha}}), {{a}})", params=("alpha",)
    ),
    "LOG": Function("LOG4({a})"),
    "LOGISTIC": Function(f"{_ONE} / ({_ONE} + EXP4(-{{a}}))"),
    "NEG": Function("-{a}"),
    "RELU": Function(f"MAX4({{a}}, {_ZERO})"),
    "RELU6": Function(_clamp("0.0f", "6.0f")),
    "RELU_N1_TO_1": Function(_clamp("-1.0f", "1.0f")),
    "RELU_0_TO_1": Function(_clamp("0.0f", "1.0f")),
    "RSQRT": Function(f"{_ONE} / SQRT4({{a}})"),
    "SIN": Function("SIN4({a})"),
    "SQRT": Function("SQRT4({a})"),
    "SQUARE": Function("{a} * {a}"),
    "TANH": Function("TANH4({a})"),
}

BINARY: Mapping[str, Function] = {
    "ADD": Function("{a} + {b}"),
    "DIV": Function("{a} / {b}"),
    "MAXIMUM": Function("MAX4({a}, {b})"),
    "MINIMUM": Function("MIN4({a}, {b})"),
    "MUL": Function("{a} * {b}", max_version=3),
    "PRELU": Function(f"WHERE4(LESS4({{a}}, {_ZERO}), {{a}} * {{b}}, {{a}})", max_version=1),
    "SQUARED_DIFFERENCE": Function("({a} - {b}) * ({a} - {b})"),
    "SUB": Function("{a} - {b}", max_version=3),
}

_ACTIVATIONS = {
    "none": "",
    "relu": "RELU",
    "relu_n1_to_1": "RELU_N1_TO_1",
    "relu6": "RELU6",
    "tanh": "TANH",
    "sigmoid": "LOGISTIC",
}


def literal(number: float) -> str:
    """Return a float32 constant as kernel text."""
    number = float(np.float32(number))
    if math.isnan(number):
        return "NAN"
    if math.isinf(number):
        return "INFINITY" if number > 0 else "(-INFINITY)"
    text = f"{number:.9g}"
    text += "f" if "." in text or "e" in text else ".0f"
    return f"({text})" if number < 0 else text


def activation_stages(params: Mapping[str, Any]) -> tuple[Stage, ...]:
    """Return the fused activation of a checked node as stages."""
    function = _ACTIVATIONS[params.get("activation", "none")]
    return (Stage(function),) if function else ()


def expression(stage: Stage) -> str:
    """Return a stage's text with {x} for the running result and {0} for its operand."""
    function = UNARY.get(stage.function) or BINARY[stage.function]
    words = {name: literal(number) for name, number in stage.attributes}
    other = "{x}" if stage.operands == (SELF,) else "{0}"
    a, b = ("{x}", other) if stage.position == 0 else (other, "{x}")
    return function.expression.format(a=a, b=b, **words)


class Unary(Op):
    """One input; same shape out."""

    def __init__(self, name: str, function: Function) -> None:
        self.name = name  # type: ignore[misc]
        self.max_version = function.max_version  # type: ignore[misc]
        self.function = function

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(checks.input_count(node, 1, 1), checks.operands(graph, node, (1,)))

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        return (graph.values[node.inputs[0]].shape,)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        attributes = tuple((name, float(node.params[name])) for name in self.function.params)
        stage = Stage(self.name, attributes=attributes)
        return (Node(node.index, COPY, 1, node.inputs, node.outputs, stages=(stage,)),)


class Binary(Op):
    """Two inputs, broadcast as NumPy does; either may be constant."""

    def __init__(self, name: str, function: Function) -> None:
        self.name = name  # type: ignore[misc]
        self.max_version = function.max_version  # type: ignore[misc]

    def check(self, graph: Graph, node: Node) -> str:
        reason = checks.first_of(
            checks.input_count(node, 2, 2),
            checks.operands(graph, node, (1, 2)),
            checks.activation(node),
            checks.constants(graph, node, "The operand"),
        )
        if reason:
            return reason
        first, second = (graph.values[v].shape for v in node.inputs)
        try:
            np.broadcast_shapes(first, second)
        except ValueError:
            return (
                "Doesn't support broadcasting - "
                f"input0: {_listed(first)}, input1: {_listed(second)}"
            )
        return ""

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        return (np.broadcast_shapes(*(graph.values[v].shape for v in node.inputs)),)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        position = _running(graph, node)
        running, other = node.inputs[position], node.inputs[1 - position]
        operand = SELF if running == other else other
        stages = (Stage(self.name, (operand,), position), *activation_stages(node.params))
        return (Node(node.index, COPY, 1, (running,), node.outputs, stages=stages),)


def _running(graph: Graph, node: Node) -> int:
    """Return which input runs through the kernel: a computed one, of the output's shape if any."""
    shape = graph.values[node.outputs[0]].shape
    values = [graph.values[v] for v in node.inputs]
    for position, value in enumerate(values):
        if not value.is_constant and value.shape == shape:
            return position
    return 1 if values[0].is_constant else 0


def _listed(shape: Shape) -> str:
    return f"[{','.join(map(str, shape))}]"


for _name, _function in UNARY.items():
    add(Unary(_name, _function))
for _name, _function in BINARY.items():
    add(Binary(_name, _function))
