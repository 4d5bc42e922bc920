"""Draws lines, dots and text that are visible on any picture and scaled to its size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from litegpu.wording import printable

if TYPE_CHECKING:
    from PIL import Image, ImageFont

Colour = tuple[int, int, int]
Point = tuple[float, float]
Box = tuple[float, float, float, float]
"""A box: left, top, right, bottom."""

DARK, LIGHT = (0, 0, 0), (255, 255, 255)
_COLOURS: tuple[Colour, ...] = (
    (230, 159, 0),
    (86, 180, 233),
    (0, 158, 115),
    (240, 228, 66),
    (0, 114, 178),
    (213, 94, 0),
    (204, 121, 167),
)
"""Okabe and Ito's palette, which is distinguishable with any kind of color blindness."""
_SHADES = ((1.0, 0.0), (0.55, 0.0), (0.5, 127.5))
"""Factor and addend for each repetition of the palette: unchanged, darker, lighter."""
_MIN_TEXT, _TEXT_SHARE = 11, 30
_THINNEST_LINE, _LINE_SHARE = 2, 150
_PADDING = 0.25
"""Padding around a text, relative to its size."""


def colour(number: int) -> Colour:
    """Return the color of a class or an object by its index; colors repeat after 21 indices."""
    factor, addend = _SHADES[number // len(_COLOURS) % len(_SHADES)]
    red, green, blue = (round(part * factor + addend) for part in _COLOURS[number % len(_COLOURS)])
    return red, green, blue


def palette(numbers: Sequence[int]) -> NDArray[np.uint8]:
    """Return the colors of several indices, `[len(numbers), 3]`."""
    return np.array([colour(number) for number in numbers], np.uint8).reshape(-1, 3)


def contrasting(background: Colour) -> Colour:
    """Return black or white, whichever has the higher contrast (by WCAG) to a background."""
    parts = [part / 255 for part in background]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    luminance = 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    return DARK if (luminance + 0.05) ** 2 > 1.05 * 0.05 else LIGHT


def text_size(size: tuple[int, int]) -> int:
    """Return the text height for a picture of this width and height."""
    return max(_MIN_TEXT, round(min(size) / _TEXT_SHARE))


def line_width(size: tuple[int, int]) -> int:
    """Return the line width for a picture of this width and height."""
    return max(_THINNEST_LINE, round(min(size) / _LINE_SHARE))


class Ink:
    """Draws on one picture in place."""

    def __init__(self, picture: Image.Image, like: tuple[int, int] | None = None) -> None:
        """Draw on an RGB picture; line and text sizes are those for the size `like`."""
        from PIL import ImageDraw, ImageFont

        self.size = picture.size
        self.text_size = text_size(like or picture.size)
        self.width = line_width(like or picture.size)
        self._draw = ImageDraw.Draw(picture)
        self._font: ImageFont.ImageFont | ImageFont.FreeTypeFont
        self._font = ImageFont.load_default(self.text_size)
        self._occupied: list[Box] = []

    @property
    def line_height(self) -> int:
        """The height of a line of text with its background."""
        return round(self.text_size * (1.2 + 2 * _PADDING))

    def length(self, text: str) -> float:
        """Return the width of a text."""
        return float(self._draw.textlength(text, font=self._font))

    def shortened(self, text: str, room: float) -> str:
        """Return a line of text with special characters escaped, truncated to this width."""
        text = printable(text)
        if self.length(text) <= room:
            return text
        while text and self.length(text + "…") > room:
            text = text[:-1]
        return text + "…"

    def text(self, position: Point, text: str, fill: Colour, anchor: str = "lm") -> None:
        """Draw text without a background; `anchor` is a Pillow text anchor."""
        self._draw.text(position, text, fill=fill, font=self._font, anchor=anchor)

    def area(self, box: Box, fill: Colour, outline: Colour | None = None) -> None:
        """Fill a rectangle."""
        self._draw.rectangle(box, fill=fill, outline=outline)

    def box(self, box: Box, fill: Colour) -> None:
        """Draw a rectangle whose lines have edges in a contrasting shade."""
        edge, width = contrasting(fill), self.width
        self._draw.rectangle(_grown(box, 1), outline=edge, width=width + 2)
        self._draw.rectangle(box, outline=fill, width=width)

    def line(self, start: Point, end: Point, fill: Colour) -> None:
        """Draw a line with a dark edge."""
        self._draw.line([start, end], fill=DARK, width=self.width + 2)
        self._draw.line([start, end], fill=fill, width=self.width)

    def dot(self, position: Point, fill: Colour, scale: float = 1.5) -> None:
        """Draw a dot with an edge in a contrasting shade."""
        (x, y), radius = position, max(self.width * scale, 1.0)
        box = (x - radius, y - radius, x + radius, y + radius)
        self._draw.ellipse(_grown(box, 1), fill=contrasting(fill))
        self._draw.ellipse(box, fill=fill)

    def label(self, box: Box, text: str, fill: Colour) -> None:
        """Draw a text with a background at a box, where it hides no other text.

        The method uses the first free position: above the box, inside at the top, or below the box.
        """
        room = self.size[0] - 1
        text = self.shortened(text, room - self.text_size)
        height = self.line_height
        width = self.length(text) + 2 * _PADDING * self.text_size
        left = min(max(box[0], 0), max(room - width, 0))
        tops = [box[1] - height, box[1], box[3] - height, box[3]]
        within = [min(max(top, 0), max(self.size[1] - height, 0)) for top in tops]
        spots = [(left, top, left + width, top + height) for top in within]
        free = [s for s in spots if not any(_overlap(s, other) for other in self._occupied)]
        spot = free[0] if free else spots[0]
        self._occupied.append(spot)
        self._draw.rectangle(spot, fill=fill)
        position = (left + _PADDING * self.text_size, spot[1] + height / 2)
        self.text(position, text, contrasting(fill))


def _grown(box: Box, by: float) -> Box:
    return box[0] - by, box[1] - by, box[2] + by, box[3] + by


def _overlap(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
