"""Computes the metrics of COCO's evaluation with pycocotools, if installed."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from litegpu.errors import missing_dependency
from litegpu.tools.evaluation.average_precision import Detection
from litegpu.tools.stats import figure


@dataclass(frozen=True)
class CocoFigures:
    """Average precision over IoU of 0.5 to 0.95, at 0.5 and at 0.75, for all object sizes."""

    mean: float
    at_50: float
    at_75: float

    def text(self) -> str:
        """Return the figures in one line."""
        return f"AP={figure(self.mean)}, AP50={figure(self.at_50)}, AP75={figure(self.at_75)}"


def coco_figures(
    dataset: dict[str, Any], found: Mapping[str, Sequence[Detection]]
) -> CocoFigures | None:
    """Return COCO's figures for the detections in pictures, by file name.

    The result is None if none of the pictures is in the dataset. Pictures that were not evaluated
    do not count.

    Raises:
        MissingDependencyError: pycocotools is not installed.
    """
    try:
        from pycocotools.coco import COCO
        from pycocotools.cocoeval import COCOeval
    except ImportError as error:
        raise missing_dependency(
            "pycocotools", "coco", "COCO's own mean average precision"
        ) from error
    images = [each for each in dataset["images"] if _name(each) in found]
    if not images or not dataset["annotations"]:
        return None
    results = [_result(each, one) for each in images for one in found[_name(each)]]
    with contextlib.redirect_stdout(io.StringIO()):  # it prints the time of each step
        truth = COCO()
        truth.dataset = _complete(dataset)
        truth.createIndex()
        if not results:
            return CocoFigures(0.0, 0.0, 0.0)
        evaluation = COCOeval(truth, truth.loadRes(results), "bbox")
        evaluation.params.imgIds = [each["id"] for each in images]
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    mean, at_50, at_75 = (max(float(each), 0.0) for each in evaluation.stats[:3])
    return CocoFigures(mean, at_50, at_75)


def _complete(dataset: dict[str, Any]) -> dict[str, Any]:
    """Return a dataset with all fields that pycocotools needs."""
    annotations = [
        {"id": number, "area": each["bbox"][2] * each["bbox"][3], "iscrowd": 0, **each}
        for number, each in enumerate(dataset["annotations"], start=1)
    ]
    classes = sorted({each["category_id"] for each in annotations})
    categories = [{"id": number, "name": str(number)} for number in classes]
    return {"categories": categories, **dataset, "annotations": annotations}


def _name(image: dict[str, Any]) -> str:
    return str(image["file_name"]).rpartition("/")[2]


def _result(image: dict[str, Any], found: Detection) -> dict[str, Any]:
    top, left, bottom, right = found.box
    width, height = image["width"], image["height"]
    box = [left * width, top * height, (right - left) * width, (bottom - top) * height]
    return {
        "image_id": image["id"],
        "category_id": found.class_id,
        "bbox": box,
        "score": found.score,
    }
