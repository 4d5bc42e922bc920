"""Cases of element-wise operations on two quantized tensors, equal to the CPU in every bit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from cases.base import EXACT, Array, Case, Range, Shape, Sheet
from cases.quantized import ORDINARY, POWER, WIDE, Stored, quantization
from litegpu.graph import Quantization

BYTES = ("int8", "uint8")
_COMPARISONS = ("EQUAL", "NOT_EQUAL", "LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL")
_SIZES: Mapping[str, float] = {"MUL": 4.0, "SQUARED_DIFFERENCE": 16.0}
"""What results of inputs up to 2 are up to, if not to 4."""
_VERSIONS: Mapping[tuple[str, str], int] = {
    ("ADD", "int16"): 3,
    ("SUB", "int16"): 5,
    ("MUL", "int16"): 4,
    ("MAXIMUM", "int16"): 4,
    ("MINIMUM", "int16"): 4,
    ("PRELU", "int8"): 1,
    ("PRELU", "int16"): 1,
    ("EQUAL", "int16"): 5,
    ("NOT_EQUAL", "int16"): 4,
    ("LESS", "int16"): 3,
    ("GREATER_EQUAL", "int16"): 3,
}


@dataclass(frozen=True, kw_only=True)
class Divisors(Stored):
    """Stored integers of a type but one: the zero point, by which the CPU refuses to divide."""

    zero: int = 0

    def draw(self, shape: Shape, random: np.random.Generator) -> Array:
        """Return seeded elements over the whole range."""
        found, ends = super().draw(shape, random), np.iinfo(self.dtype)
        other = self.zero + 1 if self.zero < ends.max else ends.min
        return np.where(found == self.zero, np.asarray(other, self.dtype), found)


@dataclass(frozen=True, kw_only=True)
class QuantizedPair(Case):
    """Two inputs; the one numbered `constant` is a constant. Without `second` both are one.

    `finer` divides the scale of the result: results then leave its range, and that of 16 bits.
    """

    tolerance: ClassVar[float] = EXACT

    op: str
    dtype: str = "int8"
    kind: str = ORDINARY
    first: Shape = (2, 3, 2, 6)
    second: Shape | None = (2, 3, 2, 6)
    constant: int | None = None
    activation: str = "NONE"
    finer: float = 1.0
    draw: int = 0
    """A number, for the names of cases that differ in nothing else."""

    def write(self, sheet: Sheet) -> None:
        """Two values, one operation, one output."""
        shapes = (self.first,) if self.second is None else (self.first, self.second)
        scales = [self._scale(sheet, 0.9) for _ in shapes]
        if self.op in ("MAXIMUM", "MINIMUM"):
            scales = scales[:1] * len(shapes)
        slopes = self.op == "PRELU" and self.dtype == "int16"
        dtypes = (self.dtype, "int8" if slopes else self.dtype)
        drawn = [
            Divisors(dtype=dtype, zero=found.zero_point[0])
            if self.op == "DIV" and i == len(shapes) - 1
            else Stored(dtype=dtype)
            for i, (found, dtype) in enumerate(zip(scales, dtypes, strict=False))
        ]
        inputs = [
            sheet.constant(values.draw(shape, sheet.random), values.dtype, found)
            if i == self.constant
            else sheet.input(shape, values, found)
            for i, (shape, found, values) in enumerate(zip(shapes, scales, drawn, strict=True))
        ]
        usual = 1 if self.dtype == "uint8" else 2
        version = _VERSIONS.get((self.op, self.dtype), usual)
        computed, pair = self._result(sheet, scales), [inputs[0], inputs[-1]]
        sheet.output(sheet.op(self.op, pair, self._options(), version, *computed))

    def _scale(self, sheet: Sheet, real: float) -> Quantization:
        found = quantization(sheet.random, self.dtype, self.kind, real)
        return Quantization(found.scale, (0,)) if self.dtype == "int16" else found

    def _options(self) -> Mapping[str, Any] | None:
        fused = {"fused_activation_function": self.activation}
        if self.op in ("DIV", "MUL"):
            return fused
        return {**fused, "pot_scale_int16": False} if self.op in ("ADD", "SUB") else None

    def _result(self, sheet: Sheet, scales: list[Quantization]) -> tuple[str, Quantization | None]:
        """Return the type and the quantization of the result."""
        if self.op in _COMPARISONS:
            return "bool", None
        if self.op in ("MAXIMUM", "MINIMUM"):
            return self.dtype, scales[0]
        size = _SIZES.get(self.op, 2.0)
        if self.kind == WIDE and self.op in ("ADD", "SUB"):
            size = max(each.scale[0] for each in scales) * 200.0
        found = self._scale(sheet, size)
        return self.dtype, Quantization((found.scale[0] / self.finer,), found.zero_point)


@dataclass(frozen=True)
class Same(Range):
    """The same integer, `low`, everywhere."""

    def draw(self, shape: Shape, random: np.random.Generator) -> Array:
        """Return such an array."""
        return np.full(shape, self.low, self.dtype)


_ROUNDINGS: Mapping[str, tuple[Quantization, Quantization, Quantization, int, int]] = {
    # Vectors that shift before they multiply, and those that leave digits out, give other sums.
    "whole": (
        Quantization((0.01442,), (-52,)),
        Quantization((0.02481,), (-66,)),
        Quantization((0.02094,), (-8,)),
        *(-109, 3),
    ),
    "floored": (
        Quantization((0.0135,), (39,)),
        Quantization((0.01887,), (-73,)),
        Quantization((0.02118,), (-29,)),
        *(102, -122),
    ),
    "floored uint8": (
        Quantization((0.00658,), (186,)),
        Quantization((0.00641,), (198,)),
        Quantization((0.00502,), (127,)),
        *(209, 239),
    ),
}


@dataclass(frozen=True, kw_only=True)
class QuantizedSum(Case):
    """ADD of two numbers that are rounded otherwise in vectors than one by one."""

    tolerance: ClassVar[float] = EXACT

    rounding: str = "whole"
    first: Shape = (3, 7)
    second: Shape = (3, 7)

    def write(self, sheet: Sheet) -> None:
        """Two values, one operation, one output."""
        *quantizations, one, other = _ROUNDINGS[self.rounding]
        first, second, result = quantizations
        dtype = self.rounding.partition(" ")[2] or "int8"
        x = sheet.input(self.first, Same(low=one, dtype=dtype), first)
        y = sheet.input(self.second, Same(low=other, dtype=dtype), second)
        version = 1 if dtype == "uint8" else 2
        sheet.output(sheet.op("ADD", [x, y], {}, version, dtype, result))


def _types(op: str, *dtypes: str, **fields: Any) -> list[QuantizedPair]:
    return [QuantizedPair(op=op, dtype=dtype, **fields) for dtype in dtypes]


_SHORT = (*BYTES, "int16")
_ALONG, _ONE, _ANY = ((2, 19), (19,)), ((2, 3, 11), (2, 3, 1)), ((2, 1, 2, 1, 3), (1, 2, 1, 2, 1))
"""Loops of the CPU: over what is broadcast whole, from one element, or in other ways."""
_SIX = ((2, 3, 2, 2, 3, 5), (2, 1, 1, 2, 3, 5))

CASES: tuple[Case, ...] = (
    *(case for op in ("ADD", "SUB", "MUL") for case in _types(op, *_SHORT, kind=POWER)),
    *_types("ADD", "int8", kind=WIDE),
    *_types("ADD", *BYTES, finer=1000.0),
    *_types("MUL", *BYTES, finer=1000.0),
    *(
        case
        for first, second in (_ONE, _ANY, _SIX)
        for case in _types("MUL", *BYTES, finer=1000.0, first=first, second=second)
    ),
    *_types("ADD", "int8", activation="RELU6"),
    *_types("MUL", "uint8", activation="RELU"),
    *_types("SUB", "int8", activation="RELU_N1_TO_1"),
    *_types("MUL", "int8", second=None),
    *_types("SUB", "uint8", first=(6,), constant=0),
    # Results of a scale so small that the CPU shifts by a negative number of bits.
    *(
        case
        for first, second in (((2, 3, 2, 6), (2, 3, 2, 6)), ((3, 7), (3, 7)), _ALONG, _ONE, _ANY)
        for case in _types("SUB", *_SHORT, first=first, second=second, finer=1e9)
    ),
    *_types("SUB", "int8", finer=3e6, activation="RELU"),
    *_types("SUB", *_SHORT, first=(3,), second=(3,), finer=1e12),
    *_types("ADD", "uint8", second=(), constant=1),
    *(case for kind in (POWER, WIDE) for case in _types("DIV", *BYTES, kind=kind)),
    *_types("DIV", *BYTES, first=(2, 3, 19), second=(3, 1), finer=0.01),
    *_types("DIV", "int8", first=(6,), constant=0, activation="RELU_N1_TO_1"),
    *_types("DIV", "uint8", second=(), constant=1, activation="RELU6"),
    *_types("DIV", *BYTES, second=None, finer=16.0),
    *_types("MAXIMUM", *_SHORT, second=(2, 1, 2, 6)),
    *_types("MINIMUM", *_SHORT, constant=1),
    *_types("SQUARED_DIFFERENCE", "int8", kind=POWER),
    *_types("SQUARED_DIFFERENCE", "int8", second=(3, 1, 1)),
    *(case for op in _COMPARISONS for case in _types(op, *BYTES, kind=POWER, second=(2, 6))),
    *(QuantizedPair(op=op, dtype="int16", kind=POWER) for op in _COMPARISONS),
    *(
        QuantizedPair(op=op, dtype="int16", second=(2, 9), first=(3, 1, 9))
        for op in ("EQUAL", "LESS")
    ),
    *_types("PRELU", "int16", kind=POWER, second=(1, 1, 6), constant=1),
    QuantizedPair(op="PRELU", dtype="int16", first=(2, 3, 2, 9), second=(1, 3, 1, 9)),
    *_types("PRELU", *BYTES, kind=POWER, second=(1, 1, 6), constant=1),
    *_types("PRELU", "int8", second=(1, 3, 1, 6)),
    *(
        QuantizedSum(rounding="whole", first=first, second=second)
        for first, second in (((3, 7), (3, 7)), _ALONG, ((2, 8), (2, 8)))
    ),
    *(
        QuantizedSum(rounding=rounding, first=first, second=second)
        for rounding in ("floored", "floored uint8")
        for first, second in (_ONE, _ANY, _SIX)
    ),
    QuantizedSum(rounding="floored uint8"),
)
