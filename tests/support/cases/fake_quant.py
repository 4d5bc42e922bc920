"""Cases of FAKE_QUANT and BUCKETIZE."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from cases.base import ANY, EXACT, Case, Range, Shape, Sheet
from cases.rejected.base import Rejected, computed
from litegpu.graph import DType


@dataclass(frozen=True, kw_only=True)
class FakeQuant(Case):
    """Floats on a grid."""

    shape: Shape = (2, 3, 5, 7)
    low: float = -1.0
    high: float = 1.5
    bits: int = 8
    values: Range = ANY

    def write(self, sheet: Sheet) -> None:
        """One input, one output."""
        options = {"min": self.low, "max": self.high, "num_bits": self.bits}
        sheet.output(sheet.op("FAKE_QUANT", [sheet.input(self.shape, self.values)], options))


@dataclass(frozen=True, kw_only=True)
class Buckets(Case):
    """Numbers between boundaries, some of which they are equal to."""

    tolerance: ClassVar[float] = EXACT

    shape: Shape = (2, 3, 5, 7)
    boundaries: tuple[float, ...] = (-1.5, -0.5, 0.0, 1.0, 1.25)
    dtype: str = "float32"

    def write(self, sheet: Sheet) -> None:
        """One input, one output."""
        floats = Range(-2.0, 2.0, grid=1 / 4)
        values = floats if self.dtype == "float32" else Range(-9.0, 9.0, dtype=self.dtype)
        options = {"boundaries": self.boundaries}
        x = sheet.input(self.shape, values)
        sheet.output(sheet.op("BUCKETIZE", [x], options, dtype="int32"))


CASES: tuple[Case, ...] = (
    FakeQuant(),
    FakeQuant(low=0.0, high=6.0, bits=4),
    FakeQuant(shape=(3, 9), low=-0.75, high=0.0, bits=16),
    FakeQuant(shape=(5,), low=0.5, high=1.0, bits=2),
    FakeQuant(low=-3.0, high=-1.0),
    # Zero is exact: -2 + 15 * (2 / 15) is not where the product is not rounded.
    FakeQuant(low=-2.0, high=0.0, bits=4, values=Range(0.5, 2.0)),
    Buckets(),
    Buckets(shape=(9,), boundaries=(0.25,)),
    Buckets(shape=(2, 3), boundaries=(-1.0, -1.0, 0.5, 0.5, 0.5)),
    *(Buckets(boundaries=(-3.5, -1.0, 0.0, 4.0), dtype=each) for each in ("int32", "int64")),
    Buckets(boundaries=tuple(i / 16 for i in range(-20, 20))),
)

_BITS: dict[str, Any] = {"min": -1.0, "max": 1.0, "num_bits": 8, "narrow_range": False}

REJECTED = (
    Rejected(
        "FAKE_QUANT",
        (computed(2, 3),),
        "The parameter narrow_range is True, which the CPU rejects.",
        params={**_BITS, "narrow_range": True},
    ),
    Rejected(
        "FAKE_QUANT",
        (computed(2, 3),),
        "The parameter num_bits is 17; 2 to 16 are supported.",
        params={**_BITS, "num_bits": 17},
    ),
    Rejected(
        "FAKE_QUANT",
        (computed(2, 3),),
        "Its range from 1.0 to 1.0 is empty.",
        params={**_BITS, "min": 1.0},
    ),
    Rejected(
        "BUCKETIZE",
        (computed(2, 3),),
        "The boundaries (1.0, 0.0) are not ascending, which the CPU requires.",
        params={"boundaries": (1.0, 0.0)},
        result=DType.INT32,
    ),
    Rejected(
        "BUCKETIZE",
        (computed(2, 3),),
        "The node has 5000 boundaries; at most 4096 are supported.",
        params={"boundaries": (0.0,) * 5000},
        result=DType.INT32,
    ),
)
