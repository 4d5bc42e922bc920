"""The image segmentation task."""

from __future__ import annotations

import enum
import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from litegpu.errors import ModelError, TaskError
from litegpu.files.flatbuffer import Flatbuffer
from litegpu.files.metadata import FileKind
from litegpu.tasks.components.containers.rect import NormalizedRect
from litegpu.tasks.core.activations import sigmoid
from litegpu.tasks.core.assets import model_of
from litegpu.tasks.core.classes import attached_labels
from litegpu.tasks.core.model import Floats
from litegpu.tasks.vision.core.base_vision_task_api import BaseVisionTaskApi, VisionTaskOptions
from litegpu.tasks.vision.core.image import Image, ImageFormat
from litegpu.tasks.vision.core.image_processing_options import ImageProcessingOptions
from litegpu.tasks.vision.core.regions import Region, Size, rgb, sampled

_METADATA = "SEGMENTER_METADATA"
_NOT_IN_FRONT = 255
"""The category of background pixels for a model with one class."""
_CUT = 0.5
_ROWS = 32
"""The number of rows computed at a time, small enough for the processor's cache."""


class _Activation(enum.IntEnum):
    NONE = 0
    SIGMOID = 1
    SOFTMAX = 2


@dataclass
class ImageSegmenterResult:
    """The masks of a picture, which have the picture's size.

    `confidence_masks` has a VEC32F1 image for each class with the probability of each pixel.
    `category_mask` is a GRAY8 image with the most probable class of each pixel. For a model with
    one class, `category_mask` is 0 where the probability exceeds 0.5, and 255 elsewhere.
    """

    confidence_masks: list[Image] | None = None
    category_mask: Image | None = None


@dataclass
class ImageSegmenterOptions(VisionTaskOptions[ImageSegmenterResult]):
    """The options of an ImageSegmenter: see VisionTaskOptions.

    Args:
        output_confidence_masks: whether to return a mask of probabilities for each class.
        output_category_mask: whether to return a mask with the class of each pixel.
        display_names_locale: the language of `labels`, if the model has class names in this
            language.
    """

    output_confidence_masks: bool = True
    output_category_mask: bool = False
    display_names_locale: str | None = None


class ImageSegmenter(BaseVisionTaskApi[ImageSegmenterOptions, ImageSegmenterResult]):
    """Segments pictures: computes the class of each pixel.

    The task computes a mask at its first access.
    """

    options_type = ImageSegmenterOptions
    takes_regions = False

    def _open(self, options: ImageSegmenterOptions) -> None:
        self._confidence = options.output_confidence_masks
        self._category = options.output_category_mask
        if not (self._confidence or self._category):
            raise TaskError(
                "Neither output_confidence_masks nor output_category_mask is set. Set one of them."
            )
        content = model_of(options.base_options)
        self._model = self._compiled(content, options.base_options)
        shape = self._model.shapes[-1]
        if len(shape) not in (3, 4):
            raise ModelError(
                f"The last output is {list(shape)}. A segmenter returns [1, height, width, "
                "classes]."
            )
        self._shape = shape if len(shape) == 4 else (*shape, 1)
        self._activation = _activation(self._model.notes.custom.get(_METADATA, b""))
        note = self._model.note(len(self._model.shapes) - 1)
        self._labels = attached_labels(content, note.file(FileKind.AXIS_LABELS))

    @property
    def labels(self) -> list[str]:
        """The names of the classes; the list is empty if the model has no names."""
        return list(self._labels)

    def _run(self, image: Image, rect: NormalizedRect, timestamp_ms: int) -> ImageSegmenterResult:
        picture = (image.width, image.height)
        region = Region.of(rect, picture)
        outputs = self._model(sampled(rgb(image), region, self._model.size))
        scores = outputs[-1].reshape(self._shape[1:])
        result = ImageSegmenterResult()
        if self._confidence:
            planes = np.moveaxis(_activated(scores, self._activation), -1, 0)
            result.confidence_masks = [_mask(plane, picture) for plane in planes]
        if self._category:
            result.category_mask = Image.computed(
                *(ImageFormat.GRAY8, picture),
                lambda: _categories(scores, self._activation, picture),
            )
        return result

    def segment(
        self, image: Image, image_processing_options: ImageProcessingOptions | None = None
    ) -> ImageSegmenterResult:
        """Segment a picture, in the running mode IMAGE.

        Raises:
            TaskError: the task has another running mode, or an argument is invalid.
            LitegpuError: the device fails.
        """
        return self._process_image(image, image_processing_options)

    def segment_for_video(
        self,
        image: Image,
        timestamp_ms: int,
        image_processing_options: ImageProcessingOptions | None = None,
    ) -> ImageSegmenterResult:
        """Segment the next frame of a video, in the running mode VIDEO. Raises as `segment`."""
        return self._process_video(image, timestamp_ms, image_processing_options)

    def segment_async(
        self,
        image: Image,
        timestamp_ms: int,
        image_processing_options: ImageProcessingOptions | None = None,
    ) -> None:
        """Segment a picture of a camera, in the running mode LIVE_STREAM; return at once.

        `result_callback` gets the result. While the task is busy, the newest picture waits and
        older ones are dropped. Raises as `segment`, and ExecutionError if an earlier picture
        failed.
        """
        self._send_live(image, timestamp_ms, image_processing_options)


def _activation(content: bytes) -> _Activation:
    """Return the activation function that the metadata of a segmenter specify.

    Raises:
        ModelError: the metadata are damaged.
    """
    if not content:
        return _Activation.NONE
    try:
        data = Flatbuffer(content)
        return _Activation(data.scalar(data.target(0), 0, "<B"))
    except (struct.error, IndexError, ValueError) as error:
        raise ModelError(
            f"The metadata of the segmenter are damaged ({error}). Write them again."
        ) from error


def _activated(scores: Floats, activation: _Activation) -> Floats:
    if activation == _Activation.SIGMOID:
        return sigmoid(scores)
    if activation == _Activation.SOFTMAX:
        powers = np.exp(scores - scores.max(-1, keepdims=True))
        softmax: Floats = powers / powers.sum(-1, keepdims=True)
        return softmax
    return scores


def _mask(plane: Floats, size: Size) -> Image:
    return Image.computed(ImageFormat.VEC32F1, size, lambda: _resized(plane, size))


def _resized(plane: Floats, size: Size) -> Floats:
    """Return `[height, width]` interpolated to another size, with half-pixel centers."""
    height, width = plane.shape
    if (width, height) == size:
        return np.ascontiguousarray(plane)
    left, right, across = _neighbors(width, size[0])
    top, bottom, along = _neighbors(height, size[1])
    plane = np.ascontiguousarray(plane)
    wide = plane.take(left, 1)
    wide += (plane.take(right, 1) - wide) * across
    found = wide[top]
    found += (wide[bottom] - found) * along[:, np.newaxis]
    return found


def _neighbors(
    old: int, new: int
) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.float32]]:
    """Return the two neighbors of each new pixel, and its distance from the first one."""
    at = (np.arange(new) + 0.5) * (old / new) - 0.5
    first = np.floor(at).astype(np.intp)
    distance = (at - first).astype(np.float32)
    return np.clip(first, 0, old - 1), np.clip(first + 1, 0, old - 1), distance


def _categories(scores: Floats, activation: _Activation, size: Size) -> NDArray[np.uint8]:
    """Return the most probable class of each pixel, `[height, width]`.

    Scores are first interpolated to the picture's size, with aligned corners.
    """
    height, width, classes = scores.shape
    left, right, across = _between_corners(width, size[0])
    top, bottom, along = _between_corners(height, size[1])
    found = np.empty(size[::-1], np.uint8)
    for begin in range(0, size[1], _ROWS):
        rows = slice(begin, begin + _ROWS)
        tall = scores[top[rows]]
        tall += (scores[bottom[rows]] - tall) * along[rows, np.newaxis, np.newaxis]
        wide = tall.take(left, 1)
        wide += (tall.take(right, 1) - wide) * across[:, np.newaxis]
        if classes > 1:
            found[rows] = wide.argmax(-1)
        else:
            if activation == _Activation.SIGMOID:
                wide = sigmoid(wide)
            found[rows] = np.where(wide[:, :, 0] > _CUT, 0, _NOT_IN_FRONT)
    return found


def _between_corners(
    old: int, new: int
) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.float32]]:
    """Return the two neighbors of each new pixel, and its distance from the first one."""
    at = np.arange(new, dtype=np.float32) * np.float32((old - 1) / max(new - 1, 1))
    first, last = np.floor(at).astype(np.intp), np.ceil(at).astype(np.intp)
    return first, np.minimum(last, old - 1), (at - first).astype(np.float32)
