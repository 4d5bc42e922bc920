"""Cases of RESHAPE and SQUEEZE."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cases.base import EXACT, Case, Shape, Sheet


@dataclass(frozen=True, kw_only=True)
class Reshape(Case):
    """A reshape; the new shape is a constant tensor, or a parameter of the node."""

    tolerance: ClassVar[float] = EXACT

    shape: Shape = (2, 3, 4, 5)
    to: tuple[int, ...]
    by_parameter: bool = False

    def write(self, sheet: Sheet) -> None:
        """One input, one reshape, one output."""
        source = sheet.input(self.shape)
        if self.by_parameter:
            result = sheet.op("RESHAPE", [source], {"new_shape": self.to})
        else:
            result = sheet.op("RESHAPE", [source, sheet.constant(self.to, "int32")])
        sheet.output(result)


@dataclass(frozen=True, kw_only=True)
class Squeeze(Case):
    """Drops dimensions of size 1: those named, or all."""

    tolerance: ClassVar[float] = EXACT

    shape: Shape = (1, 3, 1, 5)
    dims: tuple[int, ...] = ()

    def write(self, sheet: Sheet) -> None:
        """One input, one squeeze, one output."""
        sheet.output(sheet.op("SQUEEZE", [sheet.input(self.shape)], {"squeeze_dims": self.dims}))


CASES: tuple[Case, ...] = (
    # The same channels, aligned and not
    Reshape(to=(6, 4, 5)),
    Reshape(shape=(2, 3, 4, 8), to=(1, 24, 1, 8)),
    Reshape(shape=(2, 3, 4, 8), to=(24, 8)),
    # Other channels
    Reshape(to=(5, 4, 3, 2)),
    Reshape(to=(120,)),
    Reshape(to=(2, 60)),
    Reshape(to=(8, 15)),
    Reshape(shape=(2, 3, 4, 8), to=(2, 3, 32)),
    Reshape(shape=(2, 3, 4, 8), to=(2, 3, 8, 4)),
    Reshape(shape=(2, 3, 4, 8), to=(16, 12)),
    Reshape(shape=(2, 3, 2, 12), to=(36, 4)),
    Reshape(shape=(7,), to=(1, 7, 1, 1)),
    Reshape(shape=(1, 1, 1, 9), to=(3, 3)),
    Reshape(shape=(1,), to=(0,), by_parameter=True),  # how old converters wrote a scalar
    Reshape(shape=(), to=(1, 1)),
    Reshape(shape=(1, 1), to=()),  # a constant without elements
    Reshape(to=(1, 2, 3, 2, 1, 2, 1, 5)),
    Reshape(shape=(2, 3, 2, 2, 5, 1), to=(2, 30, 2)),
    # One size that follows from the others; the shape as a parameter
    Reshape(to=(-1, 10)),
    Reshape(to=(2, -1)),
    Reshape(to=(-1,)),
    Reshape(to=(3, -1, 4), by_parameter=True),
    Reshape(to=(6, 20), by_parameter=True),
    *(Squeeze(dims=dims) for dims in ((), (0,), (2,), (-2,), (0, 2))),
    Squeeze(shape=(1, 1, 1, 8)),
    Squeeze(shape=(2, 1, 3, 1, 4, 5), dims=(1,)),
    Squeeze(shape=(4, 1)),
    Squeeze(shape=(1, 1)),
    Squeeze(shape=(2, 3)),
)
