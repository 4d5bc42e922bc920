"""Cases of integers: exact arithmetic, moves, indices, casts between all types."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from cases.base import EXACT, FEW, STEPS, TRUTH, Array, Case, Range, Shape, Sheet
from cases.logic import COMPARISONS, Cast, LargeCast
from litegpu.graph import Quantization
from litegpu.zoo.writer import TensorRef

_WHOLE = (2, 3, 2, 5)
_SCALE = Quantization((0.05,), (3,))


@dataclass(frozen=True)
class Edges(Range):
    """Integers of a type: its ends, what float32 does not hold, and small ones."""

    low: float = 0.0
    high: float = 0.0
    dtype: str = "int32"
    least: int | None = None
    """The smallest one, if not that of the type."""

    def draw(self, shape: Shape, random: np.random.Generator) -> Array:
        """Return seeded elements, of which most are alike."""
        ends = np.iinfo(self.dtype)
        low = int(ends.min) if self.least is None else self.least
        odd = [
            2**24 + 1,
            -(2**24) - 1,
            2**31 - 1,
            -(2**31),
            2**31,
            2**32 + 5,
            -(2**40) - 3,
            1 << 53,
        ]
        known = [low, ends.max, *(n for n in odd if low <= n <= ends.max)]
        known += [n for n in range(-3, 4) if n >= low]
        drawn = random.integers(low, ends.max, 8, self.dtype, endpoint=True)
        return random.choice(np.concatenate([np.array(known, self.dtype), drawn]), shape)


@dataclass(frozen=True, kw_only=True)
class Arithmetic(Case):
    """An operation on one or two values of integers; `constant` is the number of a constant."""

    tolerance: ClassVar[float] = EXACT

    op: str
    dtype: str = "int32"
    shapes: tuple[Shape, ...] = (_WHOLE, _WHOLE)
    constant: int | None = None
    activation: str = ""
    positive: bool = False
    """Whether the last operand is a divisor: positive, for others stop the CPU."""
    scaled: bool = False
    """Whether all have a scale, which the CPU ignores."""

    def write(self, sheet: Sheet) -> None:
        """One or two inputs, one output."""
        refs = []
        for i, shape in enumerate(self.shapes):
            divides = self.positive and i == len(self.shapes) - 1
            values = Edges(dtype=self.dtype, least=1 if divides else None)
            refs.append(
                sheet.weights(shape, values)
                if i == self.constant
                else sheet.input(shape, values, _SCALE if self.scaled else None)
            )
        options = {"fused_activation_function": self.activation} if self.activation else {}
        dtype = "bool" if self.op in COMPARISONS else self.dtype
        scale = _SCALE if self.scaled else None
        sheet.output(sheet.op(self.op, refs, options, dtype=dtype, quantization=scale))


@dataclass(frozen=True, kw_only=True)
class Shifted(Case):
    """Integers shifted to the left: what does not fit is lost."""

    tolerance: ClassVar[float] = EXACT

    dtype: str = "int32"
    shape: Shape = _WHOLE
    scaled: bool = False

    def write(self, sheet: Sheet) -> None:
        """Integers and numbers of bits, one output."""
        scale = _SCALE if self.scaled else None
        x = sheet.input(self.shape, Edges(dtype=self.dtype), scale)
        bits = sheet.input(self.shape, Range(0.0, 32.0, dtype=self.dtype), scale)
        found = sheet.op("STABLEHLO_SHIFT_LEFT", [x, bits], dtype=self.dtype, quantization=scale)
        sheet.output(found)


@dataclass(frozen=True, kw_only=True)
class Moved(Case):
    """An operation that brings integers elsewhere, or numbers that no kernel computes with."""

    tolerance: ClassVar[float] = EXACT

    op: str
    dtype: str = "int32"
    shape: Shape = _WHOLE

    _OPERANDS: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "TRANSPOSE": ((0, 3, 1, 2),),
        "RESHAPE": ((6, -1),),
        "PAD": (((0, 0), (1, 2), (0, 1), (3, 1)),),
        "MIRROR_PAD": (((0, 0), (1, 1), (0, 1), (2, 1)),),
        "STRIDED_SLICE": ((0, 1, 0, 1), (2, 3, 2, 4), (1, 1, 1, 2)),
        "TILE": ((1, 2, 1, 2),),
        "REVERSE_V2": ((2, 3),),
        "EXPAND_DIMS": (1,),
    }
    _OPTIONS: ClassVar = {"MIRROR_PAD": {"mode": "REFLECT"}}

    def write(self, sheet: Sheet) -> None:
        """One input (twice where values are joined), one output."""
        whole = np.dtype(self.dtype).kind in "iu"
        values = Edges(dtype=self.dtype) if whole else Range(-6e4, 6e4, dtype=self.dtype)
        x = sheet.input(self.shape, values)
        if self.op == "CONCATENATION":
            fixed = sheet.weights(self.shape, values)
            result = sheet.op(self.op, [x, fixed, x], {"axis": 3}, dtype=self.dtype)
        else:
            extra = [sheet.constant(each, "int32") for each in self._OPERANDS[self.op]]
            result = sheet.op(self.op, [x, *extra], self._OPTIONS.get(self.op), dtype=self.dtype)
        sheet.output(result)


@dataclass(frozen=True, kw_only=True)
class Chosen(Case):
    """Integers chosen by a comparison, as converters write what makes indices positive."""

    tolerance: ClassVar[float] = EXACT

    dtype: str = "int32"
    shape: Shape = _WHOLE
    op: str = "SELECT_V2"
    added: int = 1000

    def write(self, sheet: Sheet) -> None:
        """One input: what is below 0 gets a number added."""
        x = sheet.input(self.shape, Edges(dtype=self.dtype))
        zero, size = (sheet.constant(number, self.dtype) for number in (0, self.added))
        below = sheet.op("LESS", [x, zero], dtype="bool")
        moved = sheet.op("ADD", [x, size], dtype=self.dtype)
        sheet.output(sheet.op(self.op, [below, moved, x], dtype=self.dtype))


@dataclass(frozen=True, kw_only=True)
class Table(Case):
    """GATHER of integers by computed indices."""

    tolerance: ClassVar[float] = EXACT

    dtype: str = "int64"
    indices: str = "int32"
    axis: int = 1
    fixed: bool = False

    def write(self, sheet: Sheet) -> None:
        """A value (a constant if `fixed`) and indices, one output."""
        values, positions = Edges(dtype=self.dtype), Range(0.0, 3.0, dtype=self.indices)
        table = sheet.weights(_WHOLE, values) if self.fixed else sheet.input(_WHOLE, values)
        found = sheet.op(
            "GATHER", [table, sheet.input((4,), positions)], {"axis": self.axis}, dtype=self.dtype
        )
        sheet.output(found)


@dataclass(frozen=True, kw_only=True)
class AlongAxis(Case):
    """Sums, extremes and running sums of integers along axes."""

    tolerance: ClassVar[float] = EXACT

    op: str
    dtype: str = "int32"
    axes: tuple[int, ...] = (1,)
    options: tuple[tuple[str, bool], ...] = ()

    def write(self, sheet: Sheet) -> None:
        """One input, one output."""
        axis = self.axes[0] if self.op == "CUMSUM" else self.axes
        operands = [sheet.input(_WHOLE, Edges(dtype=self.dtype)), sheet.constant(axis, "int32")]
        sheet.output(sheet.op(self.op, operands, dict(self.options), dtype=self.dtype))


@dataclass(frozen=True, kw_only=True)
class Filled(Case):
    """A computed number at all places of a constant shape."""

    tolerance: ClassVar[float] = EXACT

    dtype: str = "int32"
    shape: Shape = (2, 3, 5)

    def write(self, sheet: Sheet) -> None:
        """One number, one output."""
        number = sheet.input((), Edges(dtype=self.dtype) if self.dtype != "float32" else STEPS)
        shape = sheet.constant(self.shape, "int32")
        sheet.output(sheet.op("FILL", [shape, number], dtype=self.dtype))


@dataclass(frozen=True, kw_only=True)
class Counted(Case):
    """Integers from a computed start: the limit is the same number plus a constant."""

    tolerance: ClassVar[float] = EXACT

    dtype: str = "int32"
    begin: int = 0
    end: int = 3
    delta: int = 1

    def write(self, sheet: Sheet) -> None:
        """One number, its sums, one output."""
        number = sheet.input((), Range(-9.0, 9.0, dtype=self.dtype))
        start, limit = (self._sum(sheet, number, each) for each in (self.begin, self.end))
        delta = sheet.constant(self.delta, self.dtype)
        version = 2 if self.dtype == "int64" else 1
        (found,) = sheet.multi("RANGE", [start, limit, delta], 1, None, version, dtype=self.dtype)
        sheet.output(found)

    def _sum(self, sheet: Sheet, number: TensorRef, more: int) -> TensorRef:
        """Return the number plus another one: by ADD in either order, by SUB, or as it is."""
        if more == 0:
            return number
        constant, options = sheet.constant(abs(more), self.dtype), {"pot_scale_int16": False}
        if more < 0:
            return sheet.op("SUB", [number, constant], options, dtype=self.dtype)
        pair = [number, constant] if more % 2 else [constant, number]
        return sheet.op("ADD", pair, options, dtype=self.dtype)


@dataclass(frozen=True, kw_only=True)
class Power(Case):
    """Powers of integers, some of which 32 bits do not hold; the CPU refuses negative exponents."""

    tolerance: ClassVar[float] = EXACT

    bases: tuple[float, float] = (-12.0, 13.0)
    exponents: tuple[float, float] = (0.0, 12.0)
    second: Shape = _WHOLE
    constant: int | None = None
    edges: bool = False
    """Whether bases are the ends of the type, too."""

    def write(self, sheet: Sheet) -> None:
        """Two values, one output."""
        bases = Range(*self.bases, dtype="int32")
        values = (
            Edges(dtype="int32") if self.edges else bases,
            Range(*self.exponents, dtype="int32"),
        )
        operands = [
            (sheet.weights if i == self.constant else sheet.input)(shape, drawn)
            for i, (shape, drawn) in enumerate(zip((_WHOLE, self.second), values, strict=True))
        ]
        sheet.output(sheet.op("POW", operands, dtype="int32"))


_BOTH = ("int32", "int64")
_SMALL = ("int8", "uint8", "int16", "uint16")
_ARITHMETIC = ("ADD", "SUB", "MUL", "MINIMUM", "MAXIMUM")
_BITS = ("BITWISE_XOR", "RIGHT_SHIFT")
_STABLEHLO = ("ADD", "MULTIPLY", "MAXIMUM", "MINIMUM", "AND")
_FRACTIONS = Range(-300.0, 300.0, grid=1 / 8)
_HALVES = Range(-300.0, 300.0, dtype="float16")


def _casts() -> Iterator[Case]:
    sources = [Edges(dtype=dtype) for dtype in (*_BOTH, *_SMALL)]
    for source in (*sources, _FRACTIONS, _HALVES, TRUTH):
        for target in (*_BOTH, *_SMALL, "bool"):
            if target != source.dtype:
                yield Cast(source=source, target=target)
        if source.dtype != "float32":
            yield LargeCast(source=source, target="float32")
    for dtype in (*_SMALL, "int64"):
        yield Cast(source=Edges(dtype=dtype), target=dtype, shape=(1, 3, 2, 8))
        yield from (
            Cast(source=Edges(dtype="int32"), target=dtype, shape=(1, 3, 2, c)) for c in (1, 3, 4)
        )
        yield from (
            Cast(source=Edges(dtype=dtype), target="int32", shape=(1, 3, 2, c)) for c in (1, 4, 8)
        )
    yield Cast(source=_FRACTIONS, target="int8", then="int32")
    yield Cast(source=Edges(dtype="int64"), target="int16", then="int64")
    yield Cast(source=FEW, target="uint8", then="int64", shape=(3, 7))


CASES: tuple[Case, ...] = (
    *(
        AlongAxis(op=op, dtype=dtype, axes=axes)
        for op in ("SUM", "REDUCE_MAX", "REDUCE_MIN", "MEAN", "REDUCE_PROD")
        for dtype in _BOTH
        for axes in ((1,), (3,), (0, 1, 2, 3))
    ),
    *(
        AlongAxis(op="CUMSUM", dtype=dtype, axes=(axis,), options=(("exclusive", axis == 3),))
        for dtype in _BOTH
        for axis in (2, 3)
    ),
    AlongAxis(op="CUMSUM", axes=(3,), options=(("reverse", True),)),
    *(Filled(dtype=dtype) for dtype in ("float32", *_BOTH)),
    *(Counted(dtype=dtype, end=end) for dtype in _BOTH for end in (1, 3, 16)),
    Counted(begin=-4, end=9, delta=2),
    Counted(begin=6, end=-5, delta=-3, dtype="int64"),
    Counted(begin=3, end=1000),
    Power(),
    Power(bases=(-2.0, 3.0), exponents=(0.0, 40.0)),
    Power(bases=(-1.0, 2.0), exponents=(0.0, 100000.0), second=(5,), constant=1),
    Power(edges=True, exponents=(0.0, 4.0)),
    Power(constant=0),
    Power(bases=(-50000.0, 50000.0), exponents=(2.0, 3.0), second=()),
    *(Arithmetic(op=op, dtype=dtype) for op in (*_ARITHMETIC, *COMPARISONS) for dtype in _BOTH),
    *(
        Arithmetic(op=op, dtype=dtype, shapes=shapes, constant=constant)
        for op in ("ADD", "MUL", "LESS_EQUAL")
        for dtype in _BOTH
        for shapes, constant in (
            ((_WHOLE, (5,)), 1),
            ((_WHOLE, ()), 1),
            (((), _WHOLE), 0),
            (((3, 1), (4,)), None),
            (((2, 1, 2, 5), (1, 3, 1, 1)), None),
            (((2, 3, 2, 3, 5), (2, 1, 2, 1, 5)), None),
        )
    ),
    *(Arithmetic(op=op, dtype=d) for op in _BITS for d in ("int8", "int16", "int32")),
    *(Arithmetic(op=op, shapes=(_WHOLE, (5,)), constant=1) for op in _BITS),
    *(
        Arithmetic(op=f"STABLEHLO_{op}", dtype=dtype)
        for op in _STABLEHLO
        for dtype in (*_BOTH, *_SMALL)
    ),
    Arithmetic(op="STABLEHLO_MULTIPLY", dtype="int8", shapes=((1, 3, 2, 9),) * 2, constant=0),
    *(
        Arithmetic(op=f"STABLEHLO_{op}", dtype=dtype, scaled=True)
        for op in _STABLEHLO
        for dtype in ("int8", "uint8", "int16")
    ),
    *(Shifted(dtype=dtype, scaled=True) for dtype in ("int8", "int16")),
    *(Shifted(dtype=dtype) for dtype in ("int8", "int16", "int32")),
    *(
        Arithmetic(op="SUB", dtype=d, shapes=((1, 3, 2, c),) * 2)
        for d in _BOTH
        for c in range(1, 10)
    ),
    *(
        Arithmetic(op=op, dtype=dtype, activation=activation)
        for op in ("ADD", "SUB", "MUL")
        for dtype in _BOTH
        for activation in ("RELU", "RELU6", "RELU_N1_TO_1")
    ),
    *(Arithmetic(op=op, dtype="int16") for op in ("ADD", "MAXIMUM", "MINIMUM", *COMPARISONS)),
    *(Arithmetic(op=op, dtype=d) for op in ("MAXIMUM", "MINIMUM") for d in ("int8", "uint8")),
    *(AlongAxis(op="REDUCE_PROD", dtype=dtype, axes=(1, 3)) for dtype in _SMALL[:3]),
    *(
        AlongAxis(op="MEAN", dtype=dtype, axes=axes, options=(("keep_dims", True),))
        for dtype in _BOTH
        for axes in ((1, 2), (-1,))
    ),
    *(Arithmetic(op="BITWISE_XOR", dtype=dtype) for dtype in ("uint8", "uint16", "uint32")),
    *(Arithmetic(op="RIGHT_SHIFT", dtype=dtype) for dtype in ("uint8", "uint16")),
    *(Arithmetic(op="MUL", dtype=dtype) for dtype in ("int16", "uint32")),
    Arithmetic(op="MUL", dtype="int16", activation="RELU6"),
    Arithmetic(op="MUL", dtype="int16", shapes=(_WHOLE, (5,)), constant=1),
    *(Arithmetic(op="NEG", dtype=d, shapes=(_WHOLE,)) for d in ("int8", "int16")),
    Arithmetic(op="ABS", dtype="int16", shapes=(_WHOLE,)),
    Arithmetic(op="ADD", dtype="int16", activation="RELU6"),
    Arithmetic(op="ADD_N", shapes=(_WHOLE,) * 3),
    Arithmetic(op="ADD_N", shapes=((7,),) * 9, constant=4),
    *(
        Arithmetic(op=op, dtype=dtype, shapes=shapes, positive=True)
        for op in ("FLOOR_DIV", "FLOOR_MOD")
        for dtype in ("int8", "int16")
        for shapes in ((_WHOLE, _WHOLE), (_WHOLE, (5,)))
    ),
    *(Arithmetic(op=op, positive=True) for op in ("DIV", "FLOOR_DIV", "FLOOR_MOD")),
    Arithmetic(op="FLOOR_MOD", dtype="int64", positive=True),
    Arithmetic(op="SQUARED_DIFFERENCE"),
    *(Arithmetic(op=op, shapes=(_WHOLE,)) for op in ("ABS", "NEG", "SIGN")),
    Arithmetic(op="NEG", dtype="int64", shapes=(_WHOLE,)),
    *(Moved(op=op, dtype=dtype) for op in (*Moved._OPERANDS, "CONCATENATION") for dtype in _BOTH),
    *(Moved(op="CONCATENATION", dtype=dtype, shape=(1, 3, 2, 8)) for dtype in _BOTH),
    *(
        Moved(op=op, dtype=dtype)
        for op in ("TRANSPOSE", "RESHAPE", "MIRROR_PAD", "STRIDED_SLICE", "TILE", "EXPAND_DIMS")
        for dtype in ("uint16", "uint32", "uint64", "float64", "float16")
    ),
    Moved(op="CONCATENATION", dtype="uint32"),
    *(Chosen(dtype=dtype) for dtype in _BOTH),
    Chosen(op="SELECT", shape=(7,)),
    *(Table(dtype=d, indices=i, fixed=f) for d in _BOTH for i in _BOTH for f in (False, True)),
    Table(axis=3),
    *_casts(),
)
