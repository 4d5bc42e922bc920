"""Vision tasks with the names, options and results of MediaPipe Tasks."""

from litegpu.tasks.vision.core.connections import (
    FaceLandmarksConnections,
    HandLandmarksConnections,
    PoseLandmarksConnections,
)
from litegpu.tasks.vision.core.image_processing_options import ImageProcessingOptions
from litegpu.tasks.vision.core.landmark_names import PoseLandmark
from litegpu.tasks.vision.core.vision_task_running_mode import (
    VisionTaskRunningMode as RunningMode,
)
from litegpu.tasks.vision.face_detector import (
    FaceDetector,
    FaceDetectorOptions,
    FaceDetectorResult,
)
from litegpu.tasks.vision.face_landmarker import (
    FaceLandmarker,
    FaceLandmarkerOptions,
    FaceLandmarkerResult,
)
from litegpu.tasks.vision.gesture_recognizer import (
    GestureRecognizer,
    GestureRecognizerOptions,
    GestureRecognizerResult,
)
from litegpu.tasks.vision.hand_landmarker import (
    HandLandmarker,
    HandLandmarkerOptions,
    HandLandmarkerResult,
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
from litegpu.tasks.vision.pose_landmarker import (
    PoseLandmarker,
    PoseLandmarkerOptions,
    PoseLandmarkerResult,
)

__all__ = [
    "FaceDetector",
    "FaceDetectorOptions",
    "FaceDetectorResult",
    "FaceLandmarker",
    "FaceLandmarkerOptions",
    "FaceLandmarkerResult",
    "FaceLandmarksConnections",
    "GestureRecognizer",
    "GestureRecognizerOptions",
    "GestureRecognizerResult",
    "HandLandmarker",
    "HandLandmarkerOptions",
    "HandLandmarkerResult",
    "HandLandmarksConnections",
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
    "PoseLandmark",
    "PoseLandmarker",
    "PoseLandmarkerOptions",
    "PoseLandmarkerResult",
    "PoseLandmarksConnections",
    "RunningMode",
]
