"""`litegpu coco_object_detection MODEL`: the mean average precision of an object detector."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from litegpu.errors import MissingDependencyError, ModelError
from litegpu.files.wire import message, repeated
from litegpu.tools.engines.jobs import Arrays, BatchPlan
from litegpu.tools.evaluation import FAILED as TASK_FAILED
from litegpu.tools.evaluation import pictures as evaluation
from litegpu.tools.evaluation.average_precision import (
    AveragePrecision,
    Detection,
    average_precision,
)
from litegpu.tools.evaluation.coco_api import CocoFigures, coco_figures
from litegpu.tools.evaluation.ground_truth import GroundTruth, read_ground_truth
from litegpu.tools.evaluation.preprocessing import Preprocessing, for_input
from litegpu.tools.flags import Flag
from litegpu.tools.lines import info, warn
from litegpu.tools.reports.evaluations import detection_sections
from litegpu.tools.stats import figure

ARGUMENTS = {"model": "a model file (also --model_file=FILE), a known name, or zoo:NAME"}
FLAGS = (
    evaluation.PICTURES,
    Flag(
        *("ground_truth_proto", str, ""),
        "ground truth: a binary ObjectDetectionGroundTruth, COCO's instances JSON, or "
        "lines of image,class,top,left,bottom,right",
        metavar="FILE",
    ),
    evaluation.LABELS,
    Flag("debug_mode", bool, False, "print the objects found in each image"),
    *evaluation.TASK_FLAGS,
)
FAILED = TASK_FAILED
EXAMPLES = (
    "litegpu coco model.tflite --delegate=gpu --ground_truth_images_path=val2017 \\\n"
    "    --ground_truth_proto=instances_val2017.json --model_output_labels=labels.txt",
)
NOTES = (
    "Pictures are resized to the model's input without half-pixel centers, as TensorFlow Lite's "
    "tool does. The first label is the background; the model's class 0 is the second label. If "
    "pycocotools is installed, COCO's own mean average precision is printed, too.",
)

CLASS_OFFSET = 1
"""Offset added to the model's classes, which do not include the background."""
_OUTPUTS = ("boxes [1, N, 4]", "classes [1, N]", "scores [1, N]", "count [1]")
_RANKS = (3, 2, 2, 1)
_AT, _OVERALL = "Average Precision [IOU Threshold={}]", "Overall mAP"


def detections(_: str, outputs: Arrays) -> tuple[Detection, ...]:
    """Return the detections in the outputs of the model's post-processing op.

    A class that is NaN becomes -1, which never matches a label.
    """
    boxes, classes, scores, count = (np.asarray(each) for each in outputs)
    boxes, classes, scores = boxes.reshape(-1, 4), classes.reshape(-1), scores.reshape(-1)
    number = float(count.reshape(-1)[0])
    found = int(min(max(number, 0), len(scores))) if number == number else 0
    known = np.where(np.isfinite(classes), classes, -1 - CLASS_OFFSET)
    return tuple(
        Detection(int(each) + CLASS_OFFSET, (box[0], box[1], box[2], box[3]), float(score))
        for each, box, score in zip(known[:found], boxes[:found].tolist(), scores, strict=False)
    )


@dataclass(frozen=True)
class DetectionTask:
    """The pictures to evaluate, and their true objects, if known."""

    paths: tuple[str, ...]
    truth: GroundTruth | None
    labels: tuple[str, ...]
    debug: bool

    def check(self, plan: BatchPlan) -> Preprocessing:
        """Return the preprocessing. Raises ModelError if the model is not a detector."""
        ranks = tuple(len(each.shape) + plan.batched for each in plan.outputs)
        floats = all(each.dtype == np.float32 for each in plan.outputs)
        if len(plan.inputs) != 1 or ranks != _RANKS or not floats:
            outputs = ", ".join(
                f"{each.dtype.name}{[1, *each.shape] if plan.batched else list(each.shape)}"
                for each in plan.outputs
            )
            raise ModelError(
                "Object detection model must have 1 input & 4 outputs: float32 "
                f"{', '.join(_OUTPUTS)}. This one has {len(plan.inputs)} and {len(plan.outputs)}: "
                f"{outputs}. Use a model that ends in TFLite_Detection_PostProcess."
            )
        return for_input(plan.inputs[0], plan.batched)

    def take(self, path: str, value: tuple[Detection, ...]) -> None:
        """Print the detections of a picture, if requested.

        Raises:
            ModelError: a detected class is not in the labels.
        """
        name = Path(path).name
        self._check_classes(self._objects(name))
        self._check_classes(value)
        if self.debug:
            _print_objects(name, value)

    def result(self, values: Sequence[tuple[Detection, ...] | None]) -> evaluation.Figures:
        """Return the average precisions, also as ObjectDetectionAveragePrecisionMetrics."""
        if self.truth is None:
            warn("mAP metrics are meaningless w/o ground truth.")
            return evaluation.Figures([f"{_OVERALL}: 0"], None, {"overall_map": None}, [])
        found = {
            Path(path).name: objects
            for path, objects in zip(self.paths, values, strict=True)
            if objects is not None
        }
        if not self.truth.pictures.keys() & found.keys():
            warn("The ground truth contains no picture with one of these file names.")
        precision = average_precision((self._objects(name), each) for name, each in found.items())
        coco = _coco(self.truth, found)
        at = [f"{_AT.format(figure(each))}: {figure(value)}" for each, value in precision.at]
        own = [f"pycocotools: {coco.text()}"] if coco else []
        return evaluation.Figures(
            [*at, f"{_OVERALL}: {figure(precision.overall)}", *own],
            _metrics(precision),
            {
                "overall_map": precision.overall,
                "average_precision": dict(precision.at),
                "class_map": precision.classes,
                "pycocotools": asdict(coco) if coco else None,
            },
            [
                ("overall mAP", figure(precision.overall)),
                *([("COCO's AP", coco.text())] if coco else []),
            ],
            lambda: detection_sections(
                precision,
                self.labels,
                [
                    (path, self._objects(Path(path).name), objects)
                    for path, objects in zip(self.paths, values, strict=True)
                    if objects is not None
                ],
            ),
        )

    def _objects(self, name: str) -> tuple[Detection, ...]:
        """Return the true objects of a picture; an empty list if unknown."""
        known = self.truth.pictures.get(name) if self.truth else None
        return known.objects if known else ()

    def _check_classes(self, objects: Sequence[Detection]) -> None:
        for each in objects:
            if not 0 <= each.class_id < len(self.labels):
                raise ModelError(
                    f"Encountered invalid class ID: {each.class_id}. --model_output_labels has "
                    f"{len(self.labels)} lines, the first of which is the background. "
                    "Give the labels of this model and these pictures."
                )


def _coco(truth: GroundTruth, found: dict[str, tuple[Detection, ...]]) -> CocoFigures | None:
    """Return pycocotools' figures; None, after a warning, if pycocotools is not installed."""
    try:
        return coco_figures(truth.dataset, found)
    except MissingDependencyError as error:
        warn(str(error))
        return None


def _print_objects(name: str, objects: Sequence[Detection]) -> None:
    info(f"Image: {name}\n")
    for index, each in enumerate(objects):
        top, left, bottom, right = map(figure, each.box)
        info(f"Object [{index}]")
        info(f"  Score: {figure(each.score)}")
        info(f"  Class-ID: {each.class_id}")
        info("  Bounding Box:")
        info(f"    Normalized Top: {top}")
        info(f"    Normalized Bottom: {bottom}")
        info(f"    Normalized Left: {left}")
        info(f"    Normalized Right: {right}")
    info("=" * 54 + "\n")


def _metrics(precision: AveragePrecision) -> bytes:
    at = (
        message((1, np.float32(threshold)), (2, np.float32(value)))
        for threshold, value in precision.at
    )
    return message(*repeated(1, at), (2, np.float32(precision.overall)))


def detection_task(args: argparse.Namespace) -> DetectionTask:
    """Return the evaluation task for the flags. Raises FileError if a file cannot be read."""
    folder = evaluation.needed(args, evaluation.PICTURES)
    labels_file = evaluation.needed(args, evaluation.LABELS)
    truth_file = args.ground_truth_proto
    paths = evaluation.files_in(folder, (labels_file, truth_file))
    labels = evaluation.read_lines(labels_file, "model output labels")
    truth = read_ground_truth(truth_file, labels) if truth_file else None
    chosen = tuple(paths[: args.num_images or None])
    return DetectionTask(chosen, truth, tuple(labels), args.debug_mode)


KIND = evaluation.Kind("coco_object_detection", "Finished", 7, detection_task, detections)


def main(args: argparse.Namespace) -> int:
    """Evaluate the model, print the figures, and write the files."""
    return evaluation.run(args, KIND)
