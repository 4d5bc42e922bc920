"""Tasks on pictures, with the names, options and results of MediaPipe Tasks."""

from litegpu.tasks.vision.core.image_processing_options import ImageProcessingOptions
from litegpu.tasks.vision.core.vision_task_running_mode import (
    VisionTaskRunningMode as RunningMode,
)
from litegpu.tasks.vision.image_classifier import (
    ImageClassifier,
    ImageClassifierOptions,
    ImageClassifierResult,
)
from litegpu.tasks.vision.image_embedder import (
    ImageEmbedder,
    ImageEmbedderOptions,
    ImageEmbedderResult,
)
from litegpu.tasks.vision.image_segmenter import (
    ImageSegmenter,
    ImageSegmenterOptions,
    ImageSegmenterResult,
)
from litegpu.tasks.vision.object_detector import (
    ObjectDetector,
    ObjectDetectorOptions,
    ObjectDetectorResult,
)

__all__ = [
    "ImageClassifier",
    "ImageClassifierOptions",
    "ImageClassifierResult",
    "ImageEmbedder",
    "ImageEmbedderOptions",
    "ImageEmbedderResult",
    "ImageProcessingOptions",
    "ImageSegmenter",
    "ImageSegmenterOptions",
    "ImageSegmenterResult",
    "ObjectDetector",
    "ObjectDetectorOptions",
    "ObjectDetectorResult",
    "RunningMode",
]
