"""The dataclasses that task results are made of."""

from litegpu.tasks.components.containers.audio_data import AudioData, AudioDataFormat
from litegpu.tasks.components.containers.bounding_box import BoundingBox
from litegpu.tasks.components.containers.category import Category
from litegpu.tasks.components.containers.classification_result import (
    ClassificationResult,
    Classifications,
)
from litegpu.tasks.components.containers.detections import Detection, DetectionResult
from litegpu.tasks.components.containers.embedding_result import Embedding, EmbeddingResult
from litegpu.tasks.components.containers.keypoint import NormalizedKeypoint
from litegpu.tasks.components.containers.landmark import Landmark, NormalizedLandmark
from litegpu.tasks.components.containers.landmark_detection_result import LandmarksDetectionResult
from litegpu.tasks.components.containers.rect import NormalizedRect, Rect

__all__ = [
    "AudioData",
    "AudioDataFormat",
    "BoundingBox",
    "Category",
    "ClassificationResult",
    "Classifications",
    "Detection",
    "DetectionResult",
    "Embedding",
    "EmbeddingResult",
    "Landmark",
    "LandmarksDetectionResult",
    "NormalizedKeypoint",
    "NormalizedLandmark",
    "NormalizedRect",
    "Rect",
]
