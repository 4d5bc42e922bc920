"""Cases of RFFT2D, REAL, IMAG and COMPLEX_ABS."""

from __future__ import annotations

from dataclasses import dataclass

from cases.base import UNKNOWN, Case, Pair, Shape, Sheet
from cases.rejected.base import Rejected, computed, integers


@dataclass(frozen=True, kw_only=True)
class Spectrum(Case):
    """A transform of an input, and parts of it; without parts the result is complex itself."""

    shape: Shape = (3, 16)
    lengths: Pair = (1, 16)
    parts: tuple[str, ...] = ("COMPLEX_ABS",)

    def write(self, sheet: Sheet) -> None:
        """One input, an output for each part."""
        inputs = [sheet.input(self.shape), sheet.constant(self.lengths, "int32")]
        result = sheet.op("RFFT2D", inputs, dtype="complex64")
        found = [sheet.op(part, [result]) for part in self.parts]
        sheet.output(*(found or [result]))


@dataclass(frozen=True, kw_only=True)
class MovedSpectrum(Case):
    """A complex result of a transform that one op after the other moves, and its magnitude."""

    steps: tuple[tuple[str, tuple[Shape, ...]], ...]
    """Of each step the op and its constant operands."""
    shape: Shape = (2, 3, 1, 16)
    outputs: tuple[str, ...] = ("COMPLEX_ABS", "IMAG")

    def write(self, sheet: Sheet) -> None:
        """One input, the outputs of the last step; without their names, its complex result."""
        lengths = sheet.constant((1, self.shape[-1]), "int32")
        moved = sheet.op("RFFT2D", [sheet.input(self.shape), lengths], dtype="complex64")
        for op, operands in self.steps:
            version = 2 if op == "BROADCAST_TO" else 1
            constants = [sheet.constant(operand, "int32") for operand in operands]
            # The CPU's SLICE requires a result of as many axes.
            shape = operands[1] if op == "SLICE" else UNKNOWN
            (moved,) = sheet.multi(
                op, [moved, *constants], 1, version=version, dtype="complex64", shape=shape
            )
        sheet.output(
            *(sheet.op(part, [moved]) for part in self.outputs) if self.outputs else [moved]
        )


CASES: tuple[Case, ...] = (
    *(Spectrum(shape=(2, 1, n), lengths=(1, n)) for n in (2, 4, 8, 32, 64, 512)),
    Spectrum(shape=(2, 3, 1, 400), lengths=(1, 512), parts=("REAL", "IMAG")),
    Spectrum(shape=(1, 1, 2048), lengths=(1, 2048), parts=("REAL", "IMAG", "COMPLEX_ABS")),
    Spectrum(shape=(5, 24), lengths=(1, 16)),
    Spectrum(shape=(7, 5), lengths=(8, 4), parts=("REAL", "IMAG")),
    Spectrum(shape=(2, 2, 3, 9), lengths=(2, 16), parts=("IMAG", "COMPLEX_ABS")),
    Spectrum(shape=(9, 6), lengths=(4, 8)),
    Spectrum(shape=(32, 3), lengths=(64, 2), parts=("COMPLEX_ABS", "REAL")),
    Spectrum(shape=(4, 8), lengths=(4, 8), parts=()),
    MovedSpectrum(steps=(("RESHAPE", ((2, 3, 9),)),)),
    MovedSpectrum(steps=(("RESHAPE", ((6, 3, 3),)),), outputs=()),
    MovedSpectrum(steps=(("SQUEEZE", ()), ("TRANSPOSE", ((0, 2, 1),)))),
    MovedSpectrum(steps=(("EXPAND_DIMS", ((4,),)), ("RESHAPE", ((-1,),)))),
    MovedSpectrum(steps=(("TRANSPOSE", ((3, 0, 2, 1),)), ("SLICE", ((1, 0, 0, 1), (5, 2, 1, 2))))),
    MovedSpectrum(steps=(("SLICE", ((0, 1, 0, 2), (2, 2, 1, 7))),), outputs=()),
    MovedSpectrum(steps=(("STRIDED_SLICE", ((0, 2, 0, 8), (2, -4, 1, -10), (1, -1, 1, -2))),)),
    MovedSpectrum(steps=(("TILE", ((1, 1, 2, 2),)), ("BROADCAST_TO", ((3, 2, 3, 2, 18),)))),
)

REJECTED = (
    Rejected(
        "RFFT2D",
        (computed(8), integers(1, 8)),
        "A transform of [8] with the lengths [1, 8] is not one of 2 dimensions.",
    ),
    Rejected(
        "RFFT2D",
        (computed(4, 8), integers(1, 6)),
        "The lengths [1, 6] are not powers of two, which the CPU requires, too.",
    ),
    Rejected(
        "RFFT2D",
        (computed(4, 8), integers(4, 1)),
        "Lengths from [1, 2] to [16384, 16384] are supported, not [4, 1].",
    ),
)
