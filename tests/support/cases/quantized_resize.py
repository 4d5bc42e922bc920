"""Cases of RESIZE_BILINEAR of stored integers, equal to the CPU in every bit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from cases.base import EXACT, Case, Pair, Shape, Sheet
from cases.quantized import ORDINARY, Stored, quantization


@dataclass(frozen=True, kw_only=True)
class StoredResize(Case):
    """A bilinear resize to `size` (H, W)."""

    tolerance: ClassVar[float] = EXACT

    stored: str = "int8"
    shape: Shape = (2, 5, 4, 5)
    size: Pair = (9, 7)
    align_corners: bool = False
    half_pixel: bool = False

    def write(self, sheet: Sheet) -> None:
        """One input, one resize, one output."""
        params = quantization(sheet.random, self.stored, ORDINARY)
        options = {"align_corners": self.align_corners, "half_pixel_centers": self.half_pixel}
        x = sheet.input(self.shape, Stored(dtype=self.stored), params)
        inputs = [x, sheet.constant(self.size, "int32")]
        sheet.output(
            sheet.op(
                "RESIZE_BILINEAR",
                inputs,
                options,
                4 if self.stored == "int16" else 3,
                self.stored,
                params,
            )
        )


_SIZES = (
    ((2, 5, 4, 5), (9, 7)),
    ((1, 9, 7, 8), (4, 3)),
    ((1, 4, 3, 1), (32, 24)),
    ((3, 1, 1, 9), (3, 4)),
    ((1, 6, 8, 33), (1, 1)),
)
_FLAGS = ((False, False), (True, False), (False, True))

CASES: tuple[Case, ...] = tuple(
    StoredResize(stored=stored, shape=shape, size=size, align_corners=corners, half_pixel=centers)
    for stored in ("int8", "uint8", "int16")
    for shape, size in _SIZES
    for corners, centers in _FLAGS
)
