"""The image embedding task."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from litegpu.tasks.components.containers.embedding_result import Embedding, EmbeddingResult
from litegpu.tasks.components.containers.rect import NormalizedRect
from litegpu.tasks.components.utils import cosine_similarity
from litegpu.tasks.core.assets import model_of
from litegpu.tasks.core.model import Floats
from litegpu.tasks.vision.core.base_vision_task_api import BaseVisionTaskApi, VisionTaskOptions
from litegpu.tasks.vision.core.image import Image
from litegpu.tasks.vision.core.image_processing_options import ImageProcessingOptions
from litegpu.tasks.vision.core.regions import Region, rgb, sampled

ImageEmbedderResult = EmbeddingResult
_STEPS = 128
"""Number of quantization steps between 0 and 1."""


@dataclass
class ImageEmbedderOptions(VisionTaskOptions[EmbeddingResult]):
    """The options of an ImageEmbedder: see VisionTaskOptions.

    Args:
        l2_normalize: whether to scale the embedding to an L2 norm of 1.
        quantize: whether to quantize the embedding to int8 with a scale of 1/128; the int8 values
            are stored as uint8.
    """

    l2_normalize: bool | None = None
    quantize: bool | None = None


class ImageEmbedder(BaseVisionTaskApi[ImageEmbedderOptions, EmbeddingResult]):
    """Computes embeddings: vectors that are similar for pictures with similar content."""

    options_type = ImageEmbedderOptions

    def _open(self, options: ImageEmbedderOptions) -> None:
        self._model = self._compiled(model_of(options.base_options), options.base_options)
        self._normalize, self._quantize = bool(options.l2_normalize), bool(options.quantize)
        self._names = [self._model.note(each).name for each in range(len(self._model.shapes))]

    def _run(self, image: Image, rect: NormalizedRect, timestamp_ms: int) -> EmbeddingResult:
        region = Region.of(rect, (image.width, image.height))
        outputs = self._model(sampled(rgb(image), region, self._model.size))
        return EmbeddingResult(
            [self._embedding(number, each.ravel()) for number, each in enumerate(outputs)]
        )

    def _embedding(self, number: int, values: Floats) -> Embedding:
        name = self._names[number] or None
        if self._normalize and values.any():
            values = values * (np.float32(1) / np.sqrt(values.dot(values)))
        if not self._quantize:
            return Embedding(values.astype(np.float64), number, name)
        steps = values * np.float32(_STEPS)
        rounded = np.trunc(steps + np.copysign(np.float32(0.5), steps))
        bytes_ = np.clip(rounded, -_STEPS, _STEPS - 1).astype(np.int8)
        return Embedding(bytes_.view(np.uint8), number, name)

    @staticmethod
    def cosine_similarity(u: Embedding, v: Embedding) -> float:
        """Return the cosine of the angle between two embeddings, from -1 to 1.

        Raises:
            TaskError: the embeddings differ in length or type, are empty, or one has only zeros.
        """
        return cosine_similarity(u, v)

    def embed(
        self, image: Image, image_processing_options: ImageProcessingOptions | None = None
    ) -> EmbeddingResult:
        """Embed a picture, in the running mode IMAGE.

        Raises:
            TaskError: the task has another running mode, or an argument is invalid.
            LitegpuError: the device fails.
        """
        return self._process_image(image, image_processing_options)

    def embed_for_video(
        self,
        image: Image,
        timestamp_ms: int,
        image_processing_options: ImageProcessingOptions | None = None,
    ) -> EmbeddingResult:
        """Embed the next frame of a video, in the running mode VIDEO. Raises as `embed`."""
        return self._process_video(image, timestamp_ms, image_processing_options)

    def embed_async(
        self,
        image: Image,
        timestamp_ms: int,
        image_processing_options: ImageProcessingOptions | None = None,
    ) -> None:
        """Embed a picture of a camera, in the running mode LIVE_STREAM; return at once.

        `result_callback` gets the result. While the task is busy, the newest picture waits and
        older ones are dropped. Raises as `embed`, and ExecutionError if an earlier picture failed.
        """
        self._send_live(image, timestamp_ms, image_processing_options)
