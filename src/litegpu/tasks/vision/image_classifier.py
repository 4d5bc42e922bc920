"""The image classification task."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from litegpu.errors import ModelError
from litegpu.files.metadata import FileKind
from litegpu.tasks.components.containers.category import Category
from litegpu.tasks.components.containers.classification_result import (
    ClassificationResult,
    Classifications,
)
from litegpu.tasks.components.containers.rect import NormalizedRect
from litegpu.tasks.core.assets import model_of
from litegpu.tasks.core.classes import Classes, ClassOptions, ScoreCalibration, classes_of
from litegpu.tasks.core.model import Floats
from litegpu.tasks.vision.core.base_vision_task_api import BaseVisionTaskApi, VisionTaskOptions
from litegpu.tasks.vision.core.image import Image
from litegpu.tasks.vision.core.image_processing_options import ImageProcessingOptions
from litegpu.tasks.vision.core.regions import Region, rgb, sampled

ImageClassifierResult = ClassificationResult


@dataclass
class ImageClassifierOptions(ClassOptions, VisionTaskOptions[ClassificationResult]):
    """The options of an ImageClassifier: see VisionTaskOptions and ClassOptions."""


class _Head(NamedTuple):
    """A model output with scores of classes."""

    name: str | None
    classes: Classes
    calibration: ScoreCalibration | None


class ImageClassifier(BaseVisionTaskApi[ImageClassifierOptions, ClassificationResult]):
    """Classifies pictures; results are sorted by descending score."""

    options_type = ImageClassifierOptions

    def _open(self, options: ImageClassifierOptions) -> None:
        options.check()
        content = model_of(options.base_options)
        self._model = self._compiled(content, options.base_options)
        self._most = options.most
        self._heads = []
        for index in range(len(self._model.shapes)):
            note = self._model.note(index)
            classes = classes_of(content, options, note, note, FileKind.AXIS_LABELS)
            calibration = ScoreCalibration.of(content, note)
            self._heads.append(_Head(note.name or None, classes, calibration))
            size = int(np.prod(self._model.shapes[index]))
            if classes.names and len(classes.names) != size:
                raise ModelError(
                    f"The model has {size} classes and {len(classes.names)} names of classes. "
                    "Attach a file with a line for each class."
                )

    def _run(self, image: Image, rect: NormalizedRect, timestamp_ms: int) -> ClassificationResult:
        region = Region.of(rect, (image.width, image.height))
        outputs = self._model(sampled(rgb(image), region, self._model.size))
        heads = zip(self._heads, outputs, strict=True)
        return ClassificationResult(
            [
                Classifications(self._categories(head, scores.ravel()), number, head.name)
                for number, (head, scores) in enumerate(heads)
            ],
            timestamp_ms=0,
        )

    def _categories(self, head: _Head, scores: Floats) -> list[Category]:
        if head.calibration is not None:
            scores = head.calibration(scores, np.arange(len(scores)))
        found: list[Category] = []
        for index in np.argsort(-scores, kind="stable").tolist():
            score = float(scores[index])
            if score < head.classes.threshold or len(found) == self._most:
                break
            if head.classes.counts(index, score):
                found.append(head.classes.category(index, score))
        return found

    def classify(
        self, image: Image, image_processing_options: ImageProcessingOptions | None = None
    ) -> ClassificationResult:
        """Classify a picture, in the running mode IMAGE.

        Raises:
            TaskError: the task has another running mode, or an argument is invalid.
            LitegpuError: the device fails.
        """
        return self._process_image(image, image_processing_options)

    def classify_for_video(
        self,
        image: Image,
        timestamp_ms: int,
        image_processing_options: ImageProcessingOptions | None = None,
    ) -> ClassificationResult:
        """Classify the next frame of a video, in the running mode VIDEO. Raises as `classify`."""
        return self._process_video(image, timestamp_ms, image_processing_options)

    def classify_async(
        self,
        image: Image,
        timestamp_ms: int,
        image_processing_options: ImageProcessingOptions | None = None,
    ) -> None:
        """Classify a picture of a camera, in the running mode LIVE_STREAM; return at once.

        `result_callback` gets the result. While the task is busy, the newest picture waits and
        older ones are dropped. Raises as `classify`, and ExecutionError if an earlier picture
        failed.
        """
        self._send_live(image, timestamp_ms, image_processing_options)
