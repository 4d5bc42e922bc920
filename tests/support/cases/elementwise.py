"""Cases of the elementwise operations, including PRELU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Any, ClassVar

import numpy as np

from cases.base import EXACT, STEPS, Array, Case, Range, Shape, Sheet
from cases.conv_2d import ACTIVATIONS

_SIGNED = Range(-4.0, 4.0)
_POSITIVE = Range(0.1, 4.0)
_EIGHTHS = Range(0.5, 3.0, grid=1 / 8)
_WHOLE = (2, 3, 2, 6)


@dataclass(frozen=True, kw_only=True)
class Unary(Case):
    """One input."""

    op: str
    shape: Shape = (2, 3, 2, 6)
    values: Range = _SIGNED
    options: tuple[tuple[str, Any], ...] = ()

    def write(self, sheet: Sheet) -> None:
        """One input, one operation, one output."""
        source = sheet.input(self.shape, self.values)
        sheet.output(sheet.op(self.op, [source], dict(self.options) or None))


@dataclass(frozen=True, kw_only=True)
class Binary(Case):
    """Two inputs; the one numbered `constant` is a constant. Without `second` both are one."""

    op: str
    first: Shape = (2, 3, 2, 6)
    second: Shape | None = field(default=(2, 3, 2, 6))
    constant: int | None = None
    half_weights: bool = False
    activation: str = "NONE"

    def write(self, sheet: Sheet) -> None:
        """Two values, one operation, one output."""
        shapes = (self.first,) if self.second is None else (self.first, self.second)
        values = _POSITIVE if self.op == "DIV" else _SIGNED
        inputs = [
            sheet.weights(shape, values, half=self.half_weights)
            if i == self.constant
            else sheet.input(shape, values)
            for i, shape in enumerate(shapes)
        ]
        pair = [inputs[0], inputs[-1]]
        if self.activation == "NONE":
            sheet.output(sheet.op(self.op, pair))
        else:
            sheet.output(sheet.fused(self.op, pair, self.activation))


@dataclass(frozen=True, kw_only=True)
class Exact(Case):
    """Two inputs whose elements float16 holds; the one numbered `constant` is a constant."""

    op: str
    second: Shape
    constant: int | None = None
    first_values: Range = STEPS
    second_values: Range = _EIGHTHS

    def write(self, sheet: Sheet) -> None:
        """Two values, one operation, one output."""
        first = sheet.input(_WHOLE, self.first_values)
        make = sheet.weights if self.constant == 1 else sheet.input
        sheet.output(sheet.op(self.op, [first, make(self.second, self.second_values)]))


@dataclass(frozen=True)
class HalfRange(Range):
    """Where elements of float16 lie, which are no multiples of anything."""

    dtype: str = "float16"

    def draw(self, shape: Shape, random: np.random.Generator) -> Array:
        """Return seeded elements."""
        return np.asarray(random.uniform(self.low, self.high, shape), np.float16)


@dataclass(frozen=True, kw_only=True)
class Halves(Case):
    """An operation on float16, rounded after each; the input numbered `constant` is a constant."""

    tolerance: ClassVar[float] = EXACT

    op: str
    shapes: tuple[Shape, ...] = ((2, 3, 2, 5),) * 2
    constant: int | None = None
    values: Range = HalfRange(-300.0, 300.0)

    def write(self, sheet: Sheet) -> None:
        """One or two inputs, one output."""
        inputs = [
            sheet.weights(shape, self.values)
            if i == self.constant
            else sheet.input(shape, self.values)
            for i, shape in enumerate(self.shapes)
        ]
        dtype = "bool" if self.op in _COMPARED else "float16"
        sheet.output(sheet.op(self.op, inputs, dtype=dtype))


@dataclass(frozen=True, kw_only=True)
class HalfFunction(Case):
    """A function of float16, of which the CPU also rounds what it computes on the way."""

    tolerance: ClassVar[float] = 1e-3

    op: str
    count: int = 1
    shape: Shape = (2, 3, 2, 5)
    options: tuple[tuple[str, Any], ...] = ()

    def write(self, sheet: Sheet) -> None:
        """One or two inputs, one output."""
        inputs = [sheet.input(self.shape, HalfRange(-6.0, 6.0)) for _ in range(self.count)]
        sheet.output(sheet.op(self.op, inputs, dict(self.options), dtype="float16"))


@dataclass(frozen=True, kw_only=True)
class Sum(Case):
    """ADD_N of so many inputs, or of one input again and again."""

    count: int
    same: bool = False

    def write(self, sheet: Sheet) -> None:
        """All inputs, one output."""
        inputs = [sheet.input(_WHOLE) for _ in range(1 if self.same else self.count)]
        sheet.output(sheet.op("ADD_N", inputs * (self.count if self.same else 1)))


@dataclass(frozen=True, kw_only=True)
class Prelu(Case):
    """PRELU with a constant slope, or one that is computed."""

    shape: Shape = (2, 3, 2, 6)
    alpha: Shape
    constant: bool = True
    half_weights: bool = False

    def write(self, sheet: Sheet) -> None:
        """One or two inputs, one operation, one output."""
        source = sheet.input(self.shape)
        if self.constant:
            alpha = sheet.weights(self.alpha, half=self.half_weights)
        else:
            alpha = sheet.input(self.alpha)
        sheet.output(sheet.op("PRELU", [source, alpha]))


# Rounding to half must not carry an element over a whole number: CEIL and FLOOR get STEPS.
UNARY_VALUES = {
    "ABS": _SIGNED,
    "CEIL": STEPS,
    "COS": _SIGNED,
    "ELU": _SIGNED,
    "EXP": _SIGNED,
    "FLOOR": STEPS,
    "GELU": _SIGNED,
    "HARD_SWISH": _SIGNED,
    "LEAKY_RELU": _SIGNED,
    "LOG": _POSITIVE,
    "LOGISTIC": _SIGNED,
    "NEG": _SIGNED,
    "RELU": _SIGNED,
    "RELU6": Range(-4.0, 9.0),
    "RELU_0_TO_1": _SIGNED,
    "RELU_N1_TO_1": _SIGNED,
    "ROUND": Range(-4.0, 4.0, grid=1 / 4),
    "RSQRT": _POSITIVE,
    "SIGN": STEPS,
    "SIN": _SIGNED,
    "SQRT": _POSITIVE,
    "SQUARE": _SIGNED,
    "TANH": _SIGNED,
}
_UNARY_OPTIONS: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    "GELU": {"approximate": (False, True)},
    "LEAKY_RELU": {"alpha": (0.25, -0.5, 1.75, 0.0)},
}
"""What the options of these may be."""


def unary_options(op: str) -> list[tuple[tuple[str, Any], ...]]:
    """Return the options to try of an operation with one input; of most there are none."""
    known = _UNARY_OPTIONS.get(op, {})
    return [tuple(zip(known, chosen, strict=True)) for chosen in product(*known.values())]


_BINARY = ("ADD", "SUB", "MUL", "DIV", "MAXIMUM", "MINIMUM", "SQUARED_DIFFERENCE")

_STABLEHLO = tuple(f"STABLEHLO_{op}" for op in ("ADD", "MULTIPLY", "MAXIMUM", "MINIMUM"))

_COMPARED = ("EQUAL", "NOT_EQUAL", "LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL")
CASES: tuple[Case, ...] = (
    *(Halves(op=op) for op in ("ADD", "MUL", "MAXIMUM", "MINIMUM", *_COMPARED)),
    *(
        Halves(op=op, shapes=((2, 3, 2, 8), (8,)), constant=constant)
        for op in ("ADD", "MUL")
        for constant in (None, 1)
    ),
    Halves(op="EQUAL", shapes=((3, 1), (4,)), values=Range(-2.0, 2.0, dtype="float16")),
    *(Halves(op=op, values=HalfRange(-6e4, 6e4)) for op in ("ADD", "MUL")),
    *(Halves(op=op, shapes=((7,),)) for op in ("NEG", "FLOOR", "ROUND")),
    *(
        HalfFunction(op=op, options=options)
        for op in ("COS", "GELU", "LOGISTIC", "SIN", "TANH")
        for options in unary_options(op)
    ),
    HalfFunction(op="ATAN2", count=2),
    *(
        HalfFunction(op="SOFTMAX", shape=shape, options=(("beta", beta),))
        for shape, beta in (((3, 5), 1.0), ((2, 3, 8), 0.5), ((1, 1001), 2.0), ((2, 1), 1.0))
    ),
    *(Halves(op=op) for op in _STABLEHLO),
    Halves(op="STABLEHLO_ADD", shapes=((3, 9),) * 2, constant=1),
    *(
        Unary(op=op, values=values, options=options)
        for op, values in UNARY_VALUES.items()
        for options in unary_options(op)
    ),
    *(Unary(op="GELU", values=Range(-9.0, 9.0), options=each) for each in unary_options("GELU")),
    *(Unary(op="NEG", shape=(1, 3, 2, c)) for c in range(1, 10)),
    # Of a function that is not zero at zero, so that padding channels show
    *(Unary(op="COS", shape=shape) for shape in ((), (5,), (3, 7), (2, 3, 9), (3, 1, 5, 1))),
    # exp of these overflows float32, or is smaller than any float16
    *(
        Unary(op=op, values=Range(-2000.0, 2000.0))
        for op in ("LOGISTIC", "TANH", "HARD_SWISH", "ABS", "RELU6")
    ),
    Unary(op="EXP", values=Range(-90.0, 88.0)),
    Unary(op="ELU", values=Range(-1000.0, 1.0)),
    Unary(op="ELU", values=Range(-1e-3, 1e-3)),
    Unary(op="SQUARE", values=Range(-250.0, 250.0)),
    Unary(op="SQRT", values=Range(0.0, 0.0)),
    # Operands of every kind, for every operation
    *(Binary(op=op) for op in _BINARY),
    *(Binary(op=op, second=None) for op in (*_BINARY, "STABLEHLO_MULTIPLY")),
    *(Binary(op=op) for op in _STABLEHLO),
    *(Binary(op=op, constant=1) for op in _STABLEHLO),
    *(Binary(op="STABLEHLO_MAXIMUM", first=(3, 2, c), second=(3, 2, c)) for c in range(1, 10)),
    *(Binary(op=op, second=(6,), constant=1) for op in _BINARY),
    *(Binary(op=op, first=(), constant=0) for op in _BINARY),
    *(Binary(op=op, second=(2, 1, 1, 6)) for op in _BINARY),
    *(Binary(op=op, first=(3, 1, 1)) for op in _BINARY),
    *(
        Binary(op=op, second=(6,), constant=1, activation=activation)
        for op in ("ADD", "SUB", "MUL", "DIV")
        for activation in ACTIVATIONS[1:]
    ),
    # Constants of every rank, smaller and larger than the computed operand
    *(
        Binary(op="SUB", second=shape, constant=1)
        for shape in ((), (1,), (1, 1), (2, 6), (2, 1), (3, 2, 6), (3, 1, 1), _WHOLE, (2, 1, 1, 1))
    ),
    *(Binary(op="SUB", first=shape, constant=0) for shape in ((1,), (2, 6), _WHOLE)),
    *(Binary(op="SUB", first=_WHOLE, second=shape, constant=0) for shape in ((6,), (1, 3, 1, 1))),
    Binary(op="SUB", first=(1, 3, 1, 6), second=(2, 1, 2, 1), constant=0),
    Binary(op="ADD", second=(3, 2, 6), constant=1, half_weights=True),
    Binary(op="MUL", second=(), constant=1, half_weights=True),
    # Computed operands that are broadcast: one, the other, both
    *(
        Binary(op="SUB", first=first, second=second)
        for first, second in (
            (_WHOLE, (6,)),
            ((1, 1, 2, 1), _WHOLE),
            ((2, 3, 1, 1), (1, 1, 2, 6)),
            ((2, 1, 2, 6), (1, 3, 1, 1)),
            ((3, 2, 1), (2, 1, 2, 5)),
            ((2, 3, 2, 1), (2, 3, 2, 9)),
            ((1, 1, 1, 1), (2, 3, 2, 9)),
        )
    ),
    # Ranks and channels
    *(
        Binary(op="SUB", first=shape, second=shape)
        for shape in ((), (5,), (3, 7), (2, 3, 9), (1, 3, 2, 1), (1, 3, 2, 3), (1, 3, 2, 8))
    ),
    Binary(op="SUB", first=(), second=(3, 5)),
    # More dimensions than kernels index: some are merged, or else repeated
    Unary(op="COS", shape=(1, 2, 1, 3, 2, 2, 1, 5)),
    *(
        Binary(op="SUB", first=first, second=second, constant=constant)
        for constant in (None, 1)
        for first, second in (
            ((2, 3, 2, 2, 3, 5), (2, 1, 1, 2, 3, 5)),
            ((2, 3, 2, 2, 3, 5), (1, 3, 1, 2, 1, 5)),
            ((2, 1, 1, 2, 3, 1), (1, 3, 2, 2, 3, 5)),
            ((2, 3, 2, 2, 3, 5), (2, 3, 2, 1, 1, 1)),
        )
    ),
    Binary(op="SUB", first=(2, 2, 3, 2, 5), second=(2, 1, 1, 2, 1)),
    Binary(op="SUB", first=(2, 1, 3, 2, 1, 2, 3, 4), second=(2, 1, 3, 2, 1, 2, 3, 4)),
    Binary(op="SUB", first=(3, 1), second=(4,)),
    Binary(op="SUB", first=(), second=(), constant=1),
    # Five dimensions
    *(
        Binary(op="SUB", first=first, second=second)
        for first, second in (
            ((2, 3, 2, 3, 5), (2, 3, 2, 3, 5)),
            ((2, 3, 2, 3, 5), (5,)),
            ((2, 3, 2, 3, 5), (2, 1, 2, 1, 5)),
            ((1, 3, 2, 1, 8), (2, 1, 2, 3, 1)),
            ((3, 2, 3, 5), (2, 1, 2, 1, 5)),
        )
    ),
    Binary(op="ADD", first=(2, 3, 2, 3, 5), second=(3, 1, 1, 1), constant=1),
    Unary(op="COS", shape=(2, 3, 2, 3, 5)),
    # Not differentiable, or not even continuous: elements that float16 holds
    *(
        Exact(op=op, second=second, constant=constant)
        for op in ("FLOOR_DIV", "FLOOR_MOD")
        for second, constant in ((_WHOLE, None), ((6,), 1), ((2, 1, 2, 6), None))
    ),
    *(
        Exact(op="POW", second=second, constant=constant, first_values=_POSITIVE)
        for second, constant in ((_WHOLE, None), ((6,), 1), ((2, 1, 2, 6), None))
    ),
    # The CPU broadcasts no operands of this one.
    *(Exact(op="ATAN2", second=_WHOLE, constant=constant) for constant in (None, 1)),
    Exact(op="POW", second=(), constant=1, second_values=Range(2.0, 2.0)),
    *(Sum(count=count) for count in (2, 3, 8, 9, 17)),
    Sum(count=3, same=True),
    # PRELU
    *(Prelu(alpha=alpha) for alpha in ((6,), (1, 1, 6), (3, 2, 6), (1, 1, 1), (3, 2, 1), (1,))),
    Prelu(alpha=(6,), half_weights=True),
    Prelu(shape=(1, 3, 2, 3), alpha=(1, 1, 3)),
    Prelu(shape=(3, 5), alpha=(5,)),
    Prelu(alpha=(1, 1, 6), constant=False),
    Prelu(alpha=_WHOLE, constant=False),
)
