"""Cases of normalizations as exporters write them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cases.base import LARGE, SMALL, Case, Floats, NumpyCase, Range, Shape, Sheet
from litegpu.zoo.writer import TensorRef

MANY = 128
"""Work items of a device that a few hundred keep busy."""
SQUARES = ("SQUARED_DIFFERENCE", "SQUARE", "MUL", "POW", "moments")
ROOTS = ("RSQRT", "SQRT", "POW", "POW of POW")
APPLIED = ("difference", "folded", "scaled difference", "negated", "squeezed")
_VALUES = Range(-1.0, 3.0)
_FAR = Range(30.0, 32.0)
Doubles = npt.NDArray[np.float64]
_FUSED = {"fused_activation_function": "NONE"}


@dataclass(frozen=True, kw_only=True)
class Normalization(Case):
    """(x - mean) / sqrt(variance + epsilon) * factor + shift over some axes."""

    shape: Shape = (2, 5, 7, 6)
    axes: tuple[int, ...] = (1, 2)
    squares: str = "SQUARED_DIFFERENCE"
    root: str = "RSQRT"
    applied: str = "folded"
    centred: bool = True
    affine: str = "constant"
    """What factor and shift are: "constant", "computed" or "" for none."""
    keep: bool = True
    epsilon: float = 1e-3
    residual: bool = False
    activation: str = "NONE"
    viewed: bool = False
    """Whether squares are of the value and of a view with more leading dimensions of size 1."""
    values: Range = _VALUES

    def write(self, sheet: Sheet) -> None:
        """One input, the normalization, and perhaps the input added to it."""
        lead = next(i for i, n in enumerate(self.shape) if n > 1) if self.viewed else 0
        source = sheet.input(self.shape[lead:], self.values)
        result = self._normalized(sheet, source)
        if self.residual:
            result = sheet.fused("ADD", [source, result], self.activation)
        elif self.activation != "NONE":
            result = sheet.op(self.activation, [result])
        sheet.output(result)

    def _normalized(self, sheet: Sheet, source: TensorRef) -> TensorRef:
        mean = self._mean(sheet, source) if self.centred else None
        away = self.applied != "folded" and (
            self.applied not in ("negated", "squeezed") or self.squares in SQUARES[1:4]
        )
        difference = sheet.op("SUB", [source, mean], _FUSED) if mean and away else source
        variance = self._variance(sheet, source, mean, difference)
        if mean and self.applied == "squeezed":
            return self._squeezed(sheet, source, mean, variance)
        raised = sheet.op("ADD", [sheet.constant(self.epsilon), variance], _FUSED)
        factor, shift = self._affine(sheet)
        if self.root == "SQRT" and self.applied == "difference":
            result = sheet.op("DIV", [difference, sheet.op("SQRT", [raised])], _FUSED)
            return _finished(sheet, result, factor, shift)
        scale = self._inverse_root(sheet, raised)
        if self.applied == "difference" or mean is None:
            result = sheet.op("MUL", [difference, scale], _FUSED)
            return _finished(sheet, result, factor, shift)
        scale = sheet.op("MUL", [scale, factor], _FUSED) if factor else scale
        if self.applied == "scaled difference":
            result = sheet.op("MUL", [scale, difference], _FUSED)
            return _finished(sheet, result, None, shift)
        scaled = sheet.op("MUL", [source, scale], _FUSED)
        if self.applied == "negated":
            moved = sheet.op("MUL", [sheet.op("NEG", [mean]), scale], _FUSED)
            return _finished(sheet, sheet.op("ADD", [moved, scaled], _FUSED), None, shift)
        moved = sheet.op("MUL", [mean, scale], _FUSED)
        if shift is None:
            return sheet.op("SUB", [scaled, moved], _FUSED)
        return sheet.op("ADD", [scaled, sheet.op("SUB", [shift, moved], _FUSED)], _FUSED)

    def _squeezed(
        self, sheet: Sheet, source: TensorRef, mean: TensorRef, variance: TensorRef
    ) -> TensorRef:
        """Compute with statistics that have no dimensions of size 1, and nothing added to them."""
        reduced = self._reduced()
        small = [size for size in reduced if size != 1] or [1]
        mean, variance = (self._reshape(sheet, each, small) for each in (mean, variance))
        raised = sheet.op("ADD", [variance, sheet.constant(self.epsilon)], _FUSED)
        scale = self._inverse_root(sheet, raised)
        moved = sheet.op("MUL", [scale, mean], _FUSED)
        moved = sheet.op("SUB", [sheet.constant(0.0), moved], _FUSED)
        scale, moved = (self._reshape(sheet, each, reduced) for each in (scale, moved))
        result = sheet.op("MUL", [source, scale], _FUSED)
        result = sheet.op("ADD", [result, moved], _FUSED)
        return _finished(sheet, result, *self._affine(sheet))

    def _variance(
        self, sheet: Sheet, source: TensorRef, mean: TensorRef | None, difference: TensorRef
    ) -> TensorRef:
        if mean is None:
            return self._mean(sheet, self._squared(sheet, source))
        if self.squares == "moments":
            square = self._mean(sheet, self._squared(sheet, source))
            return sheet.op("SUB", [square, self._squared(sheet, mean)], _FUSED)
        if self.squares == "SQUARED_DIFFERENCE" or difference is source:
            return self._mean(sheet, sheet.op("SQUARED_DIFFERENCE", [mean, source]))
        return self._mean(sheet, self._squared(sheet, difference))

    def _squared(self, sheet: Sheet, value: TensorRef) -> TensorRef:
        if self.squares == "SQUARE":
            return sheet.op("SQUARE", [value])
        if self.squares == "POW":
            return sheet.op("POW", [value, sheet.constant(2.0)])
        view = self._reshape(sheet, value, self.shape) if self.viewed else value
        return sheet.op("MUL", [value, view], _FUSED)

    def _inverse_root(self, sheet: Sheet, raised: TensorRef) -> TensorRef:
        if self.root == "RSQRT":
            return sheet.op("RSQRT", [raised])
        if self.root == "POW":
            return sheet.op("POW", [raised, sheet.constant(-0.5)])
        if self.root == "POW of POW":
            root = sheet.op("POW", [raised, sheet.constant(0.5)])
        else:
            root = sheet.op("SQRT", [raised])
        return sheet.op("DIV", [sheet.constant(1.0), root], _FUSED)

    def _mean(self, sheet: Sheet, value: TensorRef) -> TensorRef:
        result = sheet.op(
            "MEAN", [value, sheet.constant(self.axes, "int32")], {"keep_dims": self.keep}
        )
        if self.keep:
            return result
        return self._reshape(sheet, result, self._reduced())

    def _reduced(self) -> list[int]:
        axes = [axis % len(self.shape) for axis in self.axes]
        return [1 if axis in axes else size for axis, size in enumerate(self.shape)]

    def _reshape(self, sheet: Sheet, value: TensorRef, shape: Sequence[int]) -> TensorRef:
        return sheet.op("RESHAPE", [value, sheet.constant(shape, "int32")])

    def _affine(self, sheet: Sheet) -> tuple[TensorRef | None, TensorRef | None]:
        if not self.affine:
            return None, None
        spread: Sequence[Range] = (Range(0.5, 1.5), Range(-1.0, 1.0))
        lead = (1,) * (len(self.shape) - 1) if self.affine == "computed" else ()
        size = (*lead, self.shape[-1])
        make = sheet.input if self.affine == "computed" else sheet.weights
        factor, shift = (make(size, values) for values in spread)
        return factor, shift


def _finished(
    sheet: Sheet, result: TensorRef, factor: TensorRef | None, shift: TensorRef | None
) -> TensorRef:
    """Apply a factor and a shift, where there are any."""
    result = sheet.op("MUL", [result, factor], _FUSED) if factor else result
    return sheet.op("ADD", [result, shift], _FUSED) if shift else result


@dataclass(frozen=True, kw_only=True)
class FarFromZero(Normalization, NumpyCase):
    """Numbers whose squares are nearly equal to the squared mean; the CPU's kernels are far off."""

    values: Range = _FAR
    applied: str = "difference"
    affine: str = ""

    def expected(self, inputs: Sequence[Floats], weights: Sequence[Floats]) -> tuple[Doubles, ...]:
        """Compute with double precision."""
        x = np.asarray(inputs[0], np.float64)
        away = x - x.mean(self.axes, keepdims=True)
        return (away / np.sqrt((away * away).mean(self.axes, keepdims=True) + self.epsilon),)


CASES: tuple[Case, ...] = (
    *(Normalization(shape=(1, 3, 4, c)) for c in range(1, 10)),
    *(Normalization(shape=(2, 3, 4, c), axes=(3,)) for c in range(1, 10)),
    # Several of a group side by side, as a GPU has them that many keep busy
    *(
        Normalization(shape=shape, axes=(len(shape) - 1,), items=MANY)
        for shape in ((2, 7, 11, 37), (3, 50, 192), (130, 5), (1, 129, 1, 130))
    ),
    *(
        Normalization(shape=shape, axes=axes, items=items)
        for items in (SMALL, LARGE)
        for shape, axes in (
            ((3, 9, 7, 5), (1, 2)),
            ((2, 5, 7, 9), (1, 2, 3)),
            ((2, 5, 3, 6), (2, 3)),
            ((2, 5, 3, 6), (0,)),
            ((2, 5, 3, 6), (0, 2, 3)),
            ((2, 5, 3, 6), (1,)),
            ((2, 5, 70), (2,)),
            ((2, 5, 7), (1, 2)),
            ((3, 130), (1,)),
            ((7,), (0,)),
            ((1, 40, 41, 12), (1, 2)),
            ((2, 40, 41, 35), (1, 2)),
            ((1, 41, 43, 9), (1, 2, 3)),
            ((1, 3, 900, 21), (2,)),
            ((1, 97, 3), (0, 1, 2)),
        )
    ),
    Normalization(shape=(1, 250, 240, 3), activation="RELU"),
    *(Normalization(squares=s, applied=a) for s in SQUARES for a in APPLIED),
    *(Normalization(root=root, applied=a) for root in ROOTS[1:] for a in APPLIED),
    *(Normalization(affine=a, keep=keep) for a in ("", "computed") for keep in (True, False)),
    *(Normalization(centred=False, squares=s, axes=(3,)) for s in SQUARES[1:4]),
    *(Normalization(centred=False, squares="MUL", axes=axes) for axes in ((1, 2), (1, 2, 3))),
    Normalization(centred=False, squares="SQUARE", root="SQRT", applied="difference"),
    Normalization(centred=False, squares="MUL", shape=(1, 50, 50, 7)),
    *(
        Normalization(centred=False, squares="MUL", shape=(*lead, 12, 16), axes=(-1,), viewed=True)
        for lead in ((1,), (1, 1), (1, 3))
    ),
    *(Normalization(residual=True, activation=a) for a in ("NONE", "RELU6")),
    Normalization(activation="LOGISTIC", shape=(1, 9, 9, 3)),
    Normalization(shape=(1, 40, 41, 12), residual=True, affine="computed"),
    *(FarFromZero(shape=shape) for shape in ((1, 20, 30, 5), (1, 60, 61, 5))),
    FarFromZero(shape=(2, 9, 130), axes=(2,)),
)
