"""Cases of MEAN over height and width."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cases.base import CLOSE, Case, Range, Shape, Sheet

_POSITIVE = Range(0.5, 2.0)


@dataclass(frozen=True, kw_only=True)
class Mean(Case):
    """An average over some axes."""

    tolerance: ClassVar[float] = CLOSE

    shape: Shape = (2, 5, 7, 6)
    axes: tuple[int, ...] = (1, 2)
    keep: bool = True

    def write(self, sheet: Sheet) -> None:
        """One input, one average, one output."""
        inputs = [sheet.input(self.shape, _POSITIVE), sheet.constant(self.axes, "int32")]
        sheet.output(sheet.op("MEAN", inputs, {"keep_dims": self.keep}))


CASES: tuple[Case, ...] = (
    *(Mean(shape=(1, 3, 4, c), keep=keep) for c in range(1, 10) for keep in (True, False)),
    *(
        Mean(axes=axes, keep=keep)
        for axes in ((1,), (2,), (2, 1), (-2, -3), (1, -2))
        for keep in (True, False)
    ),
    *(Mean(shape=(5, 4, 6), axes=axes, keep=False) for axes in ((0,), (1,), (0, 1))),
    Mean(shape=(7, 9), axes=(0,), keep=False),
    Mean(shape=(3, 16, 17, 12)),
    Mean(shape=(1, 33, 31, 5), keep=False),
)
