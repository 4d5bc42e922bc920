"""Cases of bools and integers: comparisons, selections, casts, indices."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from cases.base import CLOSE, EXACT, FEW, STEPS, TRUTH, Case, Range, Shape, Sheet
from litegpu.zoo.writer import TensorRef

_WHOLE = (2, 3, 2, 5)
COMPARISONS = ("EQUAL", "NOT_EQUAL", "LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL")


@dataclass(frozen=True, kw_only=True)
class Compare(Case):
    """A comparison, or an operation on truth values; `constant` is the number of a constant."""

    tolerance: ClassVar[float] = EXACT

    op: str
    shapes: tuple[Shape, ...] = (_WHOLE, _WHOLE)
    constant: int | None = None
    values: Range = FEW

    def write(self, sheet: Sheet) -> None:
        """One or two inputs, one truth value for each element."""
        inputs = [
            sheet.weights(shape, self.values)
            if i == self.constant
            else sheet.input(shape, self.values)
            for i, shape in enumerate(self.shapes)
        ]
        sheet.output(sheet.op(self.op, inputs, dtype="bool"))


@dataclass(frozen=True, kw_only=True)
class Select(Case):
    """A choice by truth values, which are an input or made by a comparison."""

    tolerance: ClassVar[float] = EXACT

    op: str = "SELECT_V2"
    condition: Shape = _WHOLE
    first: Shape = _WHOLE
    second: Shape = _WHOLE
    constant: tuple[int, ...] = ()
    compared: bool = False
    values: Range = STEPS

    def write(self, sheet: Sheet) -> None:
        """Three operands, one output."""
        if self.compared:
            sides = [sheet.input(self.condition, FEW) for _ in range(2)]
            condition = sheet.op("LESS", sides, dtype="bool")
        elif 0 in self.constant:
            condition = sheet.weights(self.condition, TRUTH)
        else:
            condition = sheet.input(self.condition, TRUTH)
        rest = [
            sheet.weights(shape, self.values)
            if i in self.constant
            else sheet.input(shape, self.values)
            for i, shape in enumerate((self.first, self.second), 1)
        ]
        version = 3 if self.op == "SELECT" and len(self.first) == 5 else 1
        sheet.output(
            sheet.op(self.op, [condition, *rest], version=version, dtype=self.values.dtype)
        )


@dataclass(frozen=True, kw_only=True)
class Cast(Case):
    """One type as another; `then` is a further cast, or an op that moves elements in between."""

    tolerance: ClassVar[float] = EXACT

    source: Range
    target: str
    shape: Shape = _WHOLE
    moved: str = ""
    then: str = ""

    def write(self, sheet: Sheet) -> None:
        """One input, one or two casts, one output."""
        x = self._cast(sheet, sheet.input(self.shape, self.source), self.source.dtype, self.target)
        target = self.target
        if self.moved == "TRANSPOSE":
            order = sheet.constant((0, 3, 1, 2), "int32")
            x = sheet.op("TRANSPOSE", [x, order], dtype=target)
        elif self.moved == "PACK":
            fixed = sheet.constant(np.arange(math.prod(self.shape)).reshape(self.shape) % 2, target)
            x = sheet.op("PACK", [fixed, x], {"axis": 1, "values_count": 2}, dtype=target)
        elif self.moved == "CONCATENATION":
            x = sheet.op("CONCATENATION", [x, x], {"axis": 3}, dtype=target)
        elif self.moved == "RESHAPE":
            shape = sheet.constant((6, -1), "int32")
            x = sheet.op("RESHAPE", [x, shape], dtype=target)
        elif self.moved == "STRIDED_SLICE":
            bounds = [sheet.constant(b, "int32") for b in ((0, 1), (2, 3), (1, 1))]
            x = sheet.op("STRIDED_SLICE", [x, *bounds], dtype=target)
        if self.then:
            x = self._cast(sheet, x, target, self.then)
        sheet.output(x)

    def _cast(self, sheet: Sheet, x: TensorRef, source: str, target: str) -> TensorRef:
        options = {"in_data_type": source.upper(), "out_data_type": target.upper()}
        return sheet.op("CAST", [x], options, dtype=target)


@dataclass(frozen=True, kw_only=True)
class LargeCast(Cast):
    """A cast of integers that float16 does not hold."""

    tolerance: ClassVar[float] = CLOSE


@dataclass(frozen=True, kw_only=True)
class Gather(Case):
    """GATHER by computed indices."""

    tolerance: ClassVar[float] = EXACT

    shape: Shape = (2, 4, 3, 5)
    indices: Shape = (3,)
    axis: int = 0
    batch: int = 0
    dtype: str = "int32"
    table: bool = False

    def write(self, sheet: Sheet) -> None:
        """A value (a constant with `table`) and indices, one output."""
        positions = Range(0.0, self.shape[self.axis], dtype=self.dtype)
        value = sheet.weights(self.shape, STEPS) if self.table else sheet.input(self.shape, STEPS)
        options = {"axis": self.axis, "batch_dims": self.batch}
        sheet.output(sheet.op("GATHER", [value, sheet.input(self.indices, positions)], options))


@dataclass(frozen=True, kw_only=True)
class OneHot(Case):
    """ONE_HOT of indices, some of which are out of range."""

    tolerance: ClassVar[float] = EXACT

    indices: Shape = (7,)
    depth: int = 5
    axis: int = -1
    on: float = 1.0
    off: float = 0.0
    dtype: str = "int32"
    result: str = "float32"

    def write(self, sheet: Sheet) -> None:
        """Indices, one output."""
        indices = sheet.input(self.indices, Range(-1.0, self.depth + 1, dtype=self.dtype))
        depth = sheet.constant(self.depth, "int32")
        levels = [sheet.constant(level, self.result) for level in (self.on, self.off)]
        options = {"axis": self.axis}
        sheet.output(sheet.op("ONE_HOT", [indices, depth, *levels], options, dtype=self.result))


@dataclass(frozen=True, kw_only=True)
class Arg(Case):
    """ARG_MAX or ARG_MIN, with many equal elements."""

    op: str = "ARG_MAX"
    shape: Shape = _WHOLE
    axis: int = 3
    dtype: str = "int32"
    values: Range = FEW

    def write(self, sheet: Sheet) -> None:
        """One input, one index for each line."""
        inputs = [sheet.input(self.shape, self.values), sheet.constant(self.axis, "int32")]
        options: dict[str, Any] = {"output_type": self.dtype.upper()}
        sheet.output(sheet.op(self.op, inputs, options, dtype=self.dtype))


@dataclass(frozen=True, kw_only=True)
class ReduceTruth(Case):
    """REDUCE_ANY or REDUCE_ALL."""

    op: str
    shape: Shape = _WHOLE
    axes: tuple[int, ...] = (3,)
    keep: bool = False

    def write(self, sheet: Sheet) -> None:
        """One input, one output."""
        inputs = [sheet.input(self.shape, TRUTH), sheet.constant(self.axes, "int32")]
        sheet.output(sheet.op(self.op, inputs, {"keep_dims": self.keep}, dtype="bool"))


_WIDE = Range(-1e6, 1e6, dtype="int32")
_LONG = Range(-1e6, 1e6, dtype="int64")
_HUGE = Range(-2e9, 2e9, dtype="int32")
_CLOSE = Range(2e9 - 9, 2e9, dtype="int32")
"""Integers that are the same as float32."""
_FRACTIONS = Range(-9.0, 9.0, grid=1 / 8)

CASES: tuple[Case, ...] = (
    *(Compare(op=op) for op in COMPARISONS),
    *(Compare(op=op, shapes=(_WHOLE, (5,)), constant=1) for op in COMPARISONS),
    *(Compare(op=op, shapes=((), _WHOLE), constant=0) for op in COMPARISONS),
    *(Compare(op="LESS", shapes=((1, 3, 2, c),) * 2) for c in range(1, 10)),
    *(
        Compare(op="GREATER", shapes=shapes)
        for shapes in (
            ((), ()),
            ((7,), (7,)),
            ((3, 1), (4,)),
            ((2, 1, 2, 5), (1, 3, 1, 1)),
            ((2, 3, 2, 3, 5), (2, 1, 2, 1, 5)),
        )
    ),
    *(
        Compare(op=op, shapes=shapes, values=TRUTH)
        for op in ("LOGICAL_AND", "LOGICAL_OR")
        for shapes in ((_WHOLE, _WHOLE), (_WHOLE, (5,)), ((3, 1, 1), _WHOLE), ((4,), (4,)))
    ),
    Compare(op="LOGICAL_AND", values=TRUTH, constant=0),
    *(
        Compare(op=f"STABLEHLO_{op}", values=TRUTH)
        for op in ("ADD", "AND", "MAXIMUM", "MINIMUM", "MULTIPLY")
    ),
    *(Compare(op="LOGICAL_NOT", shapes=(s,), values=TRUTH) for s in (_WHOLE, (7,), (1, 3, 2, 8))),
    Compare(op="EQUAL", values=TRUTH),
    # Choices
    Select(),
    Select(op="SELECT"),
    Select(op="SELECT", condition=(2,)),
    Select(op="SELECT", condition=(), first=(4,), second=(4,)),
    Select(compared=True),
    Select(compared=True, op="SELECT", constant=(2,)),
    *(
        Select(op=op, condition=s, first=s, second=s)
        for op in ("SELECT", "SELECT_V2")
        for s in ((1, 1), (), (2, 3, 2, 3, 5))
    ),
    Select(compared=True, condition=(1, 1, 1, 1), first=(1, 1, 1, 1), second=(1,)),
    Select(condition=(5,)),
    Select(condition=(3, 1, 1), first=(), constant=(1,)),
    Select(condition=(2, 1, 1, 5), first=(1,), second=(1, 3, 2, 1)),
    Select(constant=(1, 2), first=(2, 1), second=(5,)),
    Select(constant=(0,), condition=(5,)),
    Select(values=TRUTH),
    Select(condition=(2, 1, 2, 1, 5), first=(2, 3, 2, 3, 5), second=(1,)),
    Select(condition=(2, 1, 1, 2, 3, 5), first=(2, 3, 2, 2, 3, 5), second=(1,)),
    # Casts
    *(Cast(source=_FRACTIONS, target=target) for target in ("int32", "int64", "bool")),
    *(LargeCast(source=source, target="float32") for source in (_WIDE, _LONG, _HUGE)),
    *(Cast(source=source, target="float32") for source in (Range(-9, 9, dtype="int32"), TRUTH)),
    *(Cast(source=source, target="bool") for source in (Range(-2, 3, dtype="int32"), _LONG)),
    *(Cast(source=_FRACTIONS, target="int32", shape=(1, 3, 2, c)) for c in range(1, 10)),
    *(Cast(source=TRUTH, target="float32", shape=(1, 3, 2, c)) for c in (1, 3, 4, 8)),
    *(Cast(source=Range(-9e9, 9e9), target=target) for target in ("int32", "int64")),
    *(
        Cast(source=Range(-9e9, 9e9, dtype="int64"), target="uint32", then=then)
        for then in ("int32", "uint8", "int16", "bool")
    ),
    *(
        Cast(source=Range(0.0, 2.0**32, dtype="uint32"), target=target)
        for target in ("int32", "int8", "uint16", "uint32", "float32", "int64", "float16", "bool")
    ),
    *(
        Cast(source=source, target="uint32", then=then)
        for source in (Range(-9e9, 9e9), Range(-9.0, 99.0), Range(-9.0, 99.0, dtype="float16"))
        for then in ("", "float32", "int64")
    ),
    Cast(source=Range(0.0, 2.0**32, dtype="uint32"), target="float32", then="uint32"),
    Cast(source=Range(0.0, 2.0**32, dtype="uint32"), target="int64", moved="TRANSPOSE"),
    *(
        Cast(source=source, target="uint32")
        for source in (TRUTH, Range(-9, 9, dtype="int8"), Range(-9, 9, dtype="int32"))
    ),
    Cast(source=_FRACTIONS, target="int32", then="float32"),
    Cast(source=_FRACTIONS, target="int32", then="int64"),
    *(
        Cast(source=_FRACTIONS, target=target, moved=moved)
        for target in ("int32", "int64", "bool")
        for moved in ("TRANSPOSE", "CONCATENATION", "RESHAPE", "STRIDED_SLICE")
    ),
    *(Cast(source=_FRACTIONS, target=target, moved="PACK") for target in ("int32", "int64")),
    Cast(source=_FRACTIONS, target="bool", moved="RESHAPE", then="float32", shape=(2, 3, 2, 8)),
    # Indices
    *(Gather(axis=axis) for axis in range(4)),
    Gather(shape=(2, 4, 3, 8), axis=2, dtype="int64"),
    Gather(indices=(2, 3), axis=2, shape=(2, 4, 3)),
    Gather(indices=(2, 3), axis=1, batch=1),
    Gather(indices=(), axis=1),
    *(Gather(dtype="int16", shape=(7, c), table=table) for c, table in ((5, False), (8, True))),
    Gather(shape=(20, 8), indices=(2, 5), table=True),
    Gather(shape=(20, 7), indices=(5,), table=True),
    *(OneHot(axis=axis, indices=(2, 3)) for axis in (0, 1, 2, -1)),
    *(OneHot(depth=depth) for depth in (1, 4, 9)),
    OneHot(on=0.75, off=-2.0, dtype="int64"),
    OneHot(indices=(), depth=6),
    OneHot(indices=(2, 3, 2), depth=6),
    *(OneHot(indices=(2, 3, 2, 5), depth=3, axis=axis) for axis in (0, 1, 3, -1)),
    OneHot(indices=(4,), result="int32", on=7, off=-3),
    *(Arg(op=op, shape=(1, 3, 2, c)) for op in ("ARG_MAX", "ARG_MIN") for c in range(1, 10)),
    *(Arg(op=op, axis=axis) for op in ("ARG_MAX", "ARG_MIN") for axis in (0, 1, -2)),
    *(Arg(shape=shape, axis=-1) for shape in ((7,), (3, 8), (2, 3, 9), (2, 3, 2, 3, 5))),
    Arg(shape=(2, 3, 2, 3, 5), axis=1),
    Arg(shape=(2, 1001), axis=1),
    Arg(shape=(2, 1001), axis=1, values=STEPS, dtype="int64"),
    Arg(op="ARG_MIN", shape=(33, 31, 21), axis=-1),
    Arg(values=Range(-3.0, -3.0)),
    *(Arg(op=op, values=TRUTH) for op in ("ARG_MAX", "ARG_MIN")),
    *(
        Arg(op=op, shape=(2, 3, 2, channels), axis=axis, values=_CLOSE)
        for op in ("ARG_MAX", "ARG_MIN")
        for channels, axis in ((9, 3), (7, 1))
    ),
    Arg(shape=(2, 1001), axis=1, values=_HUGE, dtype="int64"),
    *(
        ReduceTruth(op=op, axes=axes, keep=keep)
        for op in ("REDUCE_ANY", "REDUCE_ALL")
        for axes, keep in (((3,), True), ((0, 1), False), ((0, 1, 2, 3), False), ((2,), True))
    ),
)
