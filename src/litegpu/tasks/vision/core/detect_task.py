"""The `detect` methods shared by detection tasks."""

from __future__ import annotations

from litegpu.errors import TaskError
from litegpu.tasks.vision.core.base_vision_task_api import BaseVisionTaskApi, Options, Result
from litegpu.tasks.vision.core.image import Image
from litegpu.tasks.vision.core.image_processing_options import ImageProcessingOptions


class DetectTask(BaseVisionTaskApi[Options, Result]):
    """A task with the methods `detect`, `detect_for_video` and `detect_async`."""

    takes_regions = False

    def detect(
        self, image: Image, image_processing_options: ImageProcessingOptions | None = None
    ) -> Result:
        """Return the detections in a picture, in the running mode IMAGE.

        Raises:
            TaskError: the task has another running mode, or an argument is invalid.
            LitegpuError: the device fails.
        """
        return self._process_image(image, image_processing_options)

    def detect_for_video(
        self,
        image: Image,
        timestamp_ms: int,
        image_processing_options: ImageProcessingOptions | None = None,
    ) -> Result:
        """Return the detections in the next frame, in the mode VIDEO. Raises as `detect`."""
        return self._process_video(image, timestamp_ms, image_processing_options)

    def detect_async(
        self,
        image: Image,
        timestamp_ms: int,
        image_processing_options: ImageProcessingOptions | None = None,
    ) -> None:
        """Submit a picture of a camera, in the running mode LIVE_STREAM; return at once.

        `result_callback` gets the result. While the task is busy, the newest picture waits and
        older ones are dropped. Raises as `detect`, and ExecutionError if an earlier picture failed.
        """
        self._send_live(image, timestamp_ms, image_processing_options)


def check_confidence(options: object, *names: str) -> None:
    """Raise TaskError if options with these names are not from 0 to 1."""
    for name in names:
        value = getattr(options, name)
        if not 0 <= value <= 1:
            raise TaskError(f"{name} is {value}. Use a number from 0 to 1.")
