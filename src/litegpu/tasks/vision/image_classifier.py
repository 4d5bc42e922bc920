"""The image classification task."""

from __future__ import annotations

from dataclasses import dataclass

from litegpu.tasks.components.containers.classification_result import ClassificationResult
from litegpu.tasks.components.containers.rect import NormalizedRect
from litegpu.tasks.components.processors.classifier_options import ClassifierOptions
from litegpu.tasks.core.assets import model_of
from litegpu.tasks.core.heads import class_heads, classified
from litegpu.tasks.vision.core.base_vision_task_api import BaseVisionTaskApi, VisionTaskOptions
from litegpu.tasks.vision.core.image import Image
from litegpu.tasks.vision.core.image_processing_options import ImageProcessingOptions
from litegpu.tasks.vision.core.regions import Region, rgb, sampled

ImageClassifierResult = ClassificationResult


@dataclass
class ImageClassifierOptions(ClassifierOptions, VisionTaskOptions[ClassificationResult]):
    """The options of an ImageClassifier: see VisionTaskOptions and ClassifierOptions."""


class ImageClassifier(BaseVisionTaskApi[ImageClassifierOptions, ClassificationResult]):
    """Classifies pictures; results are sorted by descending score."""

    options_type = ImageClassifierOptions

    def _open(self, options: ImageClassifierOptions) -> None:
        options.check()
        self._model = self._compiled(model_of(options.base_options), options.base_options)
        self._heads = class_heads(self._model, options)

    def _run(self, image: Image, rect: NormalizedRect, timestamp_ms: int) -> ClassificationResult:
        region = Region.of(rect, (image.width, image.height))
        outputs = self._model(sampled(rgb(image), region, self._model.size))
        return classified(self._heads, outputs, timestamp_ms=0)

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
