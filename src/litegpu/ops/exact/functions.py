"""Epilogue functions of quantized ops, in addition to the plain integer functions.

In expressions, {a} and {b} are stored integers; other names in braces are attributes. The CPU
computes the first elements of a loop by vector code (the body). Scalar code computes the remaining
elements (the tail), and often rounds differently. The body consists of the first {end} elements of
each {run} consecutive elements.
"""

from __future__ import annotations

from collections.abc import Mapping

from litegpu.codegen import INT, KINDS, LONG, register_of
from litegpu.graph import DType
from litegpu.ops.common.function import Function

_BODY = "LESS4_I32(FLOOR_MOD4_I32({i}, {run}), {end})"


def in_body(name: str) -> str:
    """Return the name of the variant that applies a function in the loop's body only."""
    return f"{name}_IN_BODY"


def lookup_name(dtype: DType) -> str:
    """Return the name of the function that reads a 256-entry table with elements of a type."""
    return f"LOOKUP_{dtype.name}"


def _where(condition: str, yes: str, no: str) -> str:
    return f"WHERE4_I32({condition}, {yes}, {no})"


def _centred(x: str) -> str:
    """Return the text of an input minus its zero point."""
    return f"SUB4_I32({{{x}}}, {{zero_{x}}})"


def _raised(x: str) -> str:
    return f"SHIFT_LEFT4_I32({_centred(x)}, {{left}})"


def _rounded(x: str) -> str:
    """Return the text that rescales an input by a multiplication and a rounding shift."""
    product = f"MULTIPLY_HIGH4_I32({_raised(x)}, {{number_{x}}})"
    return f"ROUND_SHIFT4_I32({product}, {{right_{x}}}, SPLAT4_I32(1))"


def _floored(x: str) -> str:
    """Return the text that rescales an input with a truncating shift."""
    product = f"MULTIPLY_HIGH4_I32({_raised(x)}, {{number_{x}}})"
    return f"SHIFT_RIGHT4_I32({product}, {{right_{x}}})"


def _whole(x: str) -> str:
    """Return the text that rescales an input with the shift before the multiplication."""
    shifted = f"SHIFT_RIGHT4_I32({_raised(x)}, {{right_{x}}})"
    return f"MULTIPLY_HIGH4_I32({shifted}, {{number_{x}}})"


_PLAIN_SUM = f"ADD4_I32({_rounded('a')}, {_rounded('b')})"
_SUMS = {
    "RESCALED_ADD_FLOORED": f"ADD4_I32({_floored('a')}, {_floored('b')})",
    "RESCALED_ADD_WHOLE": f"ADD4_I32({_whole('a')}, {_whole('b')})",
}
_SECOND = "FMA4(CAST4_I32_F32({b}), SPLAT4({second}), SPLAT4({rest}))"
_BY_FLOATS = f"FLOOR4_I32(FMA4(CAST4_I32_F32({{a}}), SPLAT4({{first}}), {_SECOND}))"
_SIGN = "SHIFT_RIGHT4_I32({a}, SPLAT4_I32(31))"
_SHIFTED_MODULO, _SIGN_OF = (
    f"ADD4_I32({text}, ADD4_I32({_SIGN}, SPLAT4_I32(1)))"
    for text in ("SHIFT_RIGHT4_I32({a}, {right})", _SIGN)
)
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
    """Return the text of a lookup in table {b} for the body, or in table {c} for the tail."""
    ending = register_of(dtype).ending
    found = (_looked_up(dtype, table) for table in ("{b}", "{c}"))
    return f"WHERE4{ending}({_BODY}, {', '.join(found)})"


_LEAST = INT.splat(INT.literal(-(2**31)))


def _nearest(x: str) -> str:
    """Return the text of floats times an inverse scale, rounded half to even.

    Results beyond int32 become -2^31, as on the CPU.
    """
    found = f"CAST4_F32_I32(RINT4(ROUNDED4({{{x}}}) * SPLAT4({{inverse}})))"
    return _where(f"EQUAL4_I32({found}, SPLAT4_I32(2147483647))", _LEAST, found)


def _one_if(condition: str) -> str:
    return _where(condition, "SPLAT4_I32(1)", "SPLAT4_I32(0)")


def _unfused(text: str, scale: str = "b") -> str:
    """Return the text of a float expression that compilers must not fuse into an FMA.

    The text relies on nonnegative scales, which compilers cannot deduce.
    """
    return f"APART4({text}, TO_INT(min(({{{scale}}}).x, 0.0f)))"


# Magnitudes of floats {b} in units of the scale {c} + {d}, two terms of 12 bits each: {a} is the
# integer just below the quotient, or next to it. With {a} in two terms, too, the four products of
# (a + 1/2) * scale are exact.
_HIGH = "SHIFT_LEFT4_I32(SHIFT_RIGHT4_I32({a}, SPLAT4_I32(8)), SPLAT4_I32(8))"
_LOW = f"(CAST4_I32_F32(SUB4_I32({{a}}, {_HIGH})) + SPLAT4(0.5f))"
_OVER = _unfused(f"ABS4({{b}}) - CAST4_I32_F32({_HIGH}) * {{c}}", "c")
_OVER = _unfused(f"{_OVER} - CAST4_I32_F32({_HIGH}) * {{d}}", "c")
_OVER = _unfused(f"{_OVER} - {_LOW} * {{c}}", "c")
_MIDDLE = "(CAST4_I32_F32({a}) + SPLAT4(0.5f))"
# Written as M + M * 2^-24, a compiler may turn it into M * (1 + 2^-24), whose factor rounds to 1.
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


def rounded_rows(body: int, *, tail: bool) -> str:
    """Return the text of floats {a} times an inverse scale {b}; halves are rounded away from zero.

    For the first `body` elements {i} of a row, the text adds 0.5 and truncates; that addition is
    itself rounded. A `tail` after them is rounded exactly.
    """
    if not tail:
        return _ROWS_BODY
    in_the_body = f"LESS4_I32({{i}}, SPLAT4_I32({body}))"
    return _where(in_the_body, _ROWS_BODY, _ROWS_TAIL) if body else _ROWS_TAIL


_FLOAT_SUM = "CAST4_I32_F32({a})"
_BY_BOTH = _unfused(f"{_FLOAT_SUM} * {_unfused('{b} * {c}')}")
_BY_WEIGHTS = _unfused(f"{_unfused(f'{_FLOAT_SUM} * {{c}}')} * {{b}}")
_BY_ROWS = _unfused(f"{_unfused(f'{_FLOAT_SUM} * {{b}}')} * {{c}}")

EXACT: Mapping[str, Function] = {
    # Subtract the contribution of zero points {b}; {c} are the sums of the weights.
    "LESS_ZERO_POINT": Function("SUB4_I32({a}, MUL4_I32({b}, {c}))", makes=INT),
    # Convert sums to float by the scales of their row {b} and of the weights {c}: multiplied by the
    # product of both, or by one after the other.
    "SCALE_SUM": Function(_BY_BOTH),
    "SCALE_BY_WEIGHTS": Function(_BY_WEIGHTS),
    "SCALE_BY_ROWS": Function(_BY_ROWS),
    in_body("SCALE_BY_WEIGHTS"): Function(f"WHERE4({_BODY}, {_BY_WEIGHTS}, {_BY_ROWS})"),
    # Add to {a} the product of {b} and the weights' scales {c}, plus a bias {d}. If all weights
    # have one scale, it is a literal in the text; the last operand, the row's scale, then prevents
    # the compiler from contracting the operations.
    "ADD_PRODUCT": Function(f"{{a}} + {_unfused('{b} * {c}', 'c')}"),
    "ADD_PRODUCT_AND_BIAS": Function(
        f"{{a}} + {_unfused(_unfused('{b} * {c}', 'c') + ' + {d}', 'c')}"
    ),
    "ADD_PRODUCT_BY_ONE": Function(f"{{a}} + {_unfused('{b} * {c}', 'd')}"),
    "ADD_PRODUCT_BY_ONE_AND_BIAS": Function(
        f"{{a}} + {_unfused(_unfused('{b} * {c}', 'e') + ' + {d}', 'e')}"
    ),
    # Multiply by {b} / 2^31 after a left shift by {c} and before a right shift by {d}. Halves are
    # rounded up, or away from zero where {e} is 1.
    "REQUANTIZE_UP": Function("REQUANTIZE_UP4_I32({a}, {b}, {c}, {d})", makes=INT),
    "REQUANTIZE": Function("REQUANTIZE4_I32({a}, {b}, {c}, {d}, {e})", makes=INT),
    # Halves are rounded up before element `end` of the whole value, away from zero after it.
    "REQUANTIZE_BODY": Function(
        "REQUANTIZE4_I32({a}, {b}, {c}, {d}, "
        "WHERE4_I32(LESS4_I32({i}, {end}), SPLAT4_I32(0), SPLAT4_I32(1)))",
        makes=INT,
    ),
    "CLAMP": Function("MAX4_I32(MIN4_I32({a}, {high}), {low})", makes=INT, clamps=True),
    # Rescale both inputs to one scale; the left shift by `left` bits keeps precision.
    "RESCALED_ADD": Function(_PLAIN_SUM, makes=INT),
    "RESCALED_SUB": Function(f"SUB4_I32({_rounded('a')}, {_rounded('b')})", makes=INT),
    **{name: Function(text, makes=INT) for name, text in _SUMS.items()},
    **{
        in_body(name): Function(_where(_BODY, text, _PLAIN_SUM), makes=INT)
        for name, text in _SUMS.items()
    },
    **{f"RESCALED_{name}": function for name, function in _COMPARISONS.items()},
    # Shift as the CPU does by a negative number of bits; {right} is this number modulo 32.
    "SHIFT_MODULO": Function(_SHIFTED_MODULO, makes=INT),
    "SIGN_OF": Function(_SIGN_OF, makes=INT),
    in_body("SIGN_OF"): Function(_where(_BODY, _SIGN_OF, _SHIFTED_MODULO), makes=INT),
    # Sums of bytes computed in float32, if that is exact: see ops/exact/float_sums.py.
    "SUM_BY_FLOATS": Function(_BY_FLOATS, makes=INT),
    "LOOKUP_INT16": Function("LOOKUP4_SHORT_I32({b}, {a})", makes=INT, tables=1),
    "CENTRED_MUL": Function(f"MUL4_I32({_centred('a')}, {_centred('b')})", makes=INT),
    # The high and low bytes of 16-bit integers; 128 is subtracted from the low byte.
    "HIGH_BYTE": Function("SHIFT_RIGHT4_I32({a}, SPLAT4_I32(8))", makes=INT),
    "LOW_BYTE": Function("SUB4_I32(WRAP4_U8({a}), SPLAT4_I32(128))", makes=INT),
    # Combine sums of products of high and low bytes, in 32 or in 64 bits.
    "ADD_HIGH_SUM": Function("ADD4_I32({a}, SHIFT_LEFT4_I32({b}, SPLAT4_I32(8)))", makes=INT),
    "ADD_WEIGHTED": Function(
        "ADD4_I64({a}, MUL4_I64(CAST4_I32_I64({b}), CAST4_I32_I64({weight})))", makes=LONG
    ),
    # Requantize 64-bit sums: by 15-bit multipliers {b} and a right shift by {c}, halves up; or by
    # float64 factors with the bits {b}, rounded as in float64, halves away from zero.
    "REQUANTIZE_LONG": Function("REQUANTIZE4_I64({a}, {b}, {c})", makes=INT),
    "ROUND_PRODUCT": Function("ROUND_PRODUCT4_I64({a}, {b})", makes=INT),
    # {b} are slopes: negative elements are multiplied by them, and have another multiplier.
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
    # Round floats to integers, halves to even; the BODY variant does so with {b} before `end`.
    "ROUND_TO_INT": Function(_nearest("a"), makes=INT),
    "ROUND_TO_INT_BODY": Function(_where("LESS4_I32({i}, {end})", _nearest("b"), "{a}"), makes=INT),
    # Magnitudes times inverse scales {b}, limited to the range of stored integers.
    "MAGNITUDE_BELOW": Function(
        "MIN4_I32(CAST4_F32_I32(ABS4({a} * {b})), SPLAT4_I32(131072))", makes=INT
    ),
    # Divide {b} by scales, halves away from zero: exact quotients, or quotients rounded to float32.
    **{name: Function(_signed_quotient(text), makes=INT) for name, text in _QUOTIENTS.items()},
    # Results outside int32 become -2^31, as in the CPU's conversion.
    "MIN_OUTSIDE": Function(
        _where("LESS4({b}, {d})", _where("LESS4({c}, {b})", "{a}", _LEAST), _LEAST), makes=INT
    ),
}
"""The epilogue functions of quantized operations, by name."""
