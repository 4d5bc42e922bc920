"""Maps between coordinates of a picture and of a model's input."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from litegpu.errors import OptionsError

CROP, STRETCH, LETTERBOX = "crop", "stretch", "letterbox"
FITS = (CROP, STRETCH, LETTERBOX)
"""The methods to fit a picture to an input's shape: crop, stretch, or letterbox."""

Region = tuple[int, int, int, int]
"""A region (left, top, right, bottom) in pixels of a picture; right and bottom are exclusive."""


@dataclass(frozen=True)
class Frame:
    """The rectangle of a picture that an input shows.

    With letterboxing, the rectangle exceeds the picture.
    """

    box: Region
    picture: tuple[int, int]
    """Width and height of the picture."""

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the rectangle."""
        left, top, right, bottom = self.box
        return right - left, bottom - top

    @property
    def visible(self) -> Region:
        """The part of the rectangle that is inside the picture."""
        left, top, right, bottom = self.box
        width, height = self.picture
        return max(left, 0), max(top, 0), min(right, width), min(bottom, height)

    def positions(self, points: NDArray[Any]) -> NDArray[np.float64]:
        """Convert points of the input to pixel coordinates of the picture, `[..., 2]` of x and y.

        Input points are `[..., 2]` of x and y, from 0 at the input's left and top to 1 at its right
        and bottom.
        """
        return np.asarray(points, np.float64) * self.size + self.box[:2]


def framed(
    picture: tuple[int, int], shape: tuple[int, int], fit: str, region: Region | None = None
) -> Frame:
    """Return the frame of an input; both sizes are (width, height).

    Args:
        picture: the size of the picture.
        shape: the size of the input; only its aspect ratio matters.
        fit: one of FITS.
        region: the part of the picture to use; None for the whole picture.
    """
    left, top, right, bottom = region or (0, 0, *picture)
    whole = (right - left, bottom - top)
    if fit == STRETCH:
        return Frame((left, top, right, bottom), picture)
    scales = [extent / size for extent, size in zip(whole, shape, strict=True)]
    scale = min(scales) if fit == CROP else max(scales)
    width, height = (max(round(size * scale), 1) for size in shape)
    left, top = left + (whole[0] - width) // 2, top + (whole[1] - height) // 2
    return Frame((left, top, left + width, top + height), picture)


def parse_region(text: str | None, picture: tuple[int, int]) -> Region | None:
    """Parse a region of a picture of this size from `LEFT,TOP,RIGHT,BOTTOM`.

    Raises:
        OptionsError: the text is not four integers, or the region is not inside the picture.
    """
    if text is None:
        return None
    words = text.split(",")
    width, height = picture
    if len(words) == 4 and all(word.strip().isdecimal() for word in words):
        left, top, right, bottom = map(int, words)
        if left < right <= width and top < bottom <= height:
            return left, top, right, bottom
    raise OptionsError(
        f"--region={text}: this is no part of a picture of {width}×{height} pixels. "
        f"Give LEFT,TOP,RIGHT,BOTTOM in pixels, such as --region=0,0,{width},{height}."
    )
