"""Segmentation masks: the class of each pixel, drawn over the picture with a legend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from litegpu.errors import ModelError
from litegpu.pictures.framing import Frame
from litegpu.tools.drawing.anchors import sigmoid
from litegpu.tools.drawing.facts import ModelFacts
from litegpu.tools.drawing.finding import Evidence, Outputs, Scene
from litegpu.tools.drawing.ink import DARK, LIGHT, Ink, colour, palette
from litegpu.tools.drawing.names import has_background, name_of, pixel_names

if TYPE_CHECKING:
    from PIL import Image

Array = NDArray[Any]
OPACITY = 0.6
LEGEND_LETTERS = 12
"""Width of the legend relative to the text height."""
_MIN_SHARE = 0.001
_MAX_CLASSES = 512
"""Maximum number of channels of class scores; an output with more channels contains features."""
_NOT_SEEN = 255
"""The value of pixels outside the model input's frame in a map of classes."""


@dataclass(frozen=True)
class Masks:
    """A segmentation map: the class of each cell, `[H, W]`."""

    classes: NDArray[np.int32]
    names: tuple[str, ...]
    frame: Frame

    def draw(self, picture: Image.Image) -> Image.Image:
        """Return `picture` with the colors of the classes, and a legend on the right."""
        from PIL import Image

        known = np.unique(self.classes)
        positions = np.searchsorted(known, self.classes) % _NOT_SEEN
        over = self._over_picture(positions.astype(np.uint8), _NOT_SEEN)
        opacity = [0 if number == self._background else round(255 * OPACITY) for number in known]
        opacity = [*opacity[:_NOT_SEEN], *[0] * (256 - len(opacity[:_NOT_SEEN]))]
        colours = over.copy()
        colours.putpalette(palette(known[:_NOT_SEEN].tolist()).tobytes())
        blended = Image.composite(colours.convert("RGB"), picture, over.point(opacity))
        blended.paste(DARK, mask=_edges(over))
        side = Ink(picture.copy())
        canvas = Image.new(
            "RGB", (picture.width + LEGEND_LETTERS * side.text_size, picture.height), LIGHT
        )
        canvas.paste(blended)
        self._draw_legend(Ink(canvas, picture.size), picture.width)
        return canvas

    def _over_picture(self, values: NDArray[np.uint8], elsewhere: int) -> Image.Image:
        """Return values of the map's cells, resampled to the picture, as a gray image."""
        from PIL import Image

        whole = Image.new("L", self.frame.picture, elsewhere)
        part = Image.fromarray(values).resize(self.frame.size, Image.Resampling.NEAREST)
        whole.paste(part, self.frame.box[:2])
        return whole

    def shares(self) -> list[tuple[int, float]]:
        """Return (class, fraction of the visible pixels), sorted by descending fraction.

        Rare classes are omitted.
        """
        seen = self._seen()
        numbers, counts = np.unique(seen, return_counts=True)
        found = [
            (int(number), float(count) / seen.size)
            for number, count in zip(numbers, counts, strict=True)
        ]
        return sorted([item for item in found if item[1] >= _MIN_SHARE], key=lambda item: -item[1])

    def table(self) -> tuple[Sequence[str], list[Sequence[str]]]:
        """Return the headings, and a row for each class."""
        return ("class", ">share of the picture"), [
            (name_of(self.names, number), f"{share:.1%}") for number, share in self.shares()
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return the fraction of each class for JSON."""
        return {
            "segments": [
                {"class": number, "name": name_of(self.names, number), "share": share}
                for number, share in self.shares()
            ]
        }

    def brief(self) -> str:
        """Return the largest classes with their fractions."""
        return ", ".join(f"{name_of(self.names, n)} {share:.0%}" for n, share in self.shares()[:3])

    @property
    def _background(self) -> int:
        """The class that is drawn without a color; -1 for no class."""
        return 0 if has_background(self.names) else -1

    def _seen(self) -> NDArray[np.int32]:
        """Return the cells of the map that show the picture, without letterbox padding."""
        height, width = self.classes.shape
        (left, top, _, _), size = self.frame.box, self.frame.size
        x0, y0, x1, y1 = self.frame.visible
        columns = [round((x - left) / size[0] * width) for x in (x0, x1)]
        rows = [round((y - top) / size[1] * height) for y in (y0, y1)]
        seen = self.classes[rows[0] : rows[1], columns[0] : columns[1]]
        return seen if seen.size else self.classes

    def _draw_legend(self, ink: Ink, left: int) -> None:
        margin = ink.text_size // 2
        room = (LEGEND_LETTERS - 3) * ink.text_size
        for row, (number, share) in enumerate(self.shares()):
            middle = margin + (row + 0.5) * ink.line_height
            half = ink.text_size / 2
            fill = LIGHT if number == self._background else colour(number)
            box = (left + margin, middle - half, left + margin + 2 * half, middle + half)
            ink.area(box, fill, outline=DARK)
            percent = f"  {share:.1%}"
            name = ink.shortened(name_of(self.names, number), room - ink.length(percent))
            ink.text((left + margin + 3 * half, middle), name + percent, DARK)


def _edges(over: Image.Image) -> Image.Image:
    """Return a mask of the pixels whose right or lower neighbor has another class."""
    from PIL import Image

    numbers = np.asarray(over)
    found = np.zeros(numbers.shape, bool)
    found[:, :-1] |= numbers[:, :-1] != numbers[:, 1:]
    found[:-1] |= numbers[:-1] != numbers[1:]
    return Image.fromarray(found)


def evidence(outputs: Outputs, facts: ModelFacts) -> Evidence | None:
    """Return why a model outputs a class for each pixel."""
    position = find(outputs)
    if position is None:
        return None
    values = outputs[position].values
    height, width = values.shape[1:3]
    channels = _channels(values)
    said = f"'{outputs[position].name}' is a map of {height}×{width}"
    if values.dtype.kind in "iu":
        return Evidence(channels == 0, f"{said} whole numbers")
    if channels == 1:
        sure = facts.is_probability(position) or bool(values.min() >= 0 and values.max() <= 1)
        return Evidence(sure, f"{said} {'probabilities' if sure else 'numbers'}")
    if channels == 3 and not sums_to_one(values):
        return Evidence(False, f"{said} with 3 numbers each") if not _bounded(values) else None
    whole = (width, height) == facts.input_size or sums_to_one(values)
    return Evidence(whole, f"{said} with scores of {channels} classes")


def read(outputs: Outputs, scene: Scene) -> Masks:
    """Return the class of each pixel.

    Raises:
        ModelError: no output is a map of classes or scores.
        FileError: the number of lines of the user's labels file differs from the number of classes.
    """
    position = find(outputs)
    if position is None:
        raise ModelError(
            "No output of this model is a map of classes, [1, H, W], or of their scores, "
            "[1, H, W, classes]. Choose another --task."
        )
    values = outputs[position].values
    channels = _channels(values)
    if channels == 0:
        classes = values.reshape(values.shape[1:3]).astype(np.int32)
        known = scene.facts.read_by(position) if scene.facts.op_of(position) == "ARG_MAX" else ()
        count = known[-1] if known else 0
    elif channels == 1:
        plane = values[0, :, :, 0].astype(np.float64) if values.ndim == 4 else values[0]
        likely = (
            plane
            if scene.facts.is_probability(position) or (plane.min() >= 0 and plane.max() <= 1)
            else sigmoid(plane)
        )
        classes, count = (likely >= scene.min_score).astype(np.int32), 1
    else:
        classes, count = values[0].argmax(axis=-1).astype(np.int32), channels
    return Masks(classes, pixel_names(scene, count), scene.frame)


def find(outputs: Outputs) -> int | None:
    """Return the index of the output with the finest map of classes or scores, or None."""
    maps = [
        index
        for index, each in enumerate(outputs)
        if _is_map(each.values.shape) and each.values.dtype.kind in "fiu"
    ]
    return max(maps, key=lambda index: outputs[index].values.shape[1], default=None)


def _is_map(shape: tuple[int, ...]) -> bool:
    if len(shape) not in (3, 4) or shape[0] != 1 or min(shape[1:3]) < 2:
        return False
    return shape[3] <= _MAX_CLASSES if len(shape) == 4 else shape[2] > _NARROW


_NARROW = 18
"""Maximum number of values per row of an output `[1, N, values]` that is not a map."""


def _channels(values: Array) -> int:
    """Return the number of scores per cell; 0 if a cell contains the class index."""
    channels = values.shape[3] if values.ndim == 4 else 1
    return 0 if channels == 1 and values.dtype.kind in "iu" else channels


def sums_to_one(values: Array) -> bool:
    """Return whether the channels of each cell are nonnegative and sum to 1."""
    sums = values.astype(np.float64).sum(-1)
    return bool(values.min() >= 0 and np.abs(sums - 1).max() < _DISTRIBUTION_ERROR)


_DISTRIBUTION_ERROR = 0.02


def _bounded(values: Array) -> bool:
    """Return whether all values may be pixel values."""
    return bool(values.min() >= -1.05 and values.max() <= 255.5)
