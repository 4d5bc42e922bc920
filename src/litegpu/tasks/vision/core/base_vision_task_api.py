"""The base class of all vision tasks: options, running modes, timestamps."""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, NamedTuple, TypeVar

from litegpu.errors import TaskError
from litegpu.tasks.components.containers.rect import NormalizedRect
from litegpu.tasks.core.base_options import BaseOptions
from litegpu.tasks.core.live_stream import LiveStream
from litegpu.tasks.core.model import PictureModel, TaskModel, TensorModel
from litegpu.tasks.vision.core.image import Image
from litegpu.tasks.vision.core.image_processing_options import ImageProcessingOptions
from litegpu.tasks.vision.core.regions import rect_of
from litegpu.tasks.vision.core.vision_task_running_mode import (
    VisionTaskRunningMode as RunningMode,
)

if TYPE_CHECKING:
    from typing_extensions import Self

Result = TypeVar("Result")


@dataclass
class VisionTaskOptions(Generic[Result]):
    """The options shared by all vision tasks.

    Args:
        base_options: the model.
        running_mode: the running mode: single pictures, a video or a live stream.
        result_callback: the callback of a live stream, which another thread calls with each result,
            the picture and the timestamp in milliseconds.
    """

    base_options: BaseOptions
    running_mode: RunningMode = RunningMode.IMAGE
    result_callback: Callable[[Result, Image, int], None] | None = None


Options = TypeVar("Options", bound=VisionTaskOptions[Any])


class _Frame(NamedTuple):
    image: Image
    rect: NormalizedRect
    timestamp_ms: int


class BaseVisionTaskApi(ABC, Generic[Options, Result]):
    """The base class of vision tasks, which processes one picture at a time.

    Several threads may share one task: a lock serializes their calls.
    """

    options_type: ClassVar[type[VisionTaskOptions[Any]]]
    """The class of the options."""
    takes_regions: ClassVar[bool] = True
    """Whether the task accepts `region_of_interest`."""

    def __init__(self, options: Options) -> None:
        """Open the models; `create_from_options` and `create_from_model_path` are shorter.

        Raises:
            TaskError: an option is invalid.
            LitegpuError: a model is missing, damaged, or cannot be compiled.
        """
        self._mode, callback = RunningMode(options.running_mode), options.result_callback
        if self._mode == RunningMode.LIVE_STREAM and callback is None:
            raise TaskError("The running mode is LIVE_STREAM. Give a result_callback, too.")
        if self._mode != RunningMode.LIVE_STREAM and callback is not None:
            raise TaskError(
                f"The running mode is {self._mode.name}, which returns results. Leave "
                "result_callback out, or use LIVE_STREAM."
            )
        self._callback = callback
        self._lock, self._order = threading.RLock(), threading.Lock()
        self._models: list[TaskModel] = []
        self._last = -1
        self._closed = False
        self._stream: LiveStream[_Frame] | None = None
        try:
            self._open(options)
            if callback is not None:
                self._stream = LiveStream(self._handle, f"litegpu {type(self).__name__}")
        except BaseException:
            self.close()
            raise

    @classmethod
    def create_from_options(cls, options: Options) -> Self:
        """Return the task with these options. Raises as the constructor does."""
        return cls(options)

    @classmethod
    def create_from_model_path(cls, model_path: str | os.PathLike[str]) -> Self:
        """Return the task for single pictures, with default options."""
        base = BaseOptions(model_asset_path=model_path)
        options: Any = cls.options_type(base_options=base)
        return cls(options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the live stream and release the models. Repeated calls do nothing.

        Raises:
            ExecutionError: a picture of the live stream failed.
        """
        with self._lock:
            closed, self._closed = self._closed, True
        if closed:
            return
        try:
            if self._stream is not None:
                self._stream.close()
        finally:
            with self._lock:
                for model in self._models:
                    model.close()

    @abstractmethod
    def _open(self, options: Options) -> None:
        """Check the options, and compile the models with `_compiled`."""

    @abstractmethod
    def _run(self, image: Image, rect: NormalizedRect, timestamp_ms: int) -> Result:
        """Return the result of a picture.

        Only one thread at a time calls this method. Outside the mode IMAGE, the picture is the
        frame after the previous one. In the mode IMAGE, the timestamp is 0.
        """

    def _compiled(
        self, content: bytes, base: BaseOptions, *scale: tuple[float, float]
    ) -> PictureModel:
        """Return a compiled model that this task closes; `scale` is passed to PictureModel."""
        model = PictureModel(content, base, *scale)
        self._models.append(model)
        return model

    def _small(self, content: bytes) -> TensorModel:
        """Return a model of numbers that this task closes.

        The model runs on the CPU: it takes microseconds, less than a copy to a device and back.
        """
        model = TensorModel(content, BaseOptions(delegate=BaseOptions.Delegate.CPU))
        self._models.append(model)
        return model

    # The running modes

    def _process_image(self, image: Image, options: ImageProcessingOptions | None) -> Result:
        frame = self._frame(RunningMode.IMAGE, image, 0, options)
        with self._lock:
            self._check_open()
            return self._run(*frame)

    def _process_video(
        self, image: Image, timestamp_ms: int, options: ImageProcessingOptions | None
    ) -> Result:
        frame = self._frame(RunningMode.VIDEO, image, timestamp_ms, options)
        with self._lock:
            self._advance(timestamp_ms)
            return self._run(*frame)

    def _send_live(
        self, image: Image, timestamp_ms: int, options: ImageProcessingOptions | None
    ) -> None:
        frame = self._frame(RunningMode.LIVE_STREAM, image, timestamp_ms, options)
        assert self._stream is not None
        with self._order:
            self._advance(timestamp_ms)
            self._stream.send(frame)

    def _handle(self, frame: _Frame) -> None:
        with self._lock:
            result = self._run(*frame)
        assert self._callback is not None
        self._callback(result, frame.image, frame.timestamp_ms)

    def _frame(
        self,
        mode: RunningMode,
        image: Image,
        timestamp_ms: int,
        options: ImageProcessingOptions | None,
    ) -> _Frame:
        if self._mode != mode:
            raise TaskError(
                f"This method is for the running mode {mode.name}, and the task was created for "
                f"{self._mode.name}. Create it with running_mode=RunningMode.{mode.name}."
            )
        if not isinstance(image, Image):
            raise TaskError(
                f"The image is a {type(image).__name__}. Give an Image: "
                "Image(image_format=ImageFormat.SRGB, data=array)."
            )
        size = (image.width, image.height)
        return _Frame(image, rect_of(options, size, self.takes_regions), timestamp_ms)

    def _advance(self, timestamp_ms: int) -> None:
        self._check_open()
        if timestamp_ms <= self._last:
            raise TaskError(
                f"The timestamp {timestamp_ms} ms does not follow {self._last} ms. Timestamps must "
                "increase from picture to picture, from 0 on."
            )
        self._last = timestamp_ms

    def _check_open(self) -> None:
        if self._closed:
            raise TaskError("The task is closed. Create another one.")
