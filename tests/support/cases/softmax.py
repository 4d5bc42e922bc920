"""Cases of SOFTMAX and similar ops, and of CUMSUM."""

from __future__ import annotations

from dataclasses import dataclass

from cases.base import LARGE, Case, Range, Shape, Sheet

_MODERATE = Range(-4.0, 4.0)


@dataclass(frozen=True, kw_only=True)
class Softmax(Case):
    """A softmax over the last dimension."""

    op: str = "SOFTMAX"
    shape: Shape = (2, 9)
    beta: float = 1.0
    values: Range = _MODERATE

    def write(self, sheet: Sheet) -> None:
        """One input, one softmax, one output."""
        source = sheet.input(self.shape, self.values)
        options = {"beta": self.beta} if self.op == "SOFTMAX" else None
        sheet.output(sheet.op(self.op, [source], options))


@dataclass(frozen=True, kw_only=True)
class CumSum(Case):
    """Running sums along an axis."""

    shape: Shape = (2, 4, 3, 6)
    axis: int = 3
    exclusive: bool = False
    reverse: bool = False

    def write(self, sheet: Sheet) -> None:
        """One input, one output."""
        inputs = [sheet.input(self.shape), sheet.constant(self.axis, "int32")]
        options = {"exclusive": self.exclusive, "reverse": self.reverse}
        sheet.output(sheet.op("CUMSUM", inputs, options))


CASES: tuple[Case, ...] = (
    *(Softmax(shape=(3, c)) for c in range(1, 10)),
    *(Softmax(shape=(2, c)) for c in (16, 33, 64, 127, 256, 1001)),
    Softmax(shape=(7,)),
    Softmax(shape=(35, 3)),
    Softmax(shape=(2, 3, 5)),
    Softmax(shape=(2, 3, 2, 6)),
    Softmax(shape=(3, 5, 1, 66)),
    *(Softmax(beta=beta) for beta in (0.5, 2.0, 0.01)),
    Softmax(shape=(2, 3, 2, 2, 5)),
    Softmax(shape=(2, 1, 3, 2, 2, 1, 3, 5)),
    *(
        Softmax(op=op, shape=shape)
        for op in ("LOG_SOFTMAX", "L2_NORMALIZATION")
        for shape in (*((3, c) for c in range(1, 10)), (2, 1001), (2, 3, 2, 6), (2, 3, 2, 2, 5))
    ),
    Softmax(op="LOG_SOFTMAX", values=Range(800.0, 1000.0)),
    Softmax(op="L2_NORMALIZATION", values=Range(0.0, 0.0)),
    Softmax(op="L2_NORMALIZATION", values=Range(-200.0, 200.0)),
    *(
        CumSum(axis=axis, exclusive=exclusive, reverse=reverse)
        for axis in (0, 1, -2, 3)
        for exclusive in (False, True)
        for reverse in (False, True)
    ),
    *(CumSum(shape=(2, c), axis=1) for c in range(1, 10)),
    *(CumSum(shape=shape, axis=-1, reverse=True) for shape in ((7,), (2, 3, 9))),
    *(CumSum(shape=(2, 3, 2, 3, 5), axis=axis) for axis in (1, 4)),
    CumSum(shape=(2, 1, 3, 2, 3, 5), axis=2),
    CumSum(shape=(2, 257), axis=1),
    # exp of these overflows float32, and float16 long before
    Softmax(values=Range(-60000.0, 60000.0)),
    Softmax(shape=(2, 130), values=Range(800.0, 1000.0)),
    Softmax(values=Range(-1000.0, -800.0)),
    Softmax(shape=(2, 5), values=Range(-60000.0, -60000.0)),
    *(
        Softmax(op=op, shape=(2, c), values=values, items=LARGE)
        for op in ("SOFTMAX", "LOG_SOFTMAX", "L2_NORMALIZATION")
        for c in (130, 1001, 4099)
        for values in (_MODERATE, Range(-1000.0, 1000.0))
    ),
    *(
        Softmax(shape=(2, 1001), beta=beta, values=Range(800.0, 880.0), items=items)
        for beta in (2.0, 0.0, -0.5)
        for items in (None, LARGE)
    ),
)
