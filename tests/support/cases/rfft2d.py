"""Cases of RFFT2D, REAL, IMAG and COMPLEX_ABS, and of other ops on complex numbers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from cases.base import TRUTH, UNKNOWN, Case, Pair, Range, Shape, Sheet
from cases.rejected.base import Rejected, Tensor, computed, integers
from litegpu.graph import DType


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

    steps: tuple[tuple[str, tuple[Any, ...]], ...]
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


@dataclass(frozen=True, kw_only=True)
class Product(Case):
    """Products of a transform with itself moved, with a constant, or with one of another shape."""

    shape: Shape = (2, 3, 1, 16)
    factor: Shape | None = None
    """The shape of a constant factor; without it the factor is the transform of another input."""
    swapped: bool = False
    parts: tuple[str, ...] = ("REAL", "IMAG")

    def write(self, sheet: Sheet) -> None:
        """One or two inputs, an output for each part."""
        lengths = sheet.constant((1, self.shape[-1]), "int32")
        first = sheet.op("RFFT2D", [sheet.input(self.shape), lengths], dtype="complex64")
        if self.factor is None:
            other = sheet.input((1, *self.shape[1:]))
            second = sheet.op("RFFT2D", [other, lengths], dtype="complex64")
        else:
            drawn = sheet.random.standard_normal((2, *self.factor))
            second = sheet.constant(drawn[0] + 1j * drawn[1], "complex64")
        pair = [second, first] if self.swapped else [first, second]
        result = sheet.op("MUL", pair, dtype="complex64")
        sheet.output(*([sheet.op(part, [result]) for part in self.parts] or [result]))


@dataclass(frozen=True, kw_only=True)
class ComplexCast(Case):
    """Real numbers as complex ones, and complex ones as real numbers."""

    given: str = "float32"
    result: str = "complex64"
    shape: Shape = (2, 3, 1, 8)

    def write(self, sheet: Sheet) -> None:
        """One input, the result and the imaginary part of the complex numbers."""
        if self.given == "complex64":
            lengths = sheet.constant((1, self.shape[-1]), "int32")
            given = sheet.op("RFFT2D", [sheet.input(self.shape), lengths], dtype="complex64")
        elif self.given == "bool":
            given = sheet.input(self.shape, TRUTH)
        else:
            given = sheet.input(self.shape, Range(0.0, 100.0, dtype=self.given))
        result = sheet.op("CAST", [given], dtype=self.result)
        imaginary = sheet.op("IMAG", [given if self.given == "complex64" else result])
        sheet.output(result, imaginary)


@dataclass(frozen=True, kw_only=True)
class ComplexSelection(Case):
    """Complex numbers of one transform where a bool is true, and of another where it is false."""

    op: str = "SELECT_V2"

    def write(self, sheet: Sheet) -> None:
        """Three inputs, the magnitudes of the chosen numbers."""
        lengths = sheet.constant((1, 16), "int32")
        pair = [
            sheet.op("RFFT2D", [sheet.input((6, 1, 16)), lengths], dtype="complex64")
            for _ in range(2)
        ]
        condition = sheet.input((6, 1, 9), TRUTH)
        chosen = sheet.op(self.op, [condition, *pair], dtype="complex64")
        sheet.output(sheet.op("COMPLEX_ABS", [chosen]))


_CAST = (
    *("float32", "float16", "bool", "int8", "uint8", "int16", "uint16", "int32", "int64"),
    "uint32",
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
    MovedSpectrum(steps=(("MIRROR_PAD", (((0, 0), (1, 2), (0, 0), (2, 1)),)),)),
    MovedSpectrum(steps=(("SPACE_TO_BATCH_ND", ((1, 3), ((0, 0), (0, 2)))),), shape=(2, 2, 1, 8)),
    Product(),
    Product(parts=()),
    Product(shape=(3, 16), factor=(9,)),
    Product(shape=(3, 16), factor=(), swapped=True),
    Product(shape=(3, 2, 8), factor=(2, 1), parts=("COMPLEX_ABS",)),
    *(ComplexCast(given=given) for given in _CAST),
    *(ComplexCast(given="complex64", result=result) for result in _CAST),
    ComplexCast(given="complex64"),
    ComplexCast(shape=()),
    ComplexSelection(),
    ComplexSelection(op="SELECT"),
)

REJECTED = (
    Rejected(
        "MATRIX_DIAG",
        (Tensor(shape=(4,), dtype=DType.COMPLEX64),),
        "OP is supported, but tensor type/shape isn't compatible: tensor 0 is COMPLEX64 instead of "
        "BOOL, FLOAT16, FLOAT32, FLOAT64, INT16, INT32, INT64, INT8, UINT16, UINT32, UINT64 or "
        "UINT8.",
    ),
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
