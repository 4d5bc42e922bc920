"""The epilogue ops of quantized operations, in addition to those of plain integers.

{a} and {b} are stored integers, numbers are attributes. The CPU computes most elements of a loop in
vectors, its body, and the last ones one by one, its tail, often with other roundings: where {run}
elements follow each other in a loop, those before {end} are the body.
"""

from __future__ import annotations

from collections.abc import Mapping

from litegpu.codegen import INT, KINDS, LONG, register_of
from litegpu.graph import DType
from litegpu.ops.common.function import Function

_BODY = "LESS4_I32(FLOOR_MOD4_I32({i}, {run}), {end})"


def in_body(name: str) -> str:
    """Return the function that does in the body of a loop what another does everywhere."""
    return f"{name}_IN_BODY"


def lookup_name(dtype: DType) -> str:
    """Return the function that looks up in a table of 256 elements of a type."""
    return f"LOOKUP_{dtype.name}"


def _where(condition: str, yes: str, no: str) -> str:
    return f"WHERE4_I32({condition}, {yes}, {no})"


def _centred(x: str) -> str:
    """Text of an input without its zero point."""
    return f"SUB4_I32({{{x}}}, {{zero_{x}}})"


def _raised(x: str) -> str:
    return f"SHIFT_LEFT4_I32({_centred(x)}, {{left}})"


def _rounded(x: str) -> str:
    """Text of an input on a common scale: multiplied, then shifted."""
    product = f"MULTIPLY_HIGH4_I32({_raised(x)}, {{number_{x}}})"
    return f"ROUND_SHIFT4_I32({product}, {{right_{x}}}, SPLAT4_I32(1))"


def _floored(x: str) -> str:
    """Text of the same where the shift leaves digits out."""
    product = f"MULTIPLY_HIGH4_I32({_raised(x)}, {{number_{x}}})"
    return f"SHIFT_RIGHT4_I32({product}, {{right_{x}}})"


def _whole(x: str) -> str:
    """Text of the same, first shifted, then multiplied."""
    shifted = f"SHIFT_RIGHT4_I32({_raised(x)}, {{right_{x}}})"
    return f"MULTIPLY_HIGH4_I32({shifted}, {{number_{x}}})"


_PLAIN_SUM = f"ADD4_I32({_rounded('a')}, {_rounded('b')})"
_SUMS = {
    "RESCALED_ADD_FLOORED": f"ADD4_I32({_floored('a')}, {_floored('b')})",
    "RESCALED_ADD_WHOLE": f"ADD4_I32({_whole('a')}, {_whole('b')})",
}
_SECOND = "FMA4(CAST4_I32_F32({b}), SPLAT4({second}), SPLAT4({rest}))"
_BY_FLOATS = f"FLOOR4_I32(FMA4(CAST4_I32_F32({{a}}), SPLAT4({{first}}), {_SECOND}))"
_INT16 = {
    "SATURATE_INT16": "MAX4_I32(MIN4_I32({a}, SPLAT4_I32(32767)), SPLAT4_I32(-32768))",
    "WRAP_INT16": "WRAP4_S16({a})",
}


def _compared(condition: str, yes: str = "1.0f", no: str = "0.0f") -> Function:
    texts = condition.format(_rounded("a"), _rounded("b"))
    return Function(f"WHERE4({texts}, SPLAT4({yes}), SPLAT4({no}))")


_COMPARISONS = {
    "EQUAL": _compared("EQUAL4_I32({}, {})"),
    "GREATER": _compared("LESS4_I32({1}, {0})"),
    "GREATER_EQUAL": _compared("LESS_EQUAL4_I32({1}, {0})"),
    "LESS": _compared("LESS4_I32({}, {})"),
    "LESS_EQUAL": _compared("LESS_EQUAL4_I32({}, {})"),
    "NOT_EQUAL": _compared("EQUAL4_I32({}, {})", "0.0f", "1.0f"),
}


def _by_sign(above: str, below: str) -> str:
    return _where(f"LESS4_I32({_centred('a')}, SPLAT4_I32(0))", below, above)


_SLOPED = f"MUL4_I32({_centred('a')}, {_by_sign('SPLAT4_I32(1)', _centred('b'))})"
_SLOPE_RAISED = f"SHIFT_LEFT4_I32({_SLOPED}, {_by_sign('{left_a}', '{left_b}')})"
_SLOPE_PRODUCT = f"MULTIPLY_HIGH4_I32({_SLOPE_RAISED}, {_by_sign('{number_a}', '{number_b}')})"
_SLOPES = f"ROUND_SHIFT4_I32({_SLOPE_PRODUCT}, {_by_sign('{right_a}', '{right_b}')}, SPLAT4_I32(1))"

_TABLES = (DType.INT8, DType.UINT8, DType.INT32, DType.FLOAT32)


def _looked_up(dtype: DType, table: str) -> str:
    return f"LOOKUP4_{KINDS[dtype]}({table}, {{a}})"


def _chosen(dtype: DType) -> str:
    """Text of an element of one of two tables: of the first in the body."""
    ending = register_of(dtype).ending
    found = (_looked_up(dtype, table) for table in ("{b}", "{c}"))
    return f"WHERE4{ending}({_BODY}, {', '.join(found)})"


_LEAST = INT.splat(INT.literal(-(2**31)))


def _nearest(x: str) -> str:
    """Text of floats times an inverse scale as the nearest integers, halves to the even one.

    Beyond the range of int32 the CPU makes the least integer of all.
    """
    found = f"CAST4_F32_I32(RINT4({{{x}}} * SPLAT4({{inverse}})))"
    return _where(f"EQUAL4_I32({found}, SPLAT4_I32(2147483647))", _LEAST, found)


def _one_if(condition: str) -> str:
    return _where(condition, "SPLAT4_I32(1)", "SPLAT4_I32(0)")


def _unfused(text: str, scale: str = "b") -> str:
    """Text of floats that are to be rounded before anything else is made of them.

    No scale is negative, which compilers do not know.
    """
    return f"APART4({text}, TO_INT(min(({{{scale}}}).x, 0.0f)))"


# Magnitudes of floats {b} in units of scales {c} + {d}, terms of 12 bits each: {a} are integers
# right below or next to them. With {a} in two terms, too, (a + 1/2) * scale has four exact ones.
_HIGH = "SHIFT_LEFT4_I32(SHIFT_RIGHT4_I32({a}, SPLAT4_I32(8)), SPLAT4_I32(8))"
_LOW = f"(CAST4_I32_F32(SUB4_I32({{a}}, {_HIGH})) + SPLAT4(0.5f))"
_OVER = _unfused(f"ABS4({{b}}) - CAST4_I32_F32({_HIGH}) * {{c}}", "c")
_OVER = _unfused(f"{_OVER} - CAST4_I32_F32({_HIGH}) * {{d}}", "c")
_OVER = _unfused(f"{_OVER} - {_LOW} * {{c}}", "c")
_MIDDLE = "(CAST4_I32_F32({a}) + SPLAT4(0.5f))"
# Taken for a sum of M, a compiler may make M * (1 + 2^-24) of it, whose factor is rounded to 1.
_PART = _unfused(f"{_MIDDLE} * SPLAT4(5.96046448e-8f)", "c")
_DIGIT = f"({_unfused(f'{_MIDDLE} + {_PART}', 'c')} - {_MIDDLE})"
_QUOTIENTS = {
    "ROUND_QUOTIENT": f"LESS_EQUAL4({_LOW} * {{d}}, {_OVER})",
    "ROUND_FLOAT_QUOTIENT": (
        f"LESS_EQUAL4({_LOW} * {{d}} - {_OVER}, {_DIGIT} * SPLAT4(0.5f) * ({{c}} + {{d}}))"
    ),
}


def _signed_quotient(reaches: str) -> str:
    rounded = f"ADD4_I32({{a}}, {_one_if(reaches)})"
    return _where("LESS4({b}, SPLAT4(0.0f))", f"NEG4_I32({rounded})", rounded)


_SCALED = _unfused("{a} * {b}")
_HALF = "WHERE4(LESS4({a}, SPLAT4(0.0f)), SPLAT4(-0.5f), SPLAT4(0.5f))"
_ROWS_BODY = f"CAST4_F32_I32({_SCALED} + {_HALF})"
_WHOLE = f"CAST4_F32_I32({_SCALED})"
_REST = f"{_SCALED} - CAST4_I32_F32({_WHOLE})"
_ROWS_TAIL = (
    f"ADD4_I32({_WHOLE}, SUB4_I32({_one_if(f'LESS_EQUAL4(SPLAT4(0.5f), {_REST})')}, "
    f"{_one_if(f'LESS_EQUAL4({_REST}, SPLAT4(-0.5f))')}))"
)
_FLOAT_SUM = "CAST4_I32_F32({a})"
_BY_BOTH = _unfused(f"{_FLOAT_SUM} * {_unfused('{b} * {c}')}")
_BY_WEIGHTS = _unfused(f"{_unfused(f'{_FLOAT_SUM} * {{c}}')} * {{b}}")
_BY_ROWS = _unfused(f"{_unfused(f'{_FLOAT_SUM} * {{b}}')} * {{c}}")

EXACT: Mapping[str, Function] = {
    # Floats as stored integers, by the inverse scale {b} of their row: halves go away from zero.
    # The body adds a half first, which is rounded.
    "ROUND_ROWS": Function(_ROWS_BODY, makes=INT),
    "ROUND_ROWS_TAIL": Function(_ROWS_TAIL, makes=INT),
    in_body("ROUND_ROWS"): Function(_where(_BODY, _ROWS_BODY, _ROWS_TAIL), makes=INT),
    # Sums of such integers without what their zero point {b} adds, the weights of which are {c}.
    "LESS_ZERO_POINT": Function("SUB4_I32({a}, MUL4_I32({b}, {c}))", makes=INT),
    # Sums as floats, by the scale {b} of their row and {c} of their weights: by the product of
    # both, or one after the other.
    "SCALE_SUM": Function(_BY_BOTH),
    "SCALE_BY_WEIGHTS": Function(_BY_WEIGHTS),
    "SCALE_BY_ROWS": Function(_BY_ROWS),
    in_body("SCALE_BY_WEIGHTS"): Function(f"WHERE4({_BODY}, {_BY_WEIGHTS}, {_BY_ROWS})"),
    # Added to {a}: {b} by the scales {c} of weights, a bias {d} before that. Where all weights have
    # one scale, it is a number in the text: the scale of the row, which comes last, keeps roundings
    # apart.
    "ADD_PRODUCT": Function(f"{{a}} + {_unfused('{b} * {c}', 'c')}"),
    "ADD_PRODUCT_AND_BIAS": Function(
        f"{{a}} + {_unfused(_unfused('{b} * {c}', 'c') + ' + {d}', 'c')}"
    ),
    "ADD_PRODUCT_BY_ONE": Function(f"{{a}} + {_unfused('{b} * {c}', 'd')}"),
    "ADD_PRODUCT_BY_ONE_AND_BIAS": Function(
        f"{{a}} + {_unfused(_unfused('{b} * {c}', 'e') + ' + {d}', 'e')}"
    ),
    # By a multiplier of 2^31, after a shift to the left by {c}, before one to the right by {d};
    # halves go up, or away from zero where {e} is 1.
    "REQUANTIZE_UP": Function("REQUANTIZE_UP4_I32({a}, {b}, {c}, {d})", makes=INT),
    "REQUANTIZE": Function("REQUANTIZE4_I32({a}, {b}, {c}, {d}, {e})", makes=INT),
    # Halves go up before element `end` of the whole value, then away from zero.
    "REQUANTIZE_BODY": Function(
        "REQUANTIZE4_I32({a}, {b}, {c}, {d}, "
        "WHERE4_I32(LESS4_I32({i}, {end}), SPLAT4_I32(0), SPLAT4_I32(1)))",
        makes=INT,
    ),
    "CLAMP": Function("MAX4_I32(MIN4_I32({a}, {high}), {low})", makes=INT, clamps=True),
    # Both inputs on one scale, where `left` bits more leave room for digits.
    "RESCALED_ADD": Function(_PLAIN_SUM, makes=INT),
    "RESCALED_SUB": Function(f"SUB4_I32({_rounded('a')}, {_rounded('b')})", makes=INT),
    **{name: Function(text, makes=INT) for name, text in _SUMS.items()},
    **{
        in_body(name): Function(_where(_BODY, text, _PLAIN_SUM), makes=INT)
        for name, text in _SUMS.items()
    },
    **{f"RESCALED_{name}": function for name, function in _COMPARISONS.items()},
    # Sums of bytes, in floats for which that was found to be the same: see ops/exact/float_sums.py.
    "SUM_BY_FLOATS": Function(_BY_FLOATS, makes=INT),
    "LOOKUP_INT16": Function("LOOKUP4_SHORT_I32({b}, {a})", makes=INT, tables=1),
    "CENTRED_MUL": Function(f"MUL4_I32({_centred('a')}, {_centred('b')})", makes=INT),
    # The two bytes of integers of 16 bits: the high one, and what is left of it less 128.
    "HIGH_BYTE": Function("SHIFT_RIGHT4_I32({a}, SPLAT4_I32(8))", makes=INT),
    "LOW_BYTE": Function("SUB4_I32(WRAP4_U8({a}), SPLAT4_I32(128))", makes=INT),
    # Sums of products of such bytes, as 32 bits hold them together, or as 64 bits do.
    "ADD_HIGH_SUM": Function("ADD4_I32({a}, SHIFT_LEFT4_I32({b}, SPLAT4_I32(8)))", makes=INT),
    "ADD_WEIGHTED": Function(
        "ADD4_I64({a}, MUL4_I64(CAST4_I32_I64({b}), CAST4_I32_I64({weight})))", makes=LONG
    ),
    # By multipliers of 15 bits {b}, then shifted to the right by {c}, halves up; or by the doubles
    # that have the bits {b}, rounded as doubles are, halves away from zero.
    "REQUANTIZE_LONG": Function("REQUANTIZE4_I64({a}, {b}, {c})", makes=INT),
    "ROUND_PRODUCT": Function("ROUND_PRODUCT4_I64({a}, {b})", makes=INT),
    # {b} are slopes: what is negative is multiplied with them, and by another multiplier.
    "REQUANTIZE_SLOPES": Function(_SLOPES, makes=INT),
    **{name: Function(text, makes=INT) for name, text in _INT16.items()},
    **{
        in_body(name): Function(_where(_BODY, text, "{a}"), makes=INT)
        for name, text in _INT16.items()
    },
    **{
        lookup_name(dtype): Function(_looked_up(dtype, "{b}"), makes=register_of(dtype), tables=1)
        for dtype in _TABLES
    },
    **{
        in_body(lookup_name(dtype)): Function(_chosen(dtype), makes=register_of(dtype), tables=2)
        for dtype in _TABLES
    },
    # From floats, halves to the even integer; the second one of {b}, before element `end`.
    "ROUND_TO_INT": Function(_nearest("a"), makes=INT),
    "ROUND_TO_INT_BODY": Function(_where("LESS4_I32({i}, {end})", _nearest("b"), "{a}"), makes=INT),
    # Magnitudes times inverse scales {b}, as far as any stored integer goes.
    "MAGNITUDE_BELOW": Function(
        "MIN4_I32(CAST4_F32_I32(ABS4({a} * {b})), SPLAT4_I32(131072))", makes=INT
    ),
    # {b} by scales, halves away from zero; of quotients, or of their nearest floats.
    **{name: Function(_signed_quotient(text), makes=INT) for name, text in _QUOTIENTS.items()},
    # What the CPU's conversion makes of all that int32 does not hold.
    "LEAST_OUTSIDE": Function(
        _where("LESS4({b}, {d})", _where("LESS4({c}, {b})", "{a}", _LEAST), _LEAST), makes=INT
    ),
}
"""What quantized operations are made of."""
