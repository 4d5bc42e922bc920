"""Built-in functions of the C-like dialect that WGSL has under other names or for other types."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from litegpu.codegen.macros import TranslationError
from litegpu.codegen.wgsl_types import (
    BOOL,
    INT,
    UINT,
    VOID,
    Type,
    Value,
    convert,
    joint_kind,
    joint_size,
    type_text,
)

RUNTIME_BITS = "runtime_bits"
"""A function that returns its argument as a non-constant: WGSL has no infinite constants."""

Builtin = Callable[[str, Sequence[Value]], Value]


def _lasting(values: Sequence[Value]) -> bool:
    return any(value.lasting for value in values)


def _call(name: str, values: Sequence[Value], result: Type) -> Value:
    arguments = ", ".join(value.text for value in values)
    return Value(f"{name}({arguments})", result, True, _lasting(values))


def _alike(name: str, values: Sequence[Value]) -> Value:
    """Return a call whose arguments and result all have one type."""
    joint = Type(joint_kind(*values), joint_size(*values))
    return _call(name, [convert(value, joint) for value in values], joint)


def _real(name: str, values: Sequence[Value]) -> Value:
    """Return a call whose arguments and result are floats of one size."""
    kind = joint_kind(*values)
    joint = Type(kind if kind == "f16" else "f32", joint_size(*values))
    return _call(name, [convert(value, joint) for value in values], joint)


def _compared(name: str, values: Sequence[Value]) -> Value:
    first, second = values
    joint = Type(joint_kind(*values), joint_size(*values))
    left, right = convert(first, joint), convert(second, joint)
    result = Type("bool", joint.size)
    return Value(f"{left.operand} {name} {right.operand}", result, False, _lasting(values))


def _mix(_: str, values: Sequence[Value]) -> Value:
    no, yes, by = values
    if by.type.kind == "bool":
        joint = Type(joint_kind(no, yes), joint_size(*values))
        return _call("select", [convert(no, joint), convert(yes, joint), by], joint)
    return _real("mix", values)


def _bits(kind: str) -> Builtin:
    def make(_: str, values: Sequence[Value]) -> Value:
        (value,) = values
        result = Type(kind, value.type.size)
        if value.text[0].isdigit():
            value = Value(f"{RUNTIME_BITS}({convert(value, UINT).text})", UINT)
        return _call(f"bitcast<{type_text(result)}>", [value], result)

    return make


def _of(name: str, result: Type, *parameters: Type) -> Builtin:
    def make(_: str, values: Sequence[Value]) -> Value:
        given = [convert(*pair) for pair in zip(values, parameters, strict=True)]
        return _call(name, given, result)

    return make


def _extract(_: str, values: Sequence[Value]) -> Value:
    value, *places = values
    return _call("extractBits", [value, *(convert(each, UINT) for each in places)], value.type)


def _highest(_: str, values: Sequence[Value]) -> Value:
    (value,) = values
    return convert(_call("firstLeadingBit", values, value.type), Type("i32", value.type.size))


def _sum(_: str, values: Sequence[Value]) -> Value:
    product = _alike("dot", values)
    return product._replace(type=Type(product.type.kind))


def _any(name: str, values: Sequence[Value]) -> Value:
    return _call(name, values, BOOL)


_REAL = (
    *("acos", "asin", "atan", "ceil", "cos", "cosh", "exp", "exp2", "floor", "fma", "fract"),
    *("log", "log2", "pow", "round", "sin", "sinh", "sqrt", "step", "tan", "tanh", "trunc"),
)

BUILTINS: dict[str, tuple[str, Builtin]] = {
    **{name: (name, _real) for name in _REAL},
    **{name: (name, _alike) for name in ("abs", "clamp", "max", "min", "sign")},
    **{name: (name, _any) for name in ("all", "any")},
    "roundEven": ("round", _real),
    "inversesqrt": ("inverseSqrt", _real),
    "lessThan": ("<", _compared),
    "lessThanEqual": ("<=", _compared),
    "greaterThan": (">", _compared),
    "greaterThanEqual": (">=", _compared),
    "equal": ("==", _compared),
    "notEqual": ("!=", _compared),
    "mix": ("", _mix),
    "dot": ("", _sum),
    "floatBitsToInt": ("", _bits("i32")),
    "floatBitsToUint": ("", _bits("u32")),
    "intBitsToFloat": ("", _bits("f32")),
    "uintBitsToFloat": ("", _bits("f32")),
    "bitfieldExtract": ("", _extract),
    "findMSB": ("", _highest),
    "packHalf2x16": ("", _of("pack2x16float", UINT, Type("f32", 2))),
    "unpackHalf2x16": ("", _of("unpack2x16float", Type("f32", 2), UINT)),
    "dot4I8Packed": ("", _of("dot4I8Packed", INT, UINT, UINT)),
    "workgroupBarrier": ("", _of("workgroupBarrier", VOID)),
}
"""For each built-in function: its name in WGSL, and the function that creates a call."""


def builtin(name: str, values: Sequence[Value]) -> Value | None:
    """Return a call of a built-in function; None if there is no such function.

    Raises TranslationError for invalid arguments.
    """
    found = BUILTINS.get(name)
    if found is None:
        return None
    try:
        return found[1](found[0], values)
    except ValueError as error:
        raise TranslationError(f"{name} does not take {len(values)} arguments.") from error


def construct(result: Type, values: Sequence[Value]) -> Value:
    """Return a constructed value: from a scalar for all elements, or from all elements."""
    if len(values) == 1:
        (value,) = values
        if value.type == result:
            return value
        if value.type.size > result.size > 0:  # its first elements
            value = _first(value, result.size)
        return convert(value, result)
    given = [convert(value, Type(result.kind, value.type.size)) for value in values]
    if sum(value.type.size for value in given) != result.size:
        raise TranslationError(
            f"{type_text(result)} cannot be constructed from {len(values)} values."
        )
    return _call(type_text(result), given, result)


def _first(value: Value, size: int) -> Value:
    return Value(
        f"{value.operand}.{'xyzw'[:size]}", Type(value.type.kind, size), True, value.lasting
    )
