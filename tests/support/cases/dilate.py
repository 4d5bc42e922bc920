"""Cases of DILATE."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cases.base import EXACT, TRUTH, Case, Range, Shape, Sheet
from cases.rejected.base import Rejected, computed, floats, integers


@dataclass(frozen=True, kw_only=True)
class Dilated(Case):
    """A value whose elements move apart."""

    tolerance: ClassVar[float] = EXACT

    shape: Shape = (2, 3, 4, 5)
    steps: Shape = (1, 2, 3, 1)
    fill: float = 0.0
    dtype: str = "float32"

    def write(self, sheet: Sheet) -> None:
        """One input, one output."""
        values = {"float32": Range(), "bool": TRUTH}.get(
            self.dtype, Range(-100.0, 100.0, dtype=self.dtype)
        )
        x = sheet.input(self.shape, values)
        operands = [sheet.constant(self.steps, "int32"), sheet.constant(self.fill, self.dtype)]
        sheet.output(sheet.op("DILATE", [x, *operands], dtype=self.dtype))


CASES: tuple[Case, ...] = (
    Dilated(),
    Dilated(steps=(2, 1, 1, 3), fill=-1.5),
    Dilated(steps=(1, 1, 1, 1)),
    Dilated(shape=(7,), steps=(3,), fill=2.0),
    Dilated(shape=(1, 1), steps=(4, 5)),
    Dilated(shape=(2, 1, 3, 2, 3), steps=(2, 2, 1, 3, 2)),
    *(Dilated(steps=(1, 2, 1, 2), fill=1, dtype=each) for each in ("int32", "int64", "bool")),
    *(Dilated(shape=(3, 4, c), steps=(2, 2, 1), fill=-7, dtype="int8") for c in (1, 4, 6)),
)

REJECTED = (
    Rejected(
        "DILATE",
        (computed(2, 3), integers(1, 0), floats()),
        "The dilations [1, 0] do not fit [2, 3], or are less than 1.",
    ),
)
