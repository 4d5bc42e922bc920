"""Cases of DILATE and STABLEHLO_PAD."""

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


@dataclass(frozen=True, kw_only=True)
class Spread(Case):
    """A value with a constant between and around its elements, or with some of them cut off."""

    tolerance: ClassVar[float] = EXACT

    shape: Shape = (2, 3, 4, 5)
    between: Shape = (0, 1, 2, 0)
    before: Shape = (0, 1, 3, 2)
    after: Shape = (1, 0, 4, 3)
    fill: float = 0.0
    dtype: str = "float32"

    def write(self, sheet: Sheet) -> None:
        """One input, one output."""
        values = {"float32": Range(), "bool": TRUTH}.get(
            self.dtype, Range(-100.0, 100.0, dtype=self.dtype)
        )
        operands = [sheet.input(self.shape, values), sheet.constant(self.fill, self.dtype)]
        options = {
            "edge_padding_low": self.before,
            "edge_padding_high": self.after,
            "interior_padding": self.between,
        }
        sheet.output(sheet.op("STABLEHLO_PAD", operands, options, dtype=self.dtype))


_NONE = (0, 0, 0, 0)

CASES: tuple[Case, ...] = (
    Dilated(),
    Dilated(steps=(2, 1, 1, 3), fill=-1.5),
    Dilated(steps=(1, 1, 1, 1)),
    Dilated(shape=(7,), steps=(3,), fill=2.0),
    Dilated(shape=(1, 1), steps=(4, 5)),
    Dilated(shape=(2, 1, 3, 2, 3), steps=(2, 2, 1, 3, 2)),
    *(Dilated(steps=(1, 2, 1, 2), fill=1, dtype=each) for each in ("int32", "int64", "bool")),
    Spread(),
    Spread(fill=-1.5, between=_NONE),
    Spread(between=_NONE, before=_NONE, after=_NONE),
    Spread(between=(1, 2, 3, 1), before=(-1, -2, -3, -2), after=(0, -1, -4, 2), fill=2.0),
    Spread(between=_NONE, before=(0, -1, 1, -2), after=(0, 3, -2, 0), fill=1.0),
    Spread(shape=(2, 3), between=(0, 4), before=(2, -9), after=(-3, -1), fill=0.5),
    Spread(shape=(7,), between=(3,), before=(-5,), after=(6,), fill=2.0),
    Spread(
        shape=(2, 1, 3, 2, 3),
        between=(1, 1, 0, 2, 1),
        before=(0, 2, 1, 0, -1),
        after=(1, 0, -1, 3, 0),
    ),
    *(Spread(fill=1, dtype=each) for each in ("int32", "int64", "int16", "bool")),
    *(
        Spread(shape=(3, c), between=(0, 1), before=(1, -1), after=(0, 2), fill=-7, dtype="int8")
        for c in (1, 4, 6)
    ),
    *(Dilated(shape=(3, 4, c), steps=(2, 2, 1), fill=-7, dtype="int8") for c in (1, 4, 6)),
)

REJECTED = (
    Rejected(
        "DILATE",
        (computed(2, 3), integers(1, 0), floats()),
        "The dilations [1, 0] do not fit [2, 3], or are less than 1.",
    ),
    Rejected(
        "STABLEHLO_PAD",
        (computed(2, 3), floats()),
        "The interior_padding (0, -1) does not fit [2, 3], or is less than 0.",
        params={
            "edge_padding_low": (0,) * 8,
            "edge_padding_high": (0,) * 8,
            "interior_padding": (0, -1, 0, 0, 0, 0, 0, 0),
        },
    ),
)
