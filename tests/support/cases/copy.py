"""Cases of PAD, PADV2 and STRIDED_SLICE."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cases.base import EXACT, Case, Pair, Shape, Sheet


@dataclass(frozen=True, kw_only=True)
class Pad(Case):
    """PAD, or PADV2 when there is a value to fill with."""

    tolerance: ClassVar[float] = EXACT

    shape: Shape = (2, 4, 3, 5)
    pads: tuple[Pair, ...]
    fill: float | None = None
    dtype: str = "int32"

    def write(self, sheet: Sheet) -> None:
        """One input, one padding, one output."""
        inputs = [sheet.input(self.shape), sheet.constant(self.pads, self.dtype)]
        if self.fill is not None:
            inputs.append(sheet.constant(self.fill))
        op, version = "PAD" if self.fill is None else "PADV2", 4 if len(self.shape) > 4 else 1
        sheet.output(sheet.op(op, inputs, version=version))


@dataclass(frozen=True, kw_only=True)
class Slice(Case):
    """A strided slice. Bit i of a mask stands for dimension i."""

    tolerance: ClassVar[float] = EXACT

    shape: Shape = (2, 5, 4, 9)
    begin: tuple[int, ...]
    end: tuple[int, ...]
    strides: tuple[int, ...] = ()
    begin_mask: int = 0
    end_mask: int = 0
    shrink: int = 0
    ellipsis: int = 0
    new_axis: int = 0
    offset: bool = False

    def write(self, sheet: Sheet) -> None:
        """One input, one slice, one output."""
        strides = self.strides or (1,) * len(self.begin)
        bounds = [sheet.constant(part, "int32") for part in (self.begin, self.end, strides)]
        options = {
            "begin_mask": self.begin_mask,
            "end_mask": self.end_mask,
            "shrink_axis_mask": self.shrink,
            "ellipsis_mask": self.ellipsis,
            "new_axis_mask": self.new_axis,
            "offset": self.offset,
        }
        sheet.output(sheet.op("STRIDED_SLICE", [sheet.input(self.shape), *bounds], options))


_NONE = (0, 0)

CASES: tuple[Case, ...] = (
    Pad(pads=(_NONE, (1, 2), (2, 1), _NONE)),
    Pad(pads=((1, 1), _NONE, _NONE, _NONE)),
    Pad(pads=(_NONE, _NONE, _NONE, (1, 2))),
    Pad(pads=(_NONE, _NONE, _NONE, (4, 3))),
    Pad(pads=(_NONE, _NONE, _NONE, (0, 7))),
    Pad(shape=(1, 3, 2, 8), pads=(_NONE, _NONE, _NONE, (0, 8))),
    Pad(pads=((1, 0), (0, 1), (2, 0), (3, 1))),
    Pad(pads=(_NONE, _NONE, _NONE, _NONE)),
    *(Pad(pads=(_NONE, (1, 1), (1, 1), _NONE), dtype=f"int{bits}") for bits in (8, 16, 64)),
    Pad(pads=((1, 0), (2, 3)), shape=(3, 5), fill=1.5, dtype="int8"),
    Pad(shape=(5,), pads=((2, 1),)),
    Pad(shape=(3, 5), pads=((1, 0), (0, 2))),
    Pad(shape=(3, 2, 8), pads=((0, 1), (1, 1), (4, 4))),
    Pad(pads=(_NONE, (1, 2), (2, 1), _NONE), fill=-1.5),
    Pad(pads=((0, 1), (1, 0), _NONE, (2, 1)), fill=3.25),
    Pad(pads=(_NONE, _NONE, _NONE, (4, 1)), fill=0.5),
    Pad(shape=(3, 6), pads=((1, 1), (0, 3)), fill=-2.0, dtype="int64"),
    Pad(shape=(5,), pads=((0, 4),), fill=7.0),
    Pad(shape=(2, 3, 1, 2, 5), pads=((1, 0), _NONE, (0, 2), _NONE, (1, 1))),
    Pad(shape=(2, 3, 1, 2, 8), pads=(_NONE, (1, 1), _NONE, (0, 1), _NONE), fill=1.5),
    Pad(shape=(2, 3, 1, 2, 8), pads=(_NONE, (1, 0), _NONE, _NONE, (4, 0)), fill=1.5),
    # Slices of each dimension
    Slice(begin=(0, 1, 1, 0), end=(2, 4, 3, 9)),
    Slice(begin=(1, 0, 0, 0), end=(2, 5, 4, 9)),
    Slice(begin=(0, 0, 0, 2), end=(2, 5, 4, 7)),
    Slice(begin=(0, 0, 0, 4), end=(2, 5, 4, 9)),
    Slice(begin=(0, 0, 0, 4), end=(2, 5, 4, 6)),
    Slice(begin=(0, 0, 0, 0), end=(2, 5, 4, 9)),
    Slice(begin=(0, 0, 0, 0), end=(2, 5, 4, 9), strides=(1, 2, 3, 1)),
    Slice(begin=(0, 0, 0, 1), end=(2, 5, 4, 9), strides=(1, 1, 1, 3)),
    Slice(begin=(1, 4, 3, 8), end=(-3, 0, -5, -10), strides=(-1, -2, -1, -3)),
    Slice(begin=(-1, -3, 0, -9), end=(2, -1, -1, 100)),
    Slice(begin=(0, -100, 0, 0), end=(2, 100, 4, 9)),
    # Masks
    Slice(begin=(1, 2, 3, 4), end=(2, 3, 4, 5), begin_mask=0b1010),
    Slice(begin=(1, 2, 3, 4), end=(2, 3, 4, 5), end_mask=0b0101),
    Slice(begin=(1, 2, 3, 4), end=(2, 3, 4, 5), begin_mask=0b1111, end_mask=0b1111),
    Slice(
        begin=(0, 0, 0, 0),
        end=(0, 0, 0, 0),
        strides=(-1, 1, -2, -1),
        begin_mask=0b1111,
        end_mask=0b1111,
    ),
    Slice(begin=(0, 2, 0, 0), end=(2, 3, 4, 9), shrink=0b0010),
    Slice(begin=(1, 2, 0, 3), end=(0, 0, 4, 0), shrink=0b1011),
    Slice(begin=(0, 0, 0, -2), end=(2, 5, 4, 0), shrink=0b1000),
    Slice(begin=(1, 2, 3, 4), end=(2, 3, 4, 5), shrink=0b1111),
    Slice(begin=(0, 3, 0, 0), end=(0, 0, 0, 0), begin_mask=0b1101, end_mask=0b1101, shrink=0b0010),
    Slice(begin=(0, 1, 2, 3), end=(2, 2, 1, 4), offset=True),
    Slice(begin=(1, 1, 2, 3), end=(1, 2, 1, 4), begin_mask=0b1011, offset=True),
    Slice(begin=(0, 0, 2), end=(2, 0, 5), ellipsis=0b010),
    Slice(begin=(0, 1), end=(0, 3), ellipsis=0b01),
    Slice(begin=(1, 0), end=(2, 0), ellipsis=0b10, shrink=0b01),
    Slice(begin=(0, 0, 3), end=(0, 0, 4), ellipsis=0b010, shrink=0b101),
    Slice(begin=(0, 0, 1, 1, 0), end=(2, 5, 3, 4, 9), ellipsis=0b00100, shrink=0b00001),
    Slice(shape=(3, 9), begin=(0, 0, 2), end=(0, 3, 7), new_axis=0b001),
    Slice(shape=(3, 9), begin=(1, 0, 2), end=(3, 0, 7), new_axis=0b010),
    Slice(shape=(3, 9), begin=(1, 2, 0), end=(3, 7, 0), new_axis=0b100),
    Slice(
        shape=(3, 9), begin=(0, 0, 0), end=(0, 0, 0), new_axis=0b001, ellipsis=0b010, shrink=0b100
    ),
    Slice(shape=(3, 4, 7), begin=(0, 0, 2), end=(0, 0, 6), new_axis=0b010, ellipsis=0b001),
    # Fewer entries than dimensions, other ranks
    Slice(
        shape=(2, 3, 4, 2, 9), begin=(0, 1, 3, 0, 2), end=(2, 3, 0, 2, 7), strides=(1, 1, -2, 1, 1)
    ),
    Slice(shape=(2, 3, 4, 2, 9), begin=(1, 1), end=(2, 3), shrink=0b01),
    Slice(shape=(3, 4, 2, 2, 8), begin=(0, 1), end=(3, 4), strides=(2, 2)),
    Slice(begin=(0, 2), end=(1, 4)),
    Slice(begin=(1,), end=(2,), shrink=1),
    Slice(shape=(9,), begin=(2,), end=(8,), strides=(2,)),
    Slice(shape=(9,), begin=(3,), end=(4,), shrink=1),
    Slice(shape=(3, 9), begin=(1, 1), end=(3, 6)),
    Slice(shape=(3, 9), begin=(-1, 0), end=(0, 9), shrink=1),
    Slice(shape=(3, 4, 8), begin=(0, 1, 4), end=(2, 4, 8)),
    Slice(shape=(3, 4, 7), begin=(2, 3, 6), end=(-4, -5, -8), strides=(-1, -1, -1)),
)
