"""The functions of elementwise ops, as one table of expressions.

In an expression, {a} is the first input and {b} the second; other names are attributes. All inputs
are float4 or integer registers. The expressions use macros of the portable dialect.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from litegpu.codegen import FLOAT, INT, LONG, Register, literal, register_of
from litegpu.graph import SELF, DType, EpilogueOp, Graph, Node, Step
from litegpu.ops.common.function import Function
from litegpu.ops.common.types import (
    BOOLS,
    FLOATS,
    INTEGER_TYPES,
    NUMBERS,
    QUANTIZED_TYPES,
    SHORT_NUMBERS,
    STORABLE,
    Types,
)
from litegpu.ops.exact.functions import EXACT

_ZERO, _ONE = "SPLAT4(0.0f)", "SPLAT4(1.0f)"


def _at_most(high: str, value: str) -> str:
    # By comparison, as on the CPU: MAX4 and MIN4 would lose a NaN.
    return f"WHERE4(LESS4({high}, {value}), {high}, {value})"


def _clamp(low: str, high: str, value: str = "{a}") -> str:
    return f"{{at_least}}(SPLAT4({low}), {_at_most(f'SPLAT4({high})', value)})"


def _truth(
    condition: str,
    exact: Callable[..., Any],
    max_version: int,
    yes: str = _ONE,
    no: str = _ZERO,
) -> Function:
    texts = (f"WHERE4({condition.format(k=k, a='{a}', b='{b}')}, {yes}, {no})" for k in ("", "{k}"))
    expression, integer = texts
    return Function(
        expression,
        max_version=max_version,
        takes=_also(STORABLE, DType.INT16, DType.FLOAT16),
        gives=BOOLS,
        integer=integer,
        exact=exact,
    )


def _number(expression: str, integer: str, **others: Any) -> Function:
    return Function(expression, integer=integer, **{"takes": NUMBERS, "gives": None, **others})


def _truncated(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Divide integers, truncating towards zero as C does."""
    quotient: npt.NDArray[Any] = np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b))
    return quotient


def _also(types: Types, *dtypes: DType) -> Types:
    return Types(types.dtypes | {*dtypes}, common=True)


_SIGNED = Types(frozenset({DType.INT8, DType.INT16, DType.INT32}), common=True)
_SHORT = (DType.INT8, DType.INT16)
_FLOATS = _also(FLOATS, DType.FLOAT16)


def _real(expression: str, **others: Any) -> Function:
    return Function(expression, takes=_FLOATS, gives=None, **others)


def _bits(
    expression: str, exact: Callable[..., Any], takes: Types, params: tuple[str, ...] = ()
) -> Function:
    return Function(
        expression,
        params=params,
        takes=takes,
        gives=None,
        integer=expression,
        exact=exact,
        makes=None,
    )


def _shifted(a: npt.NDArray[Any], b: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Shift integers right; shift amounts are limited to the number of bits, as on the CPU."""
    found: npt.NDArray[Any] = np.right_shift(a, np.clip(b, 0, a.dtype.itemsize * 8 - 1))
    return found


_REMAINDER = "FMOD4({a}, {b})"
_TANH_GELU = "TANH4(SPLAT4(0.797884561f) * ({a} + SPLAT4(0.044715f) * {a} * {a} * {a}))"


UNARY: Mapping[str, Function] = {
    "ABS": _number(
        "ABS4({a})",
        "ABS4{k}({a})",
        takes=_also(SHORT_NUMBERS, DType.INT16),
        grows=True,
        max_version=5,
        through_zero=True,
        exact=np.abs,
    ),
    "CEIL": Function("CEIL4({a})"),
    "COS": _real("COS4({a})", max_version=2, bounded=True),
    "ELU": Function(f"WHERE4(LESS4({{a}}, {_ZERO}), EXPM14({{a}}), {{a}})"),
    "EXP": Function("EXP4({a})", max_version=2),
    "FLOOR": _real("FLOOR4({a})"),
    "GELU": _real("SPLAT4(0.5f) * {a} * ERFC4({a} * SPLAT4(-0.707106781f))", max_version=3),
    "HARD_SWISH": Function(
        f"{{a}} * SPLAT4(0.166666667f) * {_clamp('0.0f', '6.0f', '({a} + SPLAT4(3.0f))')}"
    ),
    "LEAKY_RELU": Function(
        f"WHERE4(LESS4({{a}}, {_ZERO}), {{a}} * SPLAT4({{alpha}}), {{a}})",
        max_version=2,
        params=("alpha",),
        through_zero=True,
    ),
    "LOG": Function("LOG4({a})", max_version=2, poles=(0,)),
    "LOGICAL_NOT": Function(f"{_ONE} - {{a}}", takes=BOOLS, gives=BOOLS, exact=np.logical_not),
    "LOGISTIC": _real(f"RECIPROCAL4({_ONE} + EXP4(-{{a}}))", bounded=True, max_version=3),
    "NEG": _number(
        "-{a}",
        "NEG4{k}({a})",
        takes=_also(NUMBERS, DType.FLOAT16, *_SHORT),
        grows=True,
        through_zero=True,
        exact=np.negative,
    ),
    "RELU": Function(f"{{at_least}}({_ZERO}, {{a}})", through_zero=True, max_version=3),
    "RELU6": Function(_clamp("0.0f", "6.0f"), bounded=True, through_zero=True, max_version=3),
    "RELU_N1_TO_1": Function(_clamp("-1.0f", "1.0f"), bounded=True),
    "RELU_0_TO_1": Function(_clamp("0.0f", "1.0f"), bounded=True),
    "ROUND": _real("RINT4({a})", through_zero=True),
    "RSQRT": Function(f"{_ONE} / SQRT4({{a}})", poles=(0,), max_version=3),
    "SIGN": _number(
        f"WHERE4(LESS4({{a}}, {_ZERO}), -{_ONE}, WHERE4(LESS4({_ZERO}, {{a}}), {_ONE}, {{a}}))",
        "MAX4{k}(MIN4{k}({a}, {n[1]}), {n[-1]})",
        max_version=2,
        takes=SHORT_NUMBERS,
    ),
    "SIN": _real("SIN4({a})", max_version=2, bounded=True),
    "SQRT": Function("SQRT4({a})", max_version=2, through_zero=True),
    "SQUARE": Function("{a} * {a}", through_zero=True),
    "TANH": _real("TANH4({a})", bounded=True, max_version=3),
}

BINARY: Mapping[str, Function] = {
    "ADD": _number(
        "{a} + {b}",
        "ADD4{k}({a}, {b})",
        takes=_also(NUMBERS, DType.INT16, DType.FLOAT16),
        grows=True,
        max_version=6,
        exact=np.add,
    ),
    "ATAN2": _real("ATAN24({a}, {b})", poles=(0, 1)),
    "BITWISE_XOR": _bits(
        "XOR4{k}({a}, {b})", np.bitwise_xor, _also(_SIGNED, DType.UINT8, DType.UINT16, DType.UINT32)
    ),
    "DIV": _number(
        "{a} / {b}",
        "DIV4{k}({a}, {b})",
        max_version=2,
        takes=SHORT_NUMBERS,
        poles=(1,),
        through_zero=True,
        exact=_truncated,
    ),
    "EQUAL": _truth("EQUAL4{k}({a}, {b})", np.equal, 5),
    "FLOOR_DIV": _number(
        "FLOOR4({a} / {b})",
        "FLOOR_DIV4{k}({a}, {b})",
        max_version=3,
        takes=_also(SHORT_NUMBERS, *_SHORT),
        grows=True,
        poles=(1,),
        exact=np.floor_divide,
    ),
    # The remainder has the sign of the divisor. A test by the product of both could underflow to 0.
    "FLOOR_MOD": _number(
        f"WHERE4(LESS4(WHERE4(LESS4({{b}}, {_ZERO}), -{_REMAINDER}, {_REMAINDER}), {_ZERO}), "
        f"{_REMAINDER} + {{b}}, {_REMAINDER})",
        "FLOOR_MOD4{k}({a}, {b})",
        max_version=2,
        takes=_also(NUMBERS, *_SHORT),
        poles=(1,),
        exact=np.mod,
    ),
    "GREATER": _truth("LESS4{k}({b}, {a})", np.greater, 2),
    "GREATER_EQUAL": _truth("LESS_EQUAL4{k}({b}, {a})", np.greater_equal, 3),
    "LESS": _truth("LESS4{k}({a}, {b})", np.less, 3),
    "LESS_EQUAL": _truth("LESS_EQUAL4{k}({a}, {b})", np.less_equal, 2),
    "LOGICAL_AND": Function("{a} * {b}", takes=BOOLS, gives=BOOLS, exact=np.logical_and),
    "LOGICAL_OR": Function("MAX4({a}, {b})", takes=BOOLS, gives=BOOLS, exact=np.logical_or),
    "MAXIMUM": _number(
        "WHERE4(LESS4({b}, {a}), {a}, {b})",
        "MAX4{k}({a}, {b})",
        takes=_also(NUMBERS, DType.FLOAT16, *QUANTIZED_TYPES),
        max_version=4,
        through_zero=True,
        exact=np.maximum,
    ),
    "MINIMUM": _number(
        "WHERE4(LESS4({a}, {b}), {a}, {b})",
        "MIN4{k}({a}, {b})",
        takes=_also(NUMBERS, DType.FLOAT16, *QUANTIZED_TYPES),
        max_version=4,
        through_zero=True,
        exact=np.minimum,
    ),
    "MUL": _number(
        "{a} * {b}",
        "MUL4{k}({a}, {b})",
        takes=_also(NUMBERS, DType.INT16, DType.UINT32, DType.FLOAT16, DType.COMPLEX64),
        grows=True,
        max_version=8,
        through_zero=True,
        exact=np.multiply,
    ),
    "NOT_EQUAL": _truth("EQUAL4{k}({a}, {b})", np.not_equal, 4, _ZERO, _ONE),
    "POW": _number(
        "POW4({a}, {b})",
        "POW4{k}({a}, {b}, {wraps})",
        takes=SHORT_NUMBERS,
        poles=(0,),
        params=("wraps",),
    ),
    "PRELU": Function(f"WHERE4(LESS4({{a}}, {_ZERO}), {{a}} * {{b}}, {{a}})"),
    "RIGHT_SHIFT": _bits(
        "SHIFT_RIGHT4{k}({a}, MAX4{k}(MIN4{k}({b}, {last_bit}), {n[0]}))",
        _shifted,
        _also(_SIGNED, DType.UINT8, DType.UINT16),
        params=("last_bit",),
    ),
    "SQUARED_DIFFERENCE": _number(
        "({a} - {b}) * ({a} - {b})",
        "MUL4{k}(SUB4{k}({a}, {b}), SUB4{k}({a}, {b}))",
        max_version=2,
        takes=SHORT_NUMBERS,
    ),
    "SUB": _number("{a} - {b}", "SUB4{k}({a}, {b})", max_version=5, exact=np.subtract),
}


_WHOLE = Types(INTEGER_TYPES | {DType.INT8, DType.UINT8, DType.INT16, DType.UINT16}, common=True)
_WHOLE_OR_BOOL = Types(_WHOLE.dtypes | BOOLS.dtypes, common=True)
_ANY = Types(_WHOLE_OR_BOOL.dtypes | _FLOATS.dtypes, common=True)


def _stablehlo(
    expression: str,
    integer: str,
    exact: Callable[..., Any] | None,
    takes: Types = _ANY,
    grows: bool = False,
) -> Function:
    return Function(
        expression,
        takes=takes,
        gives=None,
        integer=integer,
        exact=exact,
        makes=None,
        grows=grows,
    )


STABLEHLO: Mapping[str, Function] = {
    "STABLEHLO_ADD": _stablehlo("{a} + {b}", "ADD4{k}({a}, {b})", np.add, grows=True),
    "STABLEHLO_AND": _stablehlo("{a} * {b}", "AND4{k}({a}, {b})", np.bitwise_and, _WHOLE_OR_BOOL),
    # If both are equal, or one is NaN, these return the first.
    "STABLEHLO_MAXIMUM": _stablehlo(
        "WHERE4(LESS4({a}, {b}), {b}, {a})", "MAX4{k}({a}, {b})", np.maximum
    ),
    "STABLEHLO_MINIMUM": _stablehlo(
        "WHERE4(LESS4({b}, {a}), {b}, {a})", "MIN4{k}({a}, {b})", np.minimum
    ),
    "STABLEHLO_MULTIPLY": _stablehlo("{a} * {b}", "MUL4{k}({a}, {b})", np.multiply, grows=True),
    "STABLEHLO_SHIFT_LEFT": _stablehlo(
        *("SHIFT_LEFT4{k}({a}, {b})",) * 2,
        None,
        _SIGNED,
        grows=True,
    ),
}
"""Functions of two values of equal shape; integer results wrap around within their type."""


_BOUNDS = {
    DType.INT8: (-(2**7), 2**7 - 1),
    DType.UINT8: (0, 2**8 - 1),
    DType.INT16: (-(2**15), 2**15 - 1),
    DType.UINT16: (0, 2**16 - 1),
}
_WRAPS = {DType.INT8: "S8", DType.UINT8: "U8", DType.INT16: "S16", DType.UINT16: "U16"}


def cast_name(source: Register, target: DType) -> str:
    """Return the name of the cast function from a register type to an element type."""
    return f"CAST_{source.kind}_{target.name}"


def wraps(dtype: DType) -> tuple[EpilogueOp, ...]:
    """Return the epilogue ops that wrap integer results to types of fewer than 32 bits."""
    if dtype in STORABLE.dtypes:
        return ()
    return (EpilogueOp(cast_name(register_of(dtype), dtype)),)


def _casts(source: Register) -> Mapping[str, Function]:
    """Return functions of casts; floats saturate and integers wrap around, as on the CPU."""
    from_float, kind, ending = source is FLOAT, source.kind, source.ending
    as_int = "{a}" if source is INT else f"CAST4_{kind}_I32({{a}})"
    as_float = "{a}" if from_float else f"CAST4_{kind}_F32({{a}})"
    is_zero = f"EQUAL4{ending}({{a}}, {source.zeros})"
    casts = {
        DType.BOOL: (f"WHERE4({is_zero}, {_ZERO}, {_ONE})", FLOAT),
        DType.FLOAT16: (f"ROUND4_F16({as_float})", FLOAT),
        DType.FLOAT32: (as_float, FLOAT),
        DType.INT32: (as_int, INT),
        DType.INT64: ("{a}" if source is LONG else f"CAST4_{kind}_I64({{a}})", LONG),
    }
    for target, bounds in _BOUNDS.items():
        low, high = (INT.splat(INT.literal(bound)) for bound in bounds)
        cut = f"MAX4_I32(MIN4_I32({as_int}, {high}), {low})"
        casts[target] = (cut if from_float else f"WRAP4_{_WRAPS[target]}({as_int})", INT)
    return {
        cast_name(source, target): Function(text, makes=result)
        for target, (text, result) in casts.items()
    }


OF_UNSIGNED, TO_UNSIGNED = "CAST_U32_INT64", "CAST_F32_UINT32"
"""Casts of uint32, which int32 represents: to int64, and from floats."""
_MAX_UINT32 = LONG.splat(LONG.literal(2**32 - 1))

CASTS: Mapping[str, Function] = {
    **_casts(FLOAT),
    **_casts(INT),
    **_casts(LONG),
    OF_UNSIGNED: Function(f"AND4_I64(CAST4_I32_I64({{a}}), {_MAX_UINT32})", makes=LONG),
    TO_UNSIGNED: Function(
        f"CAST4_I64_I32(MAX4_I64(MIN4_I64(CAST4_F32_I64({{a}}), {_MAX_UINT32}), {LONG.zeros}))",
        makes=INT,
    ),
}

FINITE_HALF = "FINITE_HALF"
"""The CPU clamps float16 sums and products to finite numbers."""

EXPRESSION = "EXPRESSION"
"""An epilogue op whose steps compute the result from floats."""

NUMBER = "NUMBER"
"""A step without inputs, whose result is a number."""

EPILOGUE_ONLY: Mapping[str, Function] = {
    "MULTIPLY_ADD": Function("{a} + {b} * {c}"),
    # Division of a sum by a positive count, truncated towards zero.
    "INTEGER_MEAN": Function(
        "FLOOR_DIV4{k}(WHERE4{k}(LESS4{k}({a}, {n[0]}), ADD4{k}({a}, SUB4{k}({b}, {n[1]})), {a}), "
        "{b})",
        makes=None,
    ),
    FINITE_HALF: Function(_clamp("-65504.0f", "65504.0f")),
    "GELU_TANH": Function(f"SPLAT4(0.5f) * {{a}} * ({_ONE} + {_TANH_GELU})"),
    # A hyperbolic tangent where the second operand is not zero
    "LOGISTIC_OR_TANH": Function(
        f"WHERE4(EQUAL4({{b}}, {_ZERO}), RECIPROCAL4({_ONE} + EXP4(-{{a}})), TANH4({{a}}))",
        bounded=True,
    ),
    "SELECT": Function(
        f"WHERE4{{k}}(EQUAL4({{a}}, {_ZERO}), {{c}}, {{b}})", typed_by=1, makes=None
    ),
    # Compilers join no operation before it with those after it.
    "ROUNDED": Function("ROUNDED4({a})", through_zero=True),
    "CUBE": Function("{a} * {a} * {a}", through_zero=True),
    EXPRESSION: Function(""),
    NUMBER: Function("SPLAT4({value})", params=("value",)),
}
"""Functions that do not correspond to an op of the model format."""

BOUNDED_INTEGERS = {
    "RELU": "MAX4{k}({a}, {n[0]})",
    "RELU6": "MAX4{k}(MIN4{k}({a}, {n[6]}), {n[0]})",
    "RELU_N1_TO_1": "MAX4{k}(MIN4{k}({a}, {n[1]}), {n[-1]})",
}
"""Fused activations that the CPU applies to integers."""


def of_integers(name: str) -> str:
    """Return the name of the integer version of a function."""
    return f"INTEGER_{name}"


_INTEGERS: Mapping[str, Function] = {
    **{
        of_integers(name): Function(
            each.integer, params=each.params, makes=FLOAT if each.gives == BOOLS else None
        )
        for name, each in {**UNARY, **BINARY, **STABLEHLO}.items()
        if each.integer
    },
    **{of_integers(name): Function(text, makes=None) for name, text in BOUNDED_INTEGERS.items()},
}

_GRID_NUMBER = (
    f"FLOOR4(({_clamp('{low}', '{high}')} - SPLAT4({{low}})) * SPLAT4({{inverse}}) + SPLAT4(0.5f))"
)
_GRID: Mapping[str, Function] = {
    # Quantizes real numbers within a range to multiples of a step from its lower end. MAX4 does not
    # change the value; it prevents compilers from contracting the product and the sum, so zero is
    # exact.
    "ON_GRID": Function(f"MAX4({_GRID_NUMBER} * SPLAT4({{step}}), SPLAT4(0.0f)) + SPLAT4({{low}})"),
    "GRID_NUMBER": Function(f"ADD4_I32(CAST4_F32_I32({_GRID_NUMBER}), {{first}})", makes=INT),
}

FUNCTIONS: Mapping[str, Function] = {
    **{**UNARY, **BINARY, **STABLEHLO, **EPILOGUE_ONLY, **CASTS},
    **{**_INTEGERS, **_GRID, **EXACT},
}


def function_of(graph: Graph, node: Node) -> str:
    """Return the name of a node's function for the type of its first input."""
    integer = graph.values[node.inputs[0]].dtype in _WHOLE.dtypes
    return of_integers(node.op) if integer else node.op


ACTIVATIONS = {
    "none": "",
    "relu": "RELU",
    "relu_n1_to_1": "RELU_N1_TO_1",
    "relu6": "RELU6",
    "tanh": "TANH",
    "sigmoid": "LOGISTIC",
}


def activation_epilogue(params: Mapping[str, Any], integer: bool = False) -> tuple[EpilogueOp, ...]:
    """Return the fused activation of a checked node as epilogue ops."""
    function = ACTIVATIONS[params.get("activation", "none")]
    if not function:
        return ()
    return (EpilogueOp(of_integers(function) if integer else function),)


@dataclass(frozen=True, slots=True)
class _Numbers:
    """Formats integer literals in expressions: `{n[6]}` becomes 6 in the register type."""

    register: Register

    def __getitem__(self, number: int | str) -> str:
        return self.register.splat(self.register.literal(int(number)))


def registers(
    epilogue_op: EpilogueOp, running: Register, operands: Sequence[Register]
) -> tuple[Register, Register]:
    """Return the register types of an epilogue op's expression and of its result.

    `running` is the register type of the running result; `operands` has the operands' types.
    """
    function = FUNCTIONS[epilogue_op.function]
    read = [*operands]
    read.insert(epilogue_op.position, running)
    typed = read[function.typed_by]
    return typed, function.makes or typed


def expressions(
    epilogue_op: EpilogueOp, of_sum: bool = False, register: Register = FLOAT
) -> tuple[str, ...]:
    """Return the texts of an epilogue op's steps; the last one computes the op's result.

    In the texts, {x} is the running result, {0} and {1} are operands, and {step[0]} and {step[1]}
    the results of earlier steps.

    A clamp with the lower bound 0 preserves -0. After a sum (`of_sum`), the sign of zero does not
    matter, since it depends on the order of the terms. `register` is the register type of the
    expressions.
    """
    others = [v for v in epilogue_op.operands if v != SELF]
    names = ["{x}", *(f"{{{number}}}" for number in range(len(others)))]
    sums = [of_sum, *(False for _ in others)]
    found = []
    for number, step in enumerate(steps_of(epilogue_op)):
        function = FUNCTIONS[step.function]
        words: dict[str, Any] = {name: _text(value) for name, value in step.attributes}
        words |= {"k": register.ending, "n": _Numbers(register), "i": "{i}"}
        is_sum = any(sums[each] for each in step.inputs)
        words["at_least"] = "MAX_NAN4" if is_sum else "CLAMP_MIN4"
        read = (names[each] for each in step.inputs)
        found.append(function.expression.format(**dict(zip("abcde", read, strict=False)), **words))
        names.append(f"{{step[{number}]}}")
        sums.append(is_sum and step.function in _OF_SUMS)
    return tuple(found)


def steps_of(epilogue_op: EpilogueOp) -> tuple[Step, ...]:
    """Return the steps of an epilogue op; an op with one function is one step."""
    if epilogue_op.steps:
        return epilogue_op.steps
    others = itertools.count(1)
    read = [0 if v == SELF else next(others) for v in epilogue_op.operands]
    read.insert(epilogue_op.position, 0)
    return (Step(epilogue_op.function, tuple(read), epilogue_op.attributes),)


def _text(number: float) -> str:
    """Return the kernel text of an attribute: a float, or a vector of four equal integers."""
    return INT.splat(INT.literal(number)) if isinstance(number, int) else literal(number)


_OF_SUMS = ("ADD", "SUB", "RELU", "RELU6", "RELU_0_TO_1")


def keeps_sum(epilogue_op: EpilogueOp) -> bool:
    """Whether an epilogue op leaves the sign of zero irrelevant if it was irrelevant before."""
    return epilogue_op.function in _OF_SUMS


def depends_on_position(epilogue: Iterable[EpilogueOp]) -> bool:
    """Whether results depend on element positions, so that passes must not move the epilogue."""
    return any(FUNCTIONS[epilogue_op.function].positional for epilogue_op in epilogue)


def element_operands(epilogue_op: EpilogueOp) -> tuple[int, ...]:
    """Return the elementwise operands of epilogue ops, without lookup tables."""
    return epilogue_op.operands[
        : len(epilogue_op.operands) - FUNCTIONS[epilogue_op.function].tables
    ]


def limits_of(epilogue_op: EpilogueOp) -> tuple[int, int] | None:
    """Return the limits if an epilogue op only clamps integers, else None."""
    if not FUNCTIONS[epilogue_op.function].clamps:
        return None
    found = dict(epilogue_op.attributes)
    return int(found["low"]), int(found["high"])


def is_bounded(epilogue_op: EpilogueOp) -> bool:
    """Whether all results of an epilogue op are finite and within the range of float16."""
    return FUNCTIONS[steps_of(epilogue_op)[-1].function].bounded


def near_poles(epilogue_op: EpilogueOp, near: bool) -> set[int]:
    """Return the inputs whose smallest elements give the largest results; SELF for the running one.

    `near`: whether the smallest results of the op itself give the largest results of its readers.
    """
    inputs = [SELF, *(v for v in epilogue_op.operands if v != SELF)]
    steps = steps_of(epilogue_op)
    found = {len(inputs) + len(steps) - 1} if near else set()
    for number, step in reversed([*enumerate(steps, len(inputs))]):
        function = FUNCTIONS[step.function]
        found.update(step.inputs[pole] for pole in function.poles)
        if number in found and function.through_zero:
            found.update(step.inputs)
    return {inputs[number] for number in found if number < len(inputs)}
