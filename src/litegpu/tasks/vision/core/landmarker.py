"""Tasks that detect objects, run a landmark model on each, and track the objects in a video."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from litegpu.tasks.components.containers.rect import NormalizedRect
from litegpu.tasks.vision.core.base_vision_task_api import BaseVisionTaskApi, Options, Result
from litegpu.tasks.vision.core.image import Image
from litegpu.tasks.vision.core.regions import Bytes, Region, Size, rgb
from litegpu.tasks.vision.core.vision_task_running_mode import (
    VisionTaskRunningMode as RunningMode,
)

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Seen:
    """The result of a landmark model for one rectangle.

    The columns of `points` are x, y and z, relative to the picture's size.
    """

    points: Floats
    next_rect: NormalizedRect
    """The rectangle in which the landmark model searches for the object in the next frame."""


Found = TypeVar("Found", bound=Seen)


class LandmarkTask(BaseVisionTaskApi[Options, Result], Generic[Options, Result, Found]):
    """A task with a detector and a landmark model.

    In a video or a live stream, the detector runs only while fewer than `most` objects are tracked.
    """

    takes_regions = False
    most: int
    """The maximum number of objects."""
    followed: tuple[NormalizedRect, ...] = ()
    """The rectangles in which the landmark model searches for the objects of the last frame."""

    def _run(self, image: Image, rect: NormalizedRect, timestamp_ms: int) -> Result:
        pixels = rgb(image)
        if self._mode == RunningMode.IMAGE:
            rects = self._detected(pixels, rect)
        elif len(rects := list(self.followed)) < self.most:
            rects = self._joined(rects, self._detected(pixels, rect))
        found = [
            each for part in rects[: self.most] if (each := self._look(pixels, part)) is not None
        ]
        found = self._distinct(found, (image.width, image.height))
        self.followed = tuple(each.next_rect for each in found)
        return self._result(found, rect, (image.width, image.height), timestamp_ms)

    @abstractmethod
    def _detected(self, pixels: Bytes, rect: NormalizedRect) -> list[NormalizedRect]:
        """Return the rectangles of the detected objects, the highest score first."""

    @abstractmethod
    def _joined(
        self, followed: list[NormalizedRect], detected: list[NormalizedRect]
    ) -> list[NormalizedRect]:
        """Return the rectangles of tracked and detected objects without duplicates."""

    @abstractmethod
    def _look(self, pixels: Bytes, rect: NormalizedRect) -> Found | None:
        """Return the object in a rectangle; None if the landmark model finds none."""

    def _distinct(self, found: list[Found], picture: Size) -> list[Found]:
        """Return the objects without duplicates."""
        return found

    @abstractmethod
    def _result(
        self, found: list[Found], rect: NormalizedRect, picture: Size, timestamp_ms: int
    ) -> Result:
        """Return the result of the task; `rect` is the part of the picture, with its rotation."""


def projected(
    points: Floats, rect: NormalizedRect, picture: Size, *, depth_by_side: bool = False
) -> Floats:
    """Convert points `[N, 3]` from coordinates of a rectangle (0 to 1) to those of the picture.

    The z of the arguments is relative to the rectangle's width, the z of the result to the
    picture's width. With `depth_by_side`, the factor is the length of the rectangle's upper side;
    its x and y components are relative to the picture's width and height. MediaPipe uses this
    factor for faces; for rotated rectangles the two factors differ.
    """
    matrix = Region.of(rect, picture).matrix() / np.array(picture)[:, np.newaxis]
    flat = points[:, :2] @ matrix[:, :2].T + matrix[:, 2]
    factor = float(np.hypot(*matrix[:, 0])) if depth_by_side else rect.width
    depth = points[:, 2] * factor
    return np.column_stack([flat, depth]).astype(np.float32)


def turned_by(points: NDArray[Any], angle: float) -> NDArray[Any]:
    """Return points `[N, 2]` or `[N, 3]` with x and y rotated clockwise about the origin."""
    cosine, sine = math.cos(angle), math.sin(angle)
    found = points.copy()
    found[:, 0] = cosine * points[:, 0] - sine * points[:, 1]
    found[:, 1] = sine * points[:, 0] + cosine * points[:, 1]
    return found
