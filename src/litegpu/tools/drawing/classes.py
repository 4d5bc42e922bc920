"""The top classes of a classifier, drawn as bars below the picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from litegpu.errors import ModelError
from litegpu.runtime_abi.interpreter import Output
from litegpu.tools.drawing.facts import ModelFacts
from litegpu.tools.drawing.finding import Evidence, Outputs, Scene
from litegpu.tools.drawing.ink import DARK, LIGHT, Ink, colour
from litegpu.tools.labels import find_labels
from litegpu.tools.results import TOP_COLUMNS, best_classes, class_count, top_rows

if TYPE_CHECKING:
    from PIL import Image

_NAME_SHARE = 0.45
"""Fraction of the width for the class names."""
_ROWS = 5


@dataclass(frozen=True)
class Classes:
    """The classes with the highest scores, each (index, score), and the names of all classes."""

    best: tuple[tuple[int, float], ...]
    labels: list[str]

    def draw(self, picture: Image.Image) -> Image.Image:
        """Return the picture with a bar for each class below it."""
        from PIL import Image

        line = Ink(picture.copy()).line_height
        canvas = Image.new("RGB", (picture.width, picture.height + (_ROWS + 1) * line), LIGHT)
        canvas.paste(picture)
        ink = Ink(canvas, picture.size)
        scores = [score for _, score in self.best]
        low = 0.0 if min(scores, default=0) >= 0 else min(scores)
        high = max(1.0 if low == 0 else low, *scores, low + 1e-12)
        margin, start = line / 2, round(picture.width * _NAME_SHARE)
        room = picture.width - start - margin - ink.length("0.0000 ")
        for row, (number, score) in enumerate(self.best):
            middle = picture.height + (row + 1) * line
            name = self.labels[number] if self.labels else f"class {number}"
            ink.text((margin, middle), ink.shortened(name, start - 1.5 * margin), DARK)
            end = start + max(room, 1) * (score - low) / (high - low)
            ink.area((start, middle - line / 3, max(end, start + 1), middle + line / 3), colour(4))
            ink.text((end + margin / 2, middle), f"{score:.4f}", DARK)
        return canvas

    def table(self) -> tuple[Sequence[str], list[Sequence[str]]]:
        """Return the headings, and a row for each class."""
        return TOP_COLUMNS, list(top_rows(self.best, self.labels))

    def to_dict(self) -> dict[str, Any]:
        """Return the classes, the highest score first, for JSON."""
        return {
            "classes": [
                {"class": each, "score": score, "name": self.labels[each] if self.labels else ""}
                for each, score in self.best
            ]
        }

    def brief(self) -> str:
        """Return the best class."""
        if not self.best:
            return "no class"
        number, score = self.best[0]
        return f"{self.labels[number] if self.labels else f'class {number}'} {score:.2f}"


def evidence(outputs: Outputs, facts: ModelFacts) -> Evidence | None:
    """Return why a model is a classifier."""
    position = find(outputs)
    if position is None:
        return None
    why = f"'{outputs[position].name}' is a vector of {outputs[position].values.size} numbers"
    return Evidence(bool(class_count(list(outputs))), why)


def find(outputs: Outputs) -> int | None:
    """Return the index of the longest output vector; None if no output is a vector."""
    vectors = [
        index
        for index, each in enumerate(outputs)
        if each.values.size >= 2 and max(each.values.shape) == each.values.size
    ]
    return max(vectors, key=lambda index: outputs[index].values.size, default=None)


def read(outputs: Outputs, scene: Scene) -> Classes:
    """Return the best classes.

    Raises:
        ModelError: no output is a vector of scores.
        FileError: the number of lines of the user's labels file differs from the number of classes.
    """
    position = find(outputs)
    if position is None:
        raise ModelError(
            "No output of this model is a vector with a score for each class. "
            "Choose another --task."
        )
    scores: Output = outputs[position]
    count = scores.values.size
    labels = scene.remembered(
        "classes",
        count,
        lambda: find_labels(scene.named, scene.content, count, scene.facts.label_files),
    )
    return Classes(tuple(best_classes(scores)), labels)
