"""Convolutions of padded, upsampled and strided images."""

from __future__ import annotations

from dataclasses import dataclass

from cases.base import LARGE, SMALL, Case, Pair, Shape, Sheet, Windowed
from litegpu.zoo.writer import TensorRef

_NONE = ((0, 0), (0, 0))


@dataclass(frozen=True, kw_only=True)
class View(Windowed):
    """RESIZE_NEAREST_NEIGHBOR, MIRROR_PAD or PAD, and convolutions that read the result."""

    image: Shape = (2, 7, 6, 5)
    filters: int = 6
    padding: str = "VALID"
    zoom: Pair = (1, 1)
    half_pixel: bool = False
    mode: str = "REFLECT"
    """REFLECT or SYMMETRIC; "" for zeros."""
    border: tuple[Pair, Pair] = _NONE
    readers: int = 1

    def write(self, sheet: Sheet) -> None:
        """One input, what changes it, one output for each convolution."""
        seen = self._enlarged(sheet, sheet.input(self.image))
        if self.border != _NONE:
            pads = sheet.constant(((0, 0), *self.border, (0, 0)), "int32")
            if self.mode:
                seen = sheet.op("MIRROR_PAD", [seen, pads], {"mode": self.mode})
            else:
                seen = sheet.op("PAD", [seen, pads])
        shape = (self.filters, *self.kernel, self.image[3])
        for _ in range(self.readers):
            operands = sheet.operands(shape, "constant", "constant")
            sheet.output(sheet.fused("CONV_2D", [seen, *operands], "RELU", self.window()))

    def _enlarged(self, sheet: Sheet, image: TensorRef) -> TensorRef:
        if self.zoom == (1, 1):
            return image
        size = [self.image[1] * self.zoom[0], self.image[2] * self.zoom[1]]
        flags = {"align_corners": False, "half_pixel_centers": self.half_pixel}
        return sheet.op("RESIZE_NEAREST_NEIGHBOR", [image, sheet.constant(size, "int32")], flags)


@dataclass(frozen=True, kw_only=True)
class Apart(Case):
    """A convolution of pixels that lie apart, in an image that is needed whole as well."""

    image: Shape = (2, 7, 9, 8)
    step: Pair = (2, 2)
    begin: Pair = (0, 0)
    filters: int = 6
    kernel: Pair = (1, 1)

    def write(self, sheet: Sheet) -> None:
        """One input; its absolute values and the convolution of a slice of them are outputs."""
        whole = sheet.op("ABS", [sheet.input(self.image)])
        operands = [
            sheet.constant(each, "int32")
            for each in ((0, *self.begin, 0), self.image, (1, *self.step, 1))
        ]
        part = sheet.op("STRIDED_SLICE", [whole, *operands])
        weights = sheet.operands(
            (self.filters, *self.kernel, self.image[3]), "constant", "constant"
        )
        options = {"padding": "SAME", "stride_h": 1, "stride_w": 1}
        sheet.output(sheet.fused("CONV_2D", [part, *weights], "RELU", options))
        sheet.output(whole)


_BORDER = ((1, 2), (2, 1))

CASES: tuple[Case, ...] = (
    *(View(image=(1, 5, 4, c), filters=10 - c, border=_BORDER) for c in range(1, 10)),
    *(
        View(mode=mode, border=border, kernel=kernel, items=items)
        for items in (SMALL, LARGE)
        for mode in ("REFLECT", "SYMMETRIC")
        for border, kernel in (
            (((4, 4), (3, 3)), (7, 5)),
            (((0, 0), (2, 0)), (1, 3)),
            (((6, 0), (0, 5)), (2, 4)),
        )
    ),
    View(border=_BORDER, stride=(2, 2), dilation=(2, 1)),
    View(border=_BORDER, readers=2),
    View(border=_BORDER, padding="SAME"),
    View(border=((2, 2), (2, 2)), kernel=(1, 1), padding="SAME"),
    *(
        View(image=image, border=((0, 1), (0, 2)), kernel=(1, 1), mode=mode)
        for mode in ("REFLECT", "SYMMETRIC", "")
        for image in ((2, 7, 6, 5), (1, 7, 6, 72))
    ),
    *(
        View(zoom=zoom, border=border, mode=mode, padding=padding, items=items)
        for items in (SMALL, LARGE)
        for zoom in ((2, 2), (3, 1))
        for border, mode, padding in (
            (_NONE, "", "SAME"),
            (_BORDER, "REFLECT", "VALID"),
            (_BORDER, "", "VALID"),
        )
    ),
    View(zoom=(2, 3), half_pixel=True, kernel=(1, 1)),
    View(zoom=(1, 4), stride=(2, 3), padding="SAME"),
    View(image=(1, 2, 3, 72), filters=3, zoom=(2, 2), padding="SAME", items=LARGE),
    # Sizes that tensor cores are for
    *(
        View(image=image, filters=filters, kernel=kernel, border=border, zoom=zoom, items=SMALL)
        for image, filters, kernel, border, zoom in (
            ((1, 40, 41, 8), 8, (9, 9), ((4, 4), (4, 4)), (1, 1)),
            ((1, 20, 25, 16), 16, (5, 5), ((2, 2), (2, 2)), (2, 2)),
            ((2, 13, 12, 3), 12, (7, 7), ((3, 3), (3, 3)), (1, 1)),
            ((2, 9, 8, 72), 65, (3, 3), ((1, 1), (1, 1)), (1, 2)),
        )
    ),
    *(
        Apart(image=(2, 7, 9, c), step=step, begin=begin, kernel=kernel, filters=filters)
        for c, step, begin, kernel, filters in (
            (8, (2, 2), (0, 0), (1, 1), 6),
            (5, (2, 2), (0, 0), (3, 3), 8),
            (16, (1, 3), (1, 2), (1, 1), 16),
            (8, (3, 1), (2, 0), (3, 2), 5),
        )
    ),
    Apart(image=(2, 24, 26, 32), kernel=(3, 3), filters=40, items=SMALL),
    Apart(image=(1, 40, 42, 8), kernel=(5, 5), filters=8, items=SMALL),
)
