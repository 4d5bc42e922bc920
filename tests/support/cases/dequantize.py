"""Cases of DEQUANTIZE: float16 constants that other operations, or the caller, read."""

from __future__ import annotations

from dataclasses import dataclass

from cases.base import Case, Shape, Sheet


@dataclass(frozen=True, kw_only=True)
class Dequantize(Case):
    """A widened constant that is added to an input, and an output itself if `shown`."""

    shape: Shape = (2, 3, 2, 6)
    constant: Shape = (6,)
    shown: bool = False

    def write(self, sheet: Sheet) -> None:
        """One input, one float16 constant, one sum."""
        source = sheet.input(self.shape)
        widened = sheet.weights(self.constant, half=True)
        sheet.output(sheet.op("ADD", [source, widened]))
        if self.shown:
            sheet.output(widened)


CASES: tuple[Case, ...] = (
    *(Dequantize(constant=shape) for shape in ((), (6,), (2, 6), (3, 1, 1), (2, 3, 2, 6))),
    Dequantize(shown=True),
    Dequantize(shown=True, constant=(3, 2, 1)),
)
