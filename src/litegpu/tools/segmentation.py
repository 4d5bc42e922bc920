"""A segmentation drawn over its picture, in the 21 classes of PASCAL VOC."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from PIL import Image

# fmt: off
CLASSES = (
    "background", "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair",
    "cow", "dining table", "dog", "horse", "motorbike", "person", "potted plant", "sheep", "sofa",
    "train", "TV monitor",
)
# fmt: on

OPACITY = 0.6
LEGEND_WIDTH = 190
LINE_HEIGHT = 24
MARGIN = 12
SMALLEST_SHARE = 0.001


def palette(size: int = 256) -> NDArray[np.uint8]:
    """Return PASCAL VOC's colours, `[size, 3]`.

    Bits 0, 3, 6 of a class number are the top bits of red, bits 1, 4, 7 those of green, bits 2, 5
    those of blue, so that neighbouring numbers get colours far apart.
    """
    colours = np.zeros((size, 3), np.uint8)
    for number in range(size):
        for bit in range(8):
            colours[number, bit % 3] |= (number >> bit & 1) << (7 - bit // 3)
    return colours


def class_map(scores: NDArray[Any]) -> NDArray[np.uint8]:
    """Return the best class of each pixel, `[H, W]`, from scores `[1, H, W, classes]`."""
    best: NDArray[np.uint8] = scores[0].argmax(axis=-1).astype(np.uint8)
    return best


def shares(classes: NDArray[np.uint8]) -> list[tuple[int, float]]:
    """Return (class, share of the pixels), largest first, without classes that hardly occur."""
    numbers, counts = np.unique(classes, return_counts=True)
    found = [
        (int(number), float(count) / classes.size)
        for number, count in zip(numbers, counts, strict=True)
    ]
    return sorted([item for item in found if item[1] >= SMALLEST_SHARE], key=lambda item: -item[1])


def class_name(number: int) -> str:
    """Return the name of a class of PASCAL VOC."""
    return CLASSES[number] if number < len(CLASSES) else f"class {number}"


def draw(picture: Image.Image, classes: NDArray[np.uint8]) -> Image.Image:
    """Return `picture` under the colours of `classes`, scaled to fit, with a legend beside it."""
    from PIL import Image

    mask = Image.fromarray(classes).resize(picture.size, Image.Resampling.NEAREST)
    numbers = np.asarray(mask)
    strength = np.where(numbers == 0, 0.0, OPACITY)[..., None]
    blended = np.asarray(picture) * (1 - strength) + palette()[numbers] * strength
    canvas = Image.new("RGB", (picture.width + LEGEND_WIDTH, picture.height), "white")
    canvas.paste(Image.fromarray(blended.astype(np.uint8)))
    _draw_legend(canvas, picture.width + MARGIN, shares(classes))
    return canvas


def _draw_legend(canvas: Image.Image, left: int, found: list[tuple[int, float]]) -> None:
    from PIL import ImageDraw, ImageFont

    drawing, font = ImageDraw.Draw(canvas), ImageFont.load_default(14)
    colours = palette()
    for row, (number, share) in enumerate(found):
        top = MARGIN + row * LINE_HEIGHT
        box = (left, top, left + LINE_HEIGHT - 8, top + LINE_HEIGHT - 8)
        fill = tuple(map(int, colours[number])) if number else "white"
        drawing.rectangle(box, fill=fill, outline="black")
        text = f"{class_name(number)}  {share:.1%}"
        drawing.text((left + LINE_HEIGHT, top - 1), text, fill="black", font=font)
