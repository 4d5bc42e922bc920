"""Models whose output is a picture: another style, more pixels, a depth map."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from litegpu.errors import ModelError
from litegpu.pictures.framing import Frame
from litegpu.tools.drawing.facts import ModelFacts
from litegpu.tools.drawing.finding import Evidence, Outputs, Scene
from litegpu.tools.drawing.masks import sums_to_one

if TYPE_CHECKING:
    from PIL import Image

Array = NDArray[Any]
_SMALLEST = 8
"""Minimum number of rows and columns of an output that counts as a picture."""
_SLACK = 0.05
_RANGES = ((0.0, 1.0), (-1.0, 1.0), (0.0, 255.0))
"""Possible values of black and white; the first range that contains all values is used."""


@dataclass(frozen=True)
class Painting:
    """A picture that a model computed from its input, `[H, W, 3]`."""

    pixels: NDArray[np.uint8]
    range: tuple[float, float]
    """The output values that are shown as black and white."""
    frame: Frame

    def draw(self, picture: Image.Image) -> Image.Image:
        """Return the part of the model's picture that shows `picture`, with its aspect ratio.

        The result has the size of that part of `picture`, or a larger size if the model's output
        has more pixels.
        """
        from PIL import Image

        image = Image.fromarray(self.pixels)
        (left, top, _, _), (width, height) = self.frame.box, self.frame.size
        finer = max(1.0, min(image.width / width, image.height / height))
        x0, y0, x1, y1 = self.frame.visible
        parts = [(x - left) / width * image.width for x in (x0, x1)]
        rows = [(y - top) / height * image.height for y in (y0, y1)]
        size = max(round((x1 - x0) * finer), 1), max(round((y1 - y0) * finer), 1)
        box = (parts[0], rows[0], parts[1], rows[1])
        return image.resize(size, Image.Resampling.BICUBIC, box=box)

    def table(self) -> tuple[Sequence[str], list[Sequence[str]]]:
        """Return one table row: the size, and the values of black and white."""
        height, width = self.pixels.shape[:2]
        low, high = self.range
        return ("image", ">black", ">white"), [(f"{width}×{height}", f"{low:g}", f"{high:g}")]

    def to_dict(self) -> dict[str, Any]:
        """Return the size, and the values of black and white, for JSON."""
        height, width = self.pixels.shape[:2]
        return {"image": {"width": width, "height": height, "range": list(self.range)}}

    def brief(self) -> str:
        """Return the size as a text."""
        return f"image of {self.pixels.shape[1]}×{self.pixels.shape[0]}"


def evidence(outputs: Outputs, facts: ModelFacts) -> Evidence | None:
    """Return why a model's output is recognized as a picture."""
    position = find(outputs)
    if position is None:
        return None
    values = outputs[position].values
    said = f"'{outputs[position].name}' is a map of {values.shape[1]}×{values.shape[2]}"
    if values.shape[3] == 1:
        return Evidence(False, f"{said} numbers")
    if sums_to_one(values):
        return None
    return Evidence(_range(values) in _RANGES, f"{said} with 3 numbers each")


def find(outputs: Outputs) -> int | None:
    """Return the index of the largest output that may be a picture, or None."""
    maps = [
        index
        for index, each in enumerate(outputs)
        if len(each.values.shape) == 4
        and each.values.shape[0] == 1
        and each.values.shape[3] in (1, 3)
        and min(each.values.shape[1:3]) >= _SMALLEST
        and each.values.dtype.kind in "fiu"
    ]
    return max(maps, key=lambda index: outputs[index].values.size, default=None)


def read(outputs: Outputs, scene: Scene) -> Painting:
    """Return the picture that the model outputs. NaN and infinite values become black.

    Raises:
        ModelError: no output can be a picture.
    """
    position = find(outputs)
    if position is None:
        raise ModelError(
            "No output of this model is a picture: [1, H, W, 1 or 3], at least "
            f"{_SMALLEST}×{_SMALLEST}. Choose another --task."
        )
    values = np.nan_to_num(outputs[position].values[0].astype(np.float64), posinf=0, neginf=0)
    low, high = _range(values)
    shades = ((values - low) / (high - low) * 255).round().clip(0, 255).astype(np.uint8)
    if shades.shape[2] == 1:
        shades = np.repeat(shades, 3, axis=2)
    return Painting(shades, (low, high), scene.frame)


def _range(values: Array) -> tuple[float, float]:
    """Return the values of black and white: a common range, else the minimum and maximum."""
    least, largest = float(values.min()), float(values.max())
    for low, high in _RANGES:
        slack = (high - low) * _SLACK
        if least >= low - slack and largest <= high + slack:
            return low, high
    return least, largest
