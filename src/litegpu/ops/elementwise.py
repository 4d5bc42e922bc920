"""Element-wise ops: one table of expressions. Each op becomes a stage of the kernel before it.

In an expression {a} is the first input and {b} the second; other words are attributes. All are
float4, written with the words of the portable dialect.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np

from litegpu.graph import SELF, Graph, Node, Stage
from litegpu.ops import checks, facts
from litegpu.ops.base import COPY, NewValue, Op, Shape, add, literal
from litegpu.ops.broadcast_to import broadcast_node
from litegpu.ops.facts import Array, Folded
from litegpu.ops.types import BOOLS, FLOATS, HELD, Types

_ZERO, _ONE = "SPLAT4(0.0f)", "SPLAT4(1.0f)"


def _at_most(high: str, value: str) -> str:
    # By comparison, as on the CPU: MAX4 and MIN4 would lose a NaN.
    return f"WHERE4(LESS4({high}, {value}), {high}, {value})"


def _clamp(low: str, high: str, value: str = "{a}") -> str:
    return f"{{at_least}}(SPLAT4({low}), {_at_most(f'SPLAT4({high})', value)})"


@dataclass(frozen=True, slots=True)
class Function:
    """An expression, the highest op version that means it, and the node parameters it uses.

    `takes` and `gives` are the types of its operands and of its result, which is never infinite or
    beyond the range of half if `bounded`. It makes an infinity of a zero in the inputs numbered
    `poles`, and zero of zero if it is `through_zero`: what is rounded to zero matters there.
    """

    expression: str
    max_version: int = 2
    params: tuple[str, ...] = ()
    takes: Types = FLOATS
    gives: Types = FLOATS
    bounded: bool = False
    poles: tuple[int, ...] = ()
    through_zero: bool = False
    exact: Callable[..., Any] | None = None
    """NumPy's function of the same meaning, for constant integers and bools."""


def _truth(condition: str, exact: Callable[..., Any]) -> Function:
    expression = f"WHERE4({condition}, {_ONE}, {_ZERO})"
    return Function(expression, max_version=4, takes=HELD, gives=BOOLS, exact=exact)


def _truncated(a: Array, b: Array) -> Array:
    """Divide integers as C does, towards zero."""
    quotient: Array = np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b))
    return quotient


_REMAINDER = "FMOD4({a}, {b})"
_TANH_GELU = "TANH4(SPLAT4(0.797884561f) * ({a} + SPLAT4(0.044715f) * {a} * {a} * {a}))"


UNARY: Mapping[str, Function] = {
    "ABS": Function("ABS4({a})", through_zero=True, exact=np.abs),
    "CEIL": Function("CEIL4({a})"),
    "COS": Function("COS4({a})", bounded=True),
    "ELU": Function(f"WHERE4(LESS4({{a}}, {_ZERO}), EXPM14({{a}}), {{a}})"),
    "EXP": Function("EXP4({a})"),
    "FLOOR": Function("FLOOR4({a})"),
    "GELU": Function("SPLAT4(0.5f) * {a} * ERFC4({a} * SPLAT4(-0.707106781f))"),
    "HARD_SWISH": Function(
        f"{{a}} * SPLAT4(0.166666667f) * {_clamp('0.0f', '6.0f', '({a} + SPLAT4(3.0f))')}"
    ),
    "LEAKY_RELU": Function(
        f"WHERE4(LESS4({{a}}, {_ZERO}), {{a}} * SPLAT4({{alpha}}), {{a}})",
        params=("alpha",),
        through_zero=True,
    ),
    "LOG": Function("LOG4({a})", poles=(0,)),
    "LOGICAL_NOT": Function(
        f"{_ONE} - {{a}}", max_version=1, takes=BOOLS, gives=BOOLS, exact=np.logical_not
    ),
    "LOGISTIC": Function(f"{_ONE} / ({_ONE} + EXP4(-{{a}}))", bounded=True),
    "NEG": Function("-{a}", through_zero=True, exact=np.negative),
    "RELU": Function(f"{{at_least}}({_ZERO}, {{a}})", through_zero=True),
    "RELU6": Function(_clamp("0.0f", "6.0f"), bounded=True, through_zero=True),
    "RELU_N1_TO_1": Function(_clamp("-1.0f", "1.0f"), bounded=True),
    "RELU_0_TO_1": Function(_clamp("0.0f", "1.0f"), bounded=True),
    "RSQRT": Function(f"{_ONE} / SQRT4({{a}})", poles=(0,)),
    "SIGN": Function(
        f"WHERE4(LESS4({{a}}, {_ZERO}), -{_ONE}, WHERE4(LESS4({_ZERO}, {{a}}), {_ONE}, {{a}}))"
    ),
    "SIN": Function("SIN4({a})", bounded=True),
    "SQRT": Function("SQRT4({a})", through_zero=True),
    "SQUARE": Function("{a} * {a}", through_zero=True),
    "TANH": Function("TANH4({a})", bounded=True),
}

BINARY: Mapping[str, Function] = {
    "ADD": Function("{a} + {b}", exact=np.add),
    "DIV": Function("{a} / {b}", poles=(1,), through_zero=True, exact=_truncated),
    "EQUAL": _truth("EQUAL4({a}, {b})", np.equal),
    "FLOOR_DIV": Function("FLOOR4({a} / {b})", poles=(1,), exact=np.floor_divide),
    # The remainder has the sign of the divisor. A product of both might vanish.
    "FLOOR_MOD": Function(
        f"WHERE4(LESS4(WHERE4(LESS4({{b}}, {_ZERO}), -{_REMAINDER}, {_REMAINDER}), {_ZERO}), "
        f"{_REMAINDER} + {{b}}, {_REMAINDER})",
        poles=(1,),
        exact=np.mod,
    ),
    "GREATER": _truth("LESS4({b}, {a})", np.greater),
    "GREATER_EQUAL": _truth("LESS_EQUAL4({b}, {a})", np.greater_equal),
    "LESS": _truth("LESS4({a}, {b})", np.less),
    "LESS_EQUAL": _truth("LESS_EQUAL4({a}, {b})", np.less_equal),
    "LOGICAL_AND": Function(
        "{a} * {b}", max_version=1, takes=BOOLS, gives=BOOLS, exact=np.logical_and
    ),
    "LOGICAL_OR": Function(
        "MAX4({a}, {b})", max_version=1, takes=BOOLS, gives=BOOLS, exact=np.logical_or
    ),
    "MAXIMUM": Function("WHERE4(LESS4({b}, {a}), {a}, {b})", through_zero=True, exact=np.maximum),
    "MINIMUM": Function("WHERE4(LESS4({a}, {b}), {a}, {b})", through_zero=True, exact=np.minimum),
    "MUL": Function("{a} * {b}", max_version=3, through_zero=True, exact=np.multiply),
    "NOT_EQUAL": Function(
        f"WHERE4(EQUAL4({{a}}, {{b}}), {_ZERO}, {_ONE})",
        max_version=4,
        takes=HELD,
        gives=BOOLS,
        exact=np.not_equal,
    ),
    "POW": Function("POW4({a}, {b})", poles=(0,)),
    "PRELU": Function(f"WHERE4(LESS4({{a}}, {_ZERO}), {{a}} * {{b}}, {{a}})", max_version=1),
    "SQUARED_DIFFERENCE": Function("({a} - {b}) * ({a} - {b})"),
    "SUB": Function("{a} - {b}", max_version=3, exact=np.subtract),
}


def _whole(limit: float) -> Function:
    low, high = f"SPLAT4({literal(-limit)})", f"SPLAT4({literal(limit)})"
    return Function(f"MAX4(MIN4(TRUNC4({{a}}), {high}), {low})")


STEPS: Mapping[str, Function] = {
    "CAST_BOOL": Function(f"WHERE4(EQUAL4({{a}}, {_ZERO}), {_ZERO}, {_ONE})"),
    "CAST_INT32": _whole(2.0**31),
    "CAST_INT64": _whole(2.0**63),
    "GELU_TANH": Function(f"SPLAT4(0.5f) * {{a}} * ({_ONE} + {_TANH_GELU})"),
    "SELECT": Function(f"WHERE4(EQUAL4({{a}}, {_ZERO}), {{c}}, {{b}})"),
    "SWISH": Function(f"{{a}} * ({_ONE} / ({_ONE} + EXP4(SPLAT4({{scale}}) * -{{a}})))"),
}
"""Functions that are no operations by themselves."""

FUNCTIONS: Mapping[str, Function] = {**UNARY, **BINARY, **STEPS}

_ACTIVATIONS = {
    "none": "",
    "relu": "RELU",
    "relu_n1_to_1": "RELU_N1_TO_1",
    "relu6": "RELU6",
    "tanh": "TANH",
    "sigmoid": "LOGISTIC",
}


def activation_stages(params: Mapping[str, Any]) -> tuple[Stage, ...]:
    """Return the fused activation of a checked node as stages."""
    function = _ACTIVATIONS[params.get("activation", "none")]
    return (Stage(function),) if function else ()


def expression(stage: Stage, of_sum: bool = False) -> str:
    """Return a stage's text with {x} for the running result and {0}, {1} for its operands.

    A bound keeps -0, but not `of_sum`: there a zero's sign hangs on the order of the terms.
    """
    function = FUNCTIONS[stage.function]
    words = {name: literal(number) for name, number in stage.attributes}
    numbers = itertools.count()
    texts = ["{x}" if v == SELF else f"{{{next(numbers)}}}" for v in stage.operands]
    texts.insert(stage.position, "{x}")
    words["at_least"] = "RAISE4" if of_sum else "AT_LEAST4"
    return function.expression.format(**dict(zip("abc", texts, strict=False)), **words)


_OF_SUMS = ("ADD", "SUB", "RELU", "RELU6", "RELU_0_TO_1")


def keeps_sum(stage: Stage) -> bool:
    """Whether the sign of a zero means nothing after a stage, if it meant nothing before."""
    return stage.function in _OF_SUMS


def is_bounded(stage: Stage) -> bool:
    """Whether no result of a stage is infinite, or beyond the range of half."""
    return FUNCTIONS[stage.function].bounded


class _Elementwise(Op):
    """What becomes a step of the kernel before it."""

    launches = 0
    arity: ClassVar[int]
    function: Function

    def fold(self, graph: Graph, node: Node, operands: Sequence[Array]) -> Folded | None:
        exact = self.function.exact
        if exact is None or len(operands) != self.arity:
            return None
        return facts.integers(exact, graph, node, operands)


class Unary(_Elementwise):
    """One input; same shape out."""

    arity = 1

    def __init__(self, name: str, function: Function) -> None:
        self.name = name  # type: ignore[misc]
        self.max_version = function.max_version  # type: ignore[misc]
        self.takes = (function.takes,)  # type: ignore[misc]
        self.gives = function.gives  # type: ignore[misc]
        self.function = function

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(checks.input_count(node, 1, 1), checks.operands(graph, node, (1,)))

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        return (graph.values[node.inputs[0]].shape,)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        attributes = tuple((name, float(node.params[name])) for name in self.function.params)
        stage = Stage(self.name, attributes=attributes)
        return (Node(node.index, COPY, 1, node.inputs, node.outputs, stages=(stage,)),)


class Binary(_Elementwise):
    """Two inputs, broadcast as NumPy does; either may be constant."""

    arity = 2

    def __init__(self, name: str, function: Function) -> None:
        self.name = name  # type: ignore[misc]
        self.max_version = function.max_version  # type: ignore[misc]
        self.takes = (function.takes,)  # type: ignore[misc]
        self.gives = function.gives  # type: ignore[misc]
        self.function = function

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(
            checks.input_count(node, 2, 2),
            checks.operands(graph, node, (1, 2)),
            checks.activation(node),
            checks.constants(graph, node, "The operand", self.takes[0]),
            lambda: check_broadcast(graph, node),
        )

    def infer(self, graph: Graph, node: Node) -> tuple[Shape, ...]:
        return (np.broadcast_shapes(*(graph.values[v].shape for v in node.inputs)),)

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        inputs, nodes = fitted(graph, node, new_value)
        position = running_input(graph, node)
        running, other = inputs[position], inputs[1 - position]
        operand = SELF if running == other else other
        stages = (Stage(self.name, (operand,), position), *activation_stages(node.params))
        return (*nodes, Node(node.index, COPY, 1, (running,), node.outputs, stages=stages))


def check_broadcast(graph: Graph, node: Node) -> str:
    """Require inputs that can be broadcast to one shape."""
    shapes = [graph.values[v].shape for v in node.inputs]
    try:
        np.broadcast_shapes(*shapes)
    except ValueError:
        listed = ", ".join(f"input{i}: {_listed(shape)}" for i, shape in enumerate(shapes))
        return f"Doesn't support broadcasting - {listed}"
    return ""


def fitted(graph: Graph, node: Node, new_value: NewValue) -> tuple[list[int], list[Node]]:
    """Return inputs that kernels can broadcast to the output, and the nodes that make them.

    Kernels see all dimensions but the last three as one: those are repeated beforehand unless the
    input has all of them, or none.
    """
    wanted = graph.values[node.outputs[0]].shape
    outer = max(len(wanted) - 3, 0)
    inputs, nodes = list(node.inputs), []
    for place, v in enumerate(inputs):
        shape = (1,) * (len(wanted) - len(graph.values[v].shape)) + graph.values[v].shape
        if outer < 2 or shape[:outer] in ((1,) * outer, wanted[:outer]):
            continue
        whole = (*wanted[:outer], *shape[outer:])
        inputs[place] = new_value(whole)
        repeated = replace(node, inputs=(v,), outputs=(inputs[place],))
        nodes.append(broadcast_node(graph, repeated, whole))
    return inputs, nodes


def running_input(graph: Graph, node: Node) -> int:
    """Return which input runs through the kernel: a computed one, of the output's shape if any."""
    shape = graph.values[node.outputs[0]].shape
    computed = [i for i, v in enumerate(node.inputs) if not graph.values[v].is_constant]
    whole = [i for i in computed if graph.values[node.inputs[i]].shape == shape]
    return (whole or computed)[0]


def _listed(shape: Shape) -> str:
    return f"[{','.join(map(str, shape))}]"


class Gelu(Unary):
    """x times the normal distribution function; `approximate` computes that by tanh."""

    def normalize(self, graph: Graph, node: Node, new_value: NewValue) -> Sequence[Node]:
        stage = Stage("GELU_TANH" if node.params["approximate"] else "GELU")
        return (Node(node.index, COPY, 1, node.inputs, node.outputs, stages=(stage,)),)


class Prelu(Binary):
    """Slopes for what is negative, broadcast to the input."""

    def check(self, graph: Graph, node: Node) -> str:
        return checks.first_of(super().check(graph, node), lambda: _check_slopes(graph, node))


def _check_slopes(graph: Graph, node: Node) -> str:
    shape, slopes = (graph.values[v].shape for v in node.inputs)
    if np.broadcast_shapes(shape, slopes) == shape:
        return ""
    return f"Slopes of {_listed(slopes)} do not fit an input of {_listed(shape)}."


for _name, _function in UNARY.items():
    add((Gelu if _name == "GELU" else Unary)(_name, _function))
for _name, _function in BINARY.items():
    add((Prelu if _name == "PRELU" else Binary)(_name, _function))
