"""The register types of work items: four floats, four 32-bit integers or four 64-bit integers."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from litegpu.graph import DType

_INT_MIN = -(2**31)
_LOWEST = {"I32": _INT_MIN, "I64": -(2**63)}


@dataclass(frozen=True, slots=True)
class Register:
    """Four elements of one value in a register; `type` is the register's type in templates.

    The functions that create, compare and compute with such registers end in `ending`: `SPLAT4`
    creates floats, `SPLAT4_I32` and `SPLAT4_I64` integers.
    """

    kind: str
    type: str
    ending: str

    @property
    def zero(self) -> str:
        """The kernel text of an element 0."""
        return self.literal(0)

    @property
    def zeros(self) -> str:
        """The kernel text of four elements 0."""
        return self.splat(self.zero)

    @property
    def lowest(self) -> str:
        """The kernel text of the lowest element."""
        return "-INFINITY" if self is FLOAT else self.literal(_LOWEST[self.kind])

    @property
    def highest(self) -> str:
        """The kernel text of the highest element."""
        return "INFINITY" if self is FLOAT else self.literal(-1 - _LOWEST[self.kind])

    def splat(self, element: str) -> str:
        """Return the kernel text of four copies of an element."""
        return self.call("SPLAT4", element)

    def call(self, word: str, *arguments: str) -> str:
        """Return the kernel text of a function applied to values in registers of this type."""
        return f"{word}{self.ending}({', '.join(arguments)})"

    def literal(self, number: float) -> str:
        """Return the kernel text of an element; an integer must fit the type."""
        if self is FLOAT:
            return literal(number)
        whole = int(number)
        if self is INT:
            return _int_literal(whole)
        low = (whole & 0xFFFFFFFF) - ((whole & 0x80000000) << 1)
        return f"LONG({_int_literal(whole >> 32)}, {_int_literal(low)})"


FLOAT = Register("F32", "float4", "")
INT = Register("I32", "int4", "_I32")
LONG = Register("I64", "Long4", "_I64")

KINDS = {
    DType.FLOAT32: "F32",
    DType.FLOAT16: "F16",
    DType.INT8: "S8",
    DType.UINT8: "U8",
    DType.INT16: "S16",
    DType.UINT16: "U16",
    DType.INT32: "I32",
    DType.INT64: "I64",
    DType.BOOL: "BOOL8",
}
"""Suffixes of the dialect's load and store functions by the element type of the buffer."""

_REGISTERS = {
    **dict.fromkeys((DType.FLOAT32, DType.FLOAT16, DType.BOOL), FLOAT),
    **dict.fromkeys((DType.INT8, DType.UINT8, DType.INT16, DType.UINT16, DType.INT32), INT),
    DType.INT64: LONG,
}


def register_of(dtype: DType) -> Register:
    """Return the register type of an element type; bools become the floats 0 and 1."""
    return _REGISTERS[dtype]


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


def _int_literal(number: int) -> str:
    # A literal and its sign are separate tokens, and 2147483648 alone is out of range.
    if number == _INT_MIN:
        return f"({_INT_MIN + 1} - 1)"
    return f"({number})" if number < 0 else str(number)
