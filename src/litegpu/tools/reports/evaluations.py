"""Report sections about evaluations with pictures: curves, confusions, worst examples."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from litegpu.tools.drawing.ink import Ink
from litegpu.tools.evaluation.average_precision import (
    IOU_THRESHOLDS,
    RECALLS,
    AveragePrecision,
    Detection,
    average_precision,
)
from litegpu.tools.evaluation.preprocessing import decode_jpeg
from litegpu.tools.reports.accuracy import curve, gallery
from litegpu.tools.reports.charts import bars
from litegpu.tools.reports.sections import Picture, Section, Table

if TYPE_CHECKING:
    from PIL import Image

_EXAMPLES = 12
_SIDE = 320
"""The longer side of an example, in pixels."""
_QUALITY = 80
_MAX_ROWS, _MAX_BARS = 40, 100
_CURVES = (0.5, 0.75, 0.9)
_THERE, _FOUND = (0, 158, 115), (213, 94, 0)
"""The colors of boxes: green for the ground truth, orange for detections."""
_SURE = 0.5
"""The minimum score of the boxes in examples."""


@dataclass(frozen=True)
class Guessed:
    """A classified picture: the true class, and the predicted class."""

    path: str
    truth: str
    guess: str
    score: float


def classification_sections(
    accuracies: Sequence[float], guesses: Sequence[Guessed]
) -> Iterator[Section]:
    """Yield sections with top-k accuracies, confusions, and the errors with the highest scores."""
    points = [(float(rank), each) for rank, each in enumerate(accuracies, 1)]
    yield curve(
        *("Accuracy", {"accuracy": points}, "k", "part of the pictures"),
        note="A picture is right at k if its class is among the model's k best classes.",
    )
    wrong = [each for each in guesses if each.guess != each.truth]
    confusions = Counter((each.truth, each.guess) for each in wrong)
    yield Table(
        "Confusions",
        ("what is there", "what the model says", ">pictures"),
        [(*names, str(count)) for names, count in confusions.most_common(_MAX_ROWS)],
        note="The most frequent confusions.",
    )
    surest = sorted(wrong, key=lambda each: -each.score)
    yield from _gallery(
        (
            (each.path, f"says: {each.guess} ({each.score:.3g}); is: {each.truth}", ())
            for each in surest
        ),
        "The errors with the highest scores.",
    )


def detection_sections(
    precision: AveragePrecision,
    labels: Sequence[str],
    pictures: Sequence[tuple[str, Sequence[Detection], Sequence[Detection]]],
) -> Iterator[Section]:
    """Yield sections with precision over IoU, recall and class, and the worst pictures.

    Args:
        precision: the figures of all pictures.
        labels: the names of the classes.
        pictures: the path, true objects, and detected objects of each picture.
    """
    yield curve(
        *("Average precision", {"AP": precision.at}, "minimum overlap", "AP"),
        note=f"Their mean, the overall mAP, is {precision.overall:.4g}.",
    )
    rows = zip(IOU_THRESHOLDS, precision.precisions, strict=False)
    yield curve(
        "Precision and recall",
        {
            f"overlap {threshold:.2f}": list(zip(RECALLS, row, strict=True))
            for threshold, row in rows
            if any(abs(threshold - each) < 1e-3 for each in _CURVES)
        },
        *("recall", "precision"),
        note="The mean over the classes; the area below a curve is the AP at that overlap.",
    )
    ranked = sorted(precision.classes.items(), key=lambda pair: -pair[1])
    names = [labels[each] for each, _ in ranked[:_MAX_BARS]]
    rest = len(ranked) - len(names)
    yield bars(
        *("Average precision by class", names, [value for _, value in ranked[:_MAX_BARS]], "AP"),
        note=f"{rest} classes with lower values are not shown." * bool(rest),
    )
    worst = sorted((average_precision([each[1:]]).overall, each) for each in pictures if each[1])
    yield from _gallery(
        (
            (path, f"AP {value:.3f}", (truth, [each for each in found if each.score >= _SURE]))
            for value, (path, truth, found) in worst
        ),
        f"The pictures with the lowest average precision: green is the ground truth, orange are "
        f"detections with a score of at least {_SURE:g}.",
    )


_Boxes = tuple[()] | tuple[Sequence[Detection], Sequence[Detection]]


def _gallery(examples: Iterable[tuple[str, str, _Boxes]], note: str) -> Iterator[Section]:
    """Yield the first examples as pictures; files of raw bytes are skipped."""
    shown = [
        Picture(Path(path).name, _thumbnail(path, boxes), caption, "jpeg")
        for (path, caption, boxes), _ in zip(
            (each for each in examples if not each[0].lower().endswith(".rgb8")),
            range(_EXAMPLES),
            strict=False,
        )
    ]
    if shown:
        yield gallery("Worst examples", shown, note)


def _thumbnail(path: str, boxes: _Boxes) -> bytes:
    from PIL import Image

    picture = Image.fromarray(decode_jpeg(path))
    picture.thumbnail((_SIDE, _SIDE))
    for objects, colour in zip(boxes, (_THERE, _FOUND), strict=False):
        _draw(picture, objects, colour)
    target = io.BytesIO()
    picture.save(target, "JPEG", quality=_QUALITY)
    return target.getvalue()


def _draw(picture: Image.Image, objects: Sequence[Detection], colour: tuple[int, int, int]) -> None:
    ink, (width, height) = Ink(picture), picture.size
    for each in objects:
        top, left, bottom, right = (min(max(edge, 0.0), 1.0) for edge in each.box)
        if top <= bottom and left <= right:  # a model's result cannot be drawn on anything else
            ink.box((left * width, top * height, right * width, bottom * height), colour)
