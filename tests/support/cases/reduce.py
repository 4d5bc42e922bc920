"""Cases of the reductions."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cases.base import SMALL, Case, Range, Shape, Sheet

_POSITIVE, _FACTORS = Range(0.5, 2.0), Range(1.5, 3.0)
_KINDS = ("MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD")


@dataclass(frozen=True, kw_only=True)
class Reduce(Case):
    """A reduction over some axes."""

    op: str = "MEAN"
    shape: Shape = (2, 5, 7, 6)
    axes: tuple[int, ...] | int = (1, 2)
    keep: bool = True
    values: Range = _POSITIVE

    def write(self, sheet: Sheet) -> None:
        """One input, one reduction, one output."""
        inputs = [sheet.input(self.shape, self.values), sheet.constant(self.axes, "int32")]
        sheet.output(sheet.op(self.op, inputs, {"keep_dims": self.keep}))


@dataclass(frozen=True, kw_only=True)
class ZeroProduct(Reduce):
    """A product whose first factor is 0; the others' is infinite, and 0 times that is no number."""

    op: str = "REDUCE_PROD"
    values: Range = _FACTORS

    def write(self, sheet: Sheet) -> None:
        """Factors that are 0 at the beginning of each product."""
        assert not isinstance(self.axes, int)
        mask = np.ones([n if i in self.axes else 1 for i, n in enumerate(self.shape)], np.float32)
        mask.flat[0] = 0.0
        factors = sheet.op("MUL", [sheet.input(self.shape, self.values), sheet.constant(mask)], {})
        axes = sheet.constant(self.axes, "int32")
        sheet.output(sheet.op(self.op, [factors, axes], {"keep_dims": self.keep}))


_NEGATIVE = Range(-1.3, -0.8)

CASES: tuple[Case, ...] = (
    *(Reduce(shape=(1, 3, 4, c), keep=keep) for c in range(1, 10) for keep in (True, False)),
    *(
        Reduce(axes=axes, keep=keep)
        for axes in ((1,), (2,), (2, 1), (-2, -3), (1, -2), 3, (0,), (0, 3), (0, 1, 2, 3), (1, 1))
        for keep in (True, False)
    ),
    *(Reduce(op=op, shape=(2, 3, 4, c), axes=(3,)) for op in _KINDS for c in (1, 3, 4, 7, 9)),
    *(
        Reduce(op=op, shape=(2, 3, 4, 5), axes=axes, keep=keep, values=_NEGATIVE)
        for op in _KINDS[2:]
        for axes in ((0,), (1, 3), (1, 2), (2, 3), (0, 1, 2, 3))
        for keep in (True, False)
    ),
    *(
        Reduce(shape=(5, 4, 6), axes=axes, keep=False)
        for axes in ((0,), (1,), (0, 1), (2,), (0, 2))
    ),
    Reduce(shape=(7, 9), axes=(0,), keep=False),
    Reduce(op="SUM", shape=(7, 9), axes=(1,), keep=False),
    Reduce(op="SUM", shape=(9,), axes=(0,), keep=False),
    Reduce(op="REDUCE_MAX", shape=(9,), axes=(0,)),
    *(
        Reduce(op="SUM", shape=(2, 3, 2, 3, 5), axes=axes, keep=keep)
        for axes in ((1,), (0, 1), (4,), (0, 2, 4), (1, 3), (2, 3, 4), (0, 1, 2, 3, 4))
        for keep in (True, False)
    ),
    Reduce(shape=(2, 3, 2, 3, 8), axes=(0, 2, 4)),
    *(
        Reduce(op=op, shape=(2, 3, 2, 2, 3, 5), axes=axes, keep=keep)
        for op in ("MEAN", "REDUCE_MAX")
        for axes, keep in (((2, 3), True), ((1, 3), False), ((0, 2, 4, 5), False))
    ),
    *(Reduce(shape=(1, 2, 1, 3, 1, 4, 3, 6), axes=axes) for axes in ((0, 1, 4), (2, 3, 7), (4,))),
    Reduce(shape=(3, 16, 17, 12)),
    Reduce(shape=(1, 33, 31, 5), keep=False),
    *(Reduce(op=op, shape=(1, 33, 31, 5), axes=(1, 2, 3)) for op in _KINDS[:4]),
    *(Reduce(op=op, shape=(2, 1001), axes=(1,)) for op in _KINDS[:4]),
    *(Reduce(op=op, shape=(3, 40, 6), axes=(1,), items=SMALL) for op in _KINDS[:4]),
    *(Reduce(op=op, shape=(1, 270, 260, 3)) for op in _KINDS[:4]),
    Reduce(shape=(1, 270, 260, 3), axes=(1, 2, 3), keep=False),
    *(Reduce(op=op, axes=(), keep=keep) for op in _KINDS for keep in (True, False)),
    *(Reduce(op=op, shape=(2, 3, 2, 4, 5), axes=()) for op in _KINDS),
    ZeroProduct(shape=(5, 8, 7, 9), axes=(0, 1, 2, 3)),
    ZeroProduct(shape=(900, 3, 2), axes=(0,)),
    ZeroProduct(shape=(2, 3, 901), axes=(2,)),
    # Where numbers exceed all others
    Reduce(op="REDUCE_MAX", values=Range(-60000.0, -50000.0)),
    Reduce(op="REDUCE_MIN", values=Range(50000.0, 60000.0)),
    Reduce(shape=(1, 30, 31, 5), values=Range(30000.0, 60000.0)),
)
