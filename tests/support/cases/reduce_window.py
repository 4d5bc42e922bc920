"""Cases of REDUCE_WINDOW and STABLEHLO_REDUCE_WINDOW."""

from __future__ import annotations

from dataclasses import dataclass

from cases.base import TRUTH, Case, Range, Shape, Sheet
from cases.rejected.base import Rejected, Tensor, computed, floats
from litegpu.graph import DType


@dataclass(frozen=True, kw_only=True)
class Windows(Case):
    """A number out of each window."""

    shape: Shape = (2, 7, 5, 3)
    window: Shape = (1, 3, 2, 1)
    strides: Shape = (1, 2, 1, 1)
    dilations: Shape = (1, 1, 1, 1)
    function: str = "ADD"
    first: float = 0.0
    dtype: str = "float32"

    def write(self, sheet: Sheet) -> None:
        """One input, one output."""
        floats = Range() if self.function != "MUL" else Range(0.5, 1.5)
        known = {"float32": floats, "bool": TRUTH}
        x = sheet.input(self.shape, known.get(self.dtype, Range(-99.0, 99.0, dtype=self.dtype)))
        first = sheet.constant(self.first, self.dtype)
        window = (sheet.constant(v, "int64") for v in (self.window, self.strides, self.dilations))
        options = {"reduce_function": self.function}
        sheet.output(sheet.op("REDUCE_WINDOW", [x, first, *window], options, dtype=self.dtype))


@dataclass(frozen=True, kw_only=True)
class Reduced(Case):
    """A number out of each window of a padded value; the function is a graph of one node."""

    shape: Shape = (2, 7, 5, 3)
    window: Shape = (1, 3, 2, 1)
    strides: Shape = (1, 2, 1, 1)
    between: Shape = (1, 1, 1, 1)
    dilations: Shape = (1, 1, 1, 1)
    padding: Shape = (0, 0, 1, 2, 0, 1, 0, 0)
    function: str = "STABLEHLO_ADD"
    first: float = 0.0
    dtype: str = "float32"

    def write(self, sheet: Sheet) -> None:
        """One input, one output."""
        body = sheet.writer.subgraph()
        sides = [body.input((), self.dtype) for _ in range(2)]
        body.output(body.op(self.function, sides, [()], dtype=self.dtype))
        floats = Range(0.5, 1.5) if "MUL" in self.function else Range()
        known = {"float32": floats, "bool": TRUTH}
        x = sheet.input(self.shape, known.get(self.dtype, Range(-99.0, 99.0, dtype=self.dtype)))
        first = sheet.constant(self.first, self.dtype)
        options = {
            "window_dimensions": self.window,
            "window_strides": self.strides,
            "base_dilations": self.between,
            "window_dilations": self.dilations,
            "padding": self.padding,
            "body_subgraph_index": body.number,
        }
        sheet.output(sheet.op("STABLEHLO_REDUCE_WINDOW", [x, first], options, dtype=self.dtype))


CASES: tuple[Case, ...] = (
    *(Windows(function=each, first=0.75) for each in ("ADD", "MUL", "MINIMUM", "MAXIMUM")),
    *(Windows(function=each, first=2, dtype="int32") for each in ("ADD", "MINIMUM", "MAXIMUM")),
    Windows(function="MAXIMUM", first=-50, dtype="int64"),
    *(
        Windows(function=each, first=3, dtype=dtype)
        for each in ("ADD", "MUL", "MAXIMUM")
        for dtype in ("int8", "uint8", "int16")
    ),
    *(Windows(function="MUL", first=3, dtype=dtype) for dtype in ("int32", "int64")),
    *(
        Windows(function=each, first=first, dtype="bool")
        for each in ("ADD", "MUL", "MINIMUM", "MAXIMUM", "ALL", "ANY")
        for first in (0, 1)
    ),
    *(
        Reduced(function=f"STABLEHLO_{each}", first=first, dtype="bool")
        for each in ("ADD", "MULTIPLY", "MINIMUM", "MAXIMUM", "AND")
        for first in (0, 1)
    ),
    Windows(window=(1, 2, 2, 3), strides=(1, 1, 1, 1), dilations=(1, 2, 3, 1)),
    Windows(window=(1, 3, 2, 1), strides=(1, 3, 2, 2), function="MAXIMUM", first=-9.0),
    Windows(window=(2, 1, 1, 2), strides=(1, 2, 2, 1), first=1.5),
    Windows(shape=(9,), window=(4,), strides=(1,), dilations=(2,), function="MAXIMUM"),
    Reduced(),
    *(
        Reduced(function=each, first=0.75)
        for each in ("MUL", "STABLEHLO_MULTIPLY", "STABLEHLO_MAXIMUM", "MINIMUM")
    ),
    Reduced(function="STABLEHLO_MINIMUM", first=9.0, between=(1, 2, 1, 3), padding=(0,) * 8),
    Reduced(padding=(1, 0, -1, 2, 0, -1, 0, 1), dilations=(1, 2, 1, 1), first=0.5),
    *(
        Reduced(function=f"STABLEHLO_{each}", first=3, dtype=dtype)
        for each, dtype in (("ADD", "int32"), ("MAXIMUM", "int64"))
    ),
    Reduced(
        shape=(9,),
        window=(4,),
        strides=(1,),
        between=(2,),
        dilations=(3,),
        padding=(2, 5),
        function="MAXIMUM",
        first=-50.0,
    ),
    Windows(
        shape=(2, 3, 2, 2, 4),
        window=(1, 3, 1, 2, 2),
        strides=(1,) * 5,
        dilations=(1,) * 5,
    ),
)


def _longs(*data: int) -> Tensor:
    return Tensor(shape=(len(data),), dtype=DType.INT64, data=data)


_ADD = {"reduce_function": 1}
_X, _FIRST, _ONES = computed(4, 5), floats(), _longs(1, 1)

REJECTED = (
    Rejected(
        "REDUCE_WINDOW",
        (_X, _FIRST, _ONES, _ONES, _ONES),
        "The reduce_function 6 is not a sum, product, minimum or maximum.",
        params={"reduce_function": 6},
    ),
    Rejected(
        "REDUCE_WINDOW",
        (_X, _FIRST, _longs(2), _ONES, _ONES),
        "A window of [2] does not fit a value of [4, 5].",
        params=_ADD,
    ),
    Rejected(
        "REDUCE_WINDOW",
        (_X, _FIRST, _ONES, _longs(1, 0), _ONES),
        "Windows [[1, 1], [1, 0], [1, 1]] have sizes below 1, or the initial value is not a "
        "scalar.",
        params=_ADD,
    ),
    Rejected(
        "REDUCE_WINDOW",
        (_X, _FIRST, _longs(2, 3), _ONES, _longs(1, 3)),
        "Windows of [2, 3] are too large for a value of [4, 5].",
        params=_ADD,
    ),
    Rejected(
        "REDUCE_WINDOW",
        (computed(80, 80), _FIRST, _longs(70, 70), _ONES, _ONES),
        "Windows of [70, 70] have more than 4096 elements.",
        params=_ADD,
    ),
)
