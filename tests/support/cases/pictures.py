"""Cases of picture preprocessing: selected, resized, gathered and mixed channels."""

from __future__ import annotations

from dataclasses import dataclass

from cases.base import Case, Pair, Range, Shape, Sheet
from litegpu.zoo.writer import TensorRef

BYTES = Range(0.0, 256.0, dtype="uint8")


def cut(
    sheet: Sheet, source: TensorRef, begin: Shape, end: Shape, step: Shape, masks: int = 0
) -> TensorRef:
    """Add a slice; `masks` are axes that it goes through to the end."""
    operands = [sheet.constant(each, "int32") for each in (begin, end, step)]
    options = {"end_mask": masks}
    return sheet.op("STRIDED_SLICE", [source, *operands], options, dtype="uint8")


def as_float(sheet: Sheet, source: TensorRef) -> TensorRef:
    """Add a cast of bytes."""
    return sheet.op("CAST", [source], {"in_data_type": "UINT8", "out_data_type": "FLOAT32"})


@dataclass(frozen=True, kw_only=True)
class ResizedBytes(Case):
    """Channels of bytes, from `first` on in steps, as floats of another size."""

    image: Shape = (2, 5, 4, 4)
    size: Pair = (9, 7)
    first: int = 0
    step: int = 1
    cuts: bool = True
    centers: bool = False

    def write(self, sheet: Sheet) -> None:
        """Cut, cast, resize and scale."""
        x = sheet.input(self.image, BYTES)
        if self.cuts:
            last = min(self.first + 3, self.image[3]) if self.step > 0 else 0
            through = 0b111 if self.step > 0 else 0b1111
            begin, end = (0, 0, 0, self.first), (0, 0, 0, last)
            x = cut(sheet, x, begin, end, (1, 1, 1, self.step), through)
        operands = [as_float(sheet, x), sheet.constant(self.size, "int32")]
        options = {"half_pixel_centers": self.centers}
        y = sheet.op("RESIZE_BILINEAR", operands, options, 3 if self.centers else 1)
        sheet.output(sheet.op("MUL", [y, sheet.constant(1 / 64)]))


@dataclass(frozen=True, kw_only=True)
class ApartColors(Case):
    """Y, and U and V of half its size, all in one value; `mixed` has them become other colours."""

    size: Pair = (4, 6)
    batch: int = 2
    mixed: int = 3

    def write(self, sheet: Sheet) -> None:
        """Cut, enlarge, join, cast, and multiply with a matrix."""
        height, width = self.size
        high = height * 3 // 2
        x = sheet.input((self.batch, high, width, 1), BYTES)
        ends, size = (self.batch, high, width, 1), sheet.constant(self.size, "int32")
        parts = [cut(sheet, x, (0, 0, 0, 0), (self.batch, height, width, 1), (1, 1, 1, 1))]
        for first in (0, 1):
            half = cut(sheet, x, (0, height, first, 0), ends, (1, 1, 2, 1))
            parts.append(sheet.op("RESIZE_NEAREST_NEIGHBOR", [half, size], dtype="uint8"))
        y = as_float(sheet, sheet.op("CONCATENATION", parts, {"axis": 3}, dtype="uint8"))
        if self.mixed:
            operands = [y, *sheet.operands((self.mixed, 1, 1, 3), "constant", "constant")]
            options = {"padding": "VALID", "stride_h": 1, "stride_w": 1}
            y = sheet.fused("CONV_2D", operands, "RELU", options)
        sheet.output(sheet.op("MUL", [y, sheet.constant(1 / 64)]))


CASES: tuple[Case, ...] = (
    ResizedBytes(),
    ResizedBytes(first=2, step=-1),
    ResizedBytes(first=2, step=-1, image=(1, 7, 9, 3), size=(3, 4), centers=True),
    ResizedBytes(first=1, image=(1, 3, 3, 2)),
    ResizedBytes(cuts=False, image=(3, 4, 5, 3)),
    ResizedBytes(cuts=False, image=(1, 4, 5, 7), size=(2, 3)),
    ResizedBytes(first=1, image=(1, 4, 5, 7)),
    ApartColors(),
    ApartColors(mixed=1),
    ApartColors(mixed=4, batch=1, size=(2, 10)),
    ApartColors(mixed=5),
    ApartColors(mixed=0),
)
