"""The recognizer of hand gestures."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from litegpu.errors import ModelError
from litegpu.tasks.components.containers.category import Category
from litegpu.tasks.components.containers.landmark import Landmark, NormalizedLandmark
from litegpu.tasks.components.containers.rect import NormalizedRect
from litegpu.tasks.components.processors.classifier_options import ClassifierOptions
from litegpu.tasks.core.assets import members_of
from litegpu.tasks.core.heads import ClassHead
from litegpu.tasks.core.model import Floats, TensorModel
from litegpu.tasks.vision.core.hands import MODELS, Hand, HandOptions, HandTask, hand_lists
from litegpu.tasks.vision.core.image import Image
from litegpu.tasks.vision.core.image_processing_options import ImageProcessingOptions
from litegpu.tasks.vision.core.landmarker import turned_by
from litegpu.tasks.vision.core.regions import Size

_HANDS, _GESTURES = "hand_landmarker.task", "hand_gesture_recognizer.task"
_EMBEDDER, _CANNED, _CUSTOM = (
    f"{_GESTURES}:{each}.tflite"
    for each in ("gesture_embedder", "canned_gesture_classifier", "custom_gesture_classifier")
)
_INPUTS = [63, 1, 63]
"""The sizes of the embedder's inputs: landmarks, the probability of a right hand, and meters."""
_NO_GESTURE = "None"
_MIN_SIZE = 1e-5
"""Number added to the size of a hand, so that it is not 0."""


@dataclass
class GestureRecognizerResult:
    """The gesture, the handedness and the landmarks of each hand.

    The `index` of a gesture is -1, because there may be two classifiers. A hand without a gesture
    that the options allow has an empty list.
    """

    gestures: list[list[Category]]
    handedness: list[list[Category]]
    hand_landmarks: list[list[NormalizedLandmark]]
    hand_world_landmarks: list[list[Landmark]]


@dataclass
class GestureRecognizerOptions(HandOptions[GestureRecognizerResult]):
    """The options of a GestureRecognizer: see VisionTaskOptions and HandOptions.

    Args:
        canned_gesture_classifier_options: the options of MediaPipe's gestures.
        custom_gesture_classifier_options: the options of the bundle's own gestures, if it has any.
    """

    canned_gesture_classifier_options: ClassifierOptions = field(default_factory=ClassifierOptions)
    custom_gesture_classifier_options: ClassifierOptions = field(default_factory=ClassifierOptions)


@dataclass(frozen=True)
class _Classifier:
    model: TensorModel
    head: ClassHead

    def __call__(self, embedding: Floats) -> list[Category]:
        return self.head(self.model(embedding)[0])


class GestureRecognizer(HandTask[GestureRecognizerOptions, GestureRecognizerResult]):
    """Detects hands, 21 landmarks of each hand, and its gesture.

    The model file is a bundle with `hand_landmarker.task` (see HandLandmarker) and
    `hand_gesture_recognizer.task`. The latter has the models `gesture_embedder.tflite` and
    `canned_gesture_classifier.tflite`, and may have `custom_gesture_classifier.tflite`, whose
    gestures precede the canned ones. These small models run on the CPU.
    """

    options_type = GestureRecognizerOptions

    def _open(self, options: GestureRecognizerOptions) -> None:
        settings = {
            _CUSTOM: options.custom_gesture_classifier_options,
            _CANNED: options.canned_gesture_classifier_options,
        }
        for each in settings.values():
            each.check()
        hands = [f"{_HANDS}:{each}" for each in MODELS]
        names = (*hands, _EMBEDDER, _CANNED)
        found = members_of(options.base_options, names, [_CUSTOM])
        self._open_hands(options, *(found[each] for each in hands))
        self._embedder = self._small(found[_EMBEDDER])
        if (sizes := _sizes(self._embedder.inputs)) != _INPUTS:
            raise ModelError(
                f"The gesture embedder takes {sizes} numbers. It must take 63 (landmarks), 1 "
                "(side) and 63 (landmarks in meters): use MediaPipe's."
            )
        self._classifiers = [
            self._classifier(found[name], each) for name, each in settings.items() if name in found
        ]

    def _classifier(self, content: bytes, options: ClassifierOptions) -> _Classifier:
        model = self._small(content)
        wanted, given = _sizes(model.inputs), _sizes(self._embedder.shapes[:1])
        if wanted != given:
            raise ModelError(
                f"A gesture classifier takes {wanted} numbers, and the embedder returns {given}. "
                "Use models that were trained together."
            )
        return _Classifier(model, ClassHead(model, 0, options))

    def _result(
        self, found: list[Hand], rect: NormalizedRect, picture: Size, timestamp_ms: int
    ) -> GestureRecognizerResult:
        angle = rect.rotation or 0.0
        gestures = [self._gesture(each, angle, picture) for each in found]
        return GestureRecognizerResult(gestures, *hand_lists(found))

    def _gesture(self, hand: Hand, angle: float, picture: Size) -> list[Category]:
        scale = np.array([*picture, max(picture)], np.float32) / np.float32(max(picture))
        landmarks = (turned_by(each, -angle) for each in (hand.points * scale, hand.world))
        points, world = map(of_unit_size, landmarks)
        embedding, *_ = self._embedder(points, np.array(hand.right, np.float32), world)
        best = [found[0] for each in self._classifiers if (found := each(embedding))]
        for each in (*(gesture for gesture in best if gesture.category_name != _NO_GESTURE), *best):
            return [Category(-1, each.score, "", each.category_name)]
        return []

    def recognize(
        self, image: Image, image_processing_options: ImageProcessingOptions | None = None
    ) -> GestureRecognizerResult:
        """Return the hands and gestures in a picture, in the running mode IMAGE.

        Raises:
            TaskError: the task has another running mode, or an argument is invalid.
            LitegpuError: the device fails.
        """
        return self._process_image(image, image_processing_options)

    def recognize_for_video(
        self,
        image: Image,
        timestamp_ms: int,
        image_processing_options: ImageProcessingOptions | None = None,
    ) -> GestureRecognizerResult:
        """Return the gestures of the next frame of a video. Raises as `recognize`."""
        return self._process_video(image, timestamp_ms, image_processing_options)

    def recognize_async(
        self,
        image: Image,
        timestamp_ms: int,
        image_processing_options: ImageProcessingOptions | None = None,
    ) -> None:
        """Submit a picture of a camera, in the running mode LIVE_STREAM; return at once.

        `result_callback` gets the result. While the task is busy, the newest picture waits and
        older ones are dropped. Raises as `recognize`, and ExecutionError if an earlier picture
        failed.
        """
        self._send_live(image, timestamp_ms, image_processing_options)


def of_unit_size(points: Floats) -> Floats:
    """Return points `[N, 3]` relative to the first one, divided by their extent along x or y."""
    moved = points - points[0]
    extent = np.ptp(moved[:, :2], axis=0).max() + np.float32(_MIN_SIZE)
    found: Floats = (moved / extent).astype(np.float32)
    return found


def _sizes(shapes: list[tuple[int, ...]]) -> list[int]:
    return [int(np.prod(each)) for each in shapes]
