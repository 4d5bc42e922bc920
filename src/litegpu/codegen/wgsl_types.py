"""Types and values of WGSL, and the implicit conversions of C-like languages."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from litegpu.codegen.macros import TranslationError

_SCALARS = {"bool": 0, "i32": 1, "u32": 2, "f16": 3, "f32": 4}
"""Element types in the order of implicit conversion: each type converts to the later types."""


class Type(NamedTuple):
    """A scalar (`size` 1), a vector, a struct (`size` 0), or an array of such elements.

    `length` is the number of elements of an array; -1 for an array of unknown length.
    """

    kind: str
    size: int = 1
    length: int | None = None

    @property
    def element(self) -> Type:
        """The type of an element that an index selects."""
        if self.length is not None:
            return Type(self.kind, self.size)
        if self.size < 2:
            raise TranslationError(f"A scalar of type {self.kind} has no elements to index.")
        return Type(self.kind)


BOOL, INT, UINT, FLOAT, VOID = Type("bool"), Type("i32"), Type("u32"), Type("f32"), Type("void", 0)

TYPES = {
    "void": VOID,
    **{"bool": BOOL, "int": INT, "uint": UINT, "float": FLOAT, "float16_t": Type("f16")},
    **{
        f"{prefix}vec{size}": Type(kind, size)
        for prefix, kind in (("", "f32"), ("i", "i32"), ("u", "u32"), ("b", "bool"), ("f16", "f16"))
        for size in (2, 3, 4)
    },
}
"""The WGSL types by their names in kernel texts."""


class Value(NamedTuple):
    """An expression of WGSL: a `whole` one needs no parentheses, a `lasting` one is evaluated late.

    A `lasting` expression calls a function, or reads memory at an index that may be valid only
    under a condition; shaders evaluate it only if needed.
    """

    text: str
    type: Type
    whole: bool = True
    lasting: bool = False

    @property
    def operand(self) -> str:
        """The text of the expression as an operand of a larger expression."""
        return self.text if self.whole else f"({self.text})"


@cache
def type_text(each: Type) -> str:
    """Return the name of a type in WGSL."""
    element = each.kind if each.size < 2 else f"vec{each.size}<{each.kind}>"
    if each.length is None:
        return element
    return f"array<{element}, {each.length}>" if each.length >= 0 else f"array<{element}>"


def convert(value: Value, target: Type) -> Value:
    """Return a value converted to another element type; a scalar becomes a vector if necessary.

    Raises TranslationError if the value cannot be converted.
    """
    have = value.type
    if have == target:
        return value
    numbers = target.kind in _SCALARS and have.kind in _SCALARS
    arrays = target.length is not None or have.length is not None
    if not numbers or arrays or have.size not in (1, target.size):
        raise TranslationError(
            f"{value.text} is of type {type_text(have)}, not of {type_text(target)}."
        )
    if have.size == 1 and have.kind != target.kind and (text := _literal(value.text, target.kind)):
        value = Value(text, Type(target.kind))
        if target.size == 1:
            return value
    elif target.size > have.size and have.kind != target.kind:
        value = Value(f"{target.kind}({value.text})", Type(target.kind), True, value.lasting)
    return Value(f"{type_text(target)}({value.text})", target, True, value.lasting)


def _literal(text: str, kind: str) -> str:
    """Return the text of an integer literal in another type; "" for other texts."""
    if not text[:-1].isdigit() or text[-1] not in "iu":
        return ""
    endings = {"u32": "u", "f32": "f", "f16": "h", "i32": "i"}
    return text[:-1] + endings[kind] if kind in endings else ""


def joint_kind(*values: Value) -> str:
    """Return the element type to which all values are implicitly converted."""
    kinds = {value.type.kind for value in values}
    if len(kinds) == 1:
        return kinds.pop()
    unknown = kinds - _SCALARS.keys()
    if unknown:
        raise TranslationError(f"{unknown.pop()} is not a numeric type.")
    return max(kinds, key=_SCALARS.__getitem__)


def joint_size(*values: Value) -> int:
    """Return the number of elements of an operation's result."""
    return max(value.type.size for value in values)
