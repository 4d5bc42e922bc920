"""Cases of RESIZE_BILINEAR and RESIZE_NEAREST_NEIGHBOR."""

from __future__ import annotations

from dataclasses import dataclass

from cases.base import ANY, LARGE, TRUTH, Case, Pair, Range, Shape, Sheet
from cases.elementwise import HalfRange
from cases.integers import Edges
from litegpu.zoo.writer import TensorRef


@dataclass(frozen=True, kw_only=True)
class Resize(Case):
    """A resize to `size` (H, W); `corners` is align_corners, `centers` half_pixel_centers."""

    op: str = "RESIZE_BILINEAR"
    image: Shape = (1, 5, 4, 4)
    size: Pair = (9, 7)
    corners: bool = False
    centers: bool = False
    values: Range = ANY

    def resized(self, sheet: Sheet) -> TensorRef:
        """Add one input and one resize."""
        options = {"align_corners": self.corners, "half_pixel_centers": self.centers}
        inputs = [sheet.input(self.image, self.values), sheet.constant(self.size, "int32")]
        version = 3 if self.centers else 1
        return sheet.op(self.op, inputs, options, version, self.values.dtype)

    def write(self, sheet: Sheet) -> None:
        """One input, one resize, one output."""
        sheet.output(self.resized(sheet))


@dataclass(frozen=True, kw_only=True)
class ResizedArg(Resize):
    """The place of the largest or smallest of the channels of a resized image."""

    arg: str = "ARG_MAX"

    def write(self, sheet: Sheet) -> None:
        """One input, one resize, one place per pixel."""
        found = [self.resized(sheet), sheet.constant(3, "int32")]
        sheet.output(sheet.op(self.arg, found, {"output_type": "INT32"}, dtype="int32"))


_SIZES = (
    ((1, 5, 4, 4), (9, 7)),
    ((2, 9, 7, 5), (4, 3)),
    ((1, 4, 3, 6), (8, 9)),
    ((1, 5, 4, 3), (1, 1)),
    ((3, 1, 1, 9), (3, 4)),
    ((1, 5, 4, 1), (5, 9)),
    ((1, 5, 4, 2), (5, 4)),
)

CASES: tuple[Case, ...] = (
    *(
        Resize(op=op, image=image, size=size, corners=corners, centers=centers)
        for op in ("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR")
        for image, size in _SIZES
        for corners, centers in ((False, False), (True, False), (False, True))
    ),
    *(
        Resize(op="RESIZE_NEAREST_NEIGHBOR", image=image, size=size, corners=True, centers=True)
        for image, size in _SIZES
    ),
    *(
        Resize(op="RESIZE_NEAREST_NEIGHBOR", values=values, corners=corners)
        for values in (TRUTH, Edges(dtype="int32"), Edges(dtype="uint16"), HalfRange())
        for corners in (False, True)
    ),
    *(
        ResizedArg(arg=arg, image=image, size=size, corners=corners, centers=centers, items=items)
        for image, size, items in (
            ((1, 5, 4, 1), (7, 3), None),
            ((2, 3, 4, 3), (9, 7), None),
            ((1, 4, 3, 21), (4, 9), None),
            ((3, 3, 3, 70), (2, 2), LARGE),
        )
        for arg, corners, centers in (
            ("ARG_MAX", True, False),
            ("ARG_MAX", False, True),
            ("ARG_MIN", False, False),
        )
    ),
)
