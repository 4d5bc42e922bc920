"""Samples a part of a picture, which may be rotated, at the size of a model's input."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from litegpu.errors import TaskError
from litegpu.tasks.components.containers.rect import NormalizedRect
from litegpu.tasks.vision.core.image import Image, ImageFormat
from litegpu.tasks.vision.core.image_processing_options import ImageProcessingOptions

Bytes = NDArray[np.uint8]
Size = tuple[int, int]
"""Width and height."""

WHOLE = NormalizedRect(0.5, 0.5, 1.0, 1.0, 0.0)
_STEPS = 32
"""Number of steps to which positions between two pixels are rounded."""
_BITS = 5
_HALF = _STEPS * _STEPS // 2


@dataclass(frozen=True)
class Region:
    """A rotated rectangle in pixels of a picture; `rotation` is in radians, clockwise."""

    x: float
    y: float
    width: float
    height: float
    rotation: float

    @staticmethod
    def of(rect: NormalizedRect, picture: Size) -> Region:
        """Return the region, in pixels, of a rectangle that is relative to a picture."""
        width, height = picture
        return Region(
            rect.x_center * width,
            rect.y_center * height,
            rect.width * width,
            rect.height * height,
            rect.rotation or 0.0,
        )

    def padded(self, size: Size) -> Region:
        """Return the smallest region around this one that has the aspect ratio of `size`."""
        ratio = size[1] / size[0]
        if ratio > self.height / self.width:
            return replace(self, height=self.width * ratio)
        return replace(self, width=self.height / ratio)

    def matrix(self) -> NDArray[np.float64]:
        """Return the 2x3 matrix from points of the region (0 to 1) to pixels of the picture."""
        cosine, sine = math.cos(self.rotation), math.sin(self.rotation)
        right = np.array([cosine, sine]) * self.width
        down = np.array([-sine, cosine]) * self.height
        return np.column_stack([right, down, np.array([self.x, self.y]) - (right + down) / 2])


def rect_of(options: ImageProcessingOptions | None, picture: Size, regions: bool) -> NormalizedRect:
    """Return the rectangle of the picture that the options select.

    `regions` is whether the task accepts a region.

    Raises:
        TaskError: the rotation or the region is invalid, or the task accepts no region.
    """
    if options is None:
        return WHOLE
    degrees = options.rotation_degrees
    if degrees % 90:
        raise TaskError(f"rotation_degrees is {degrees}. Use a multiple of 90.")
    x, y, width, height = 0.5, 0.5, 1.0, 1.0
    if (roi := options.region_of_interest) is not None:
        if not regions:
            raise TaskError(
                "This task takes no region_of_interest: it looks at the whole picture. Crop the "
                "picture instead."
            )
        if not (0 <= roi.left < roi.right <= 1 and 0 <= roi.top < roi.bottom <= 1):
            raise TaskError(
                f"The region of interest is {roi}. Give sides from 0 to 1, left before right and "
                "top before bottom."
            )
        x, y = (roi.left + roi.right) / 2, (roi.top + roi.bottom) / 2
        width, height = roi.right - roi.left, roi.bottom - roi.top
    if degrees % 180:  # sides are those before the rotation
        ratio = picture[1] / picture[0]
        width, height = height * ratio, width / ratio
    return NormalizedRect(x, y, width, height, -math.radians(degrees))


def rgb(image: Image) -> Bytes:
    """Return the red, green and blue bytes of a picture, `[height, width, 3]`.

    Raises:
        TaskError: the picture's values are not bytes.
    """
    pixels = image.numpy_view()
    if image.image_format == ImageFormat.SRGB:
        return pixels
    if image.image_format == ImageFormat.SRGBA:
        return np.ascontiguousarray(pixels[:, :, :3])
    if image.image_format == ImageFormat.SBGRA:
        return np.ascontiguousarray(pixels[:, :, 2::-1])
    if image.image_format == ImageFormat.GRAY8:
        return np.repeat(pixels.reshape(*pixels.shape[:2], 1), 3, axis=2)
    raise TaskError(
        f"The image has the format {image.image_format.name}. Give SRGB, SRGBA, SBGRA or GRAY8."
    )


def sampled(pixels: Bytes, region: Region, size: Size, *, zeros: bool = False) -> Bytes:
    """Return a region of a picture resampled to `size`, with bilinear interpolation.

    Positions are rounded to a 32nd of a pixel and results to bytes, as OpenCV does. Pixels outside
    of the picture are the nearest edge pixels or, with `zeros`, 0.
    """
    height, width = pixels.shape[:2]
    right, down, start = region.matrix().T
    if size == (width, height) and region == Region(width / 2, height / 2, width, height, 0):
        return pixels
    steps = np.arange(size[0]) * (_STEPS / size[0]), np.arange(size[1]) * (_STEPS / size[1])
    x, y = (_positions(start[axis], right[axis], down[axis], *steps) for axis in (0, 1))
    tx, ty = x & (_STEPS - 1), y & (_STEPS - 1)
    x, y = x >> _BITS, y >> _BITS
    flat = pixels.reshape(-1, pixels.shape[2])
    corners = []
    for across, weight_x in ((x, _STEPS - tx), (x + 1, tx)):
        if zeros:
            weight_x = np.where((across >= 0) & (across < width), weight_x, 0)
        column = np.clip(across, 0, width - 1)
        for along, weight_y in ((y, _STEPS - ty), (y + 1, ty)):
            if zeros:
                weight_y = np.where((along >= 0) & (along < height), weight_y, 0)
            place = np.clip(along, 0, height - 1) * width + column
            corners.append((flat.take(place, 0), weight_x * weight_y))
    found = np.empty((size[1], size[0], pixels.shape[2]), np.uint8)
    for channel in range(pixels.shape[2]):  # one at a time: inner loops over three values are slow
        total = np.full(found.shape[:2], _HALF, np.int32)
        for values, weights in corners:
            total += values[:, :, channel] * weights
        found[:, :, channel] = total >> (2 * _BITS)
    return found


def _positions(
    start: float, right: float, down: float, columns: NDArray[Any], rows: NDArray[Any]
) -> NDArray[np.int32]:
    """Return the x or y of each pixel in steps.

    The shape is `[rows, columns]`, with size 1 along an axis without change.
    """
    found = np.full((1, 1), start * _STEPS)
    if right:
        found = found + columns * right
    if down:
        found = found + rows[:, np.newaxis] * down
    rounded: NDArray[np.int32] = np.rint(found).astype(np.int32)
    return rounded
