"""Cases of SOFTMAX."""

from __future__ import annotations

from dataclasses import dataclass

from cases.base import Case, Range, Shape, Sheet

_MODERATE = Range(-4.0, 4.0)


@dataclass(frozen=True, kw_only=True)
class Softmax(Case):
    """A softmax over the last dimension."""

    shape: Shape = (2, 9)
    beta: float = 1.0
    values: Range = _MODERATE

    def write(self, sheet: Sheet) -> None:
        """One input, one softmax, one output."""
        source = sheet.input(self.shape, self.values)
        sheet.output(sheet.op("SOFTMAX", [source], {"beta": self.beta}))


CASES: tuple[Case, ...] = (
    *(Softmax(shape=(3, c)) for c in range(1, 10)),
    *(Softmax(shape=(2, c)) for c in (16, 33, 64, 127, 256, 1001)),
    Softmax(shape=(7,)),
    Softmax(shape=(35, 3)),
    Softmax(shape=(2, 3, 5)),
    Softmax(shape=(2, 3, 2, 6)),
    Softmax(shape=(3, 5, 1, 66)),
    *(Softmax(beta=beta) for beta in (0.5, 2.0, 0.01)),
    # exp of these overflows float32, and float16 long before
    Softmax(values=Range(-60000.0, 60000.0)),
    Softmax(shape=(2, 130), values=Range(800.0, 1000.0)),
    Softmax(values=Range(-1000.0, -800.0)),
    Softmax(shape=(2, 5), values=Range(-60000.0, -60000.0)),
)
