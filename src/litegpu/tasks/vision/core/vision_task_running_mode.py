"""The running modes of tasks."""

from __future__ import annotations

import enum


class VisionTaskRunningMode(enum.Enum):
    """The input of a task: single pictures, the frames of a video, or a live camera stream."""

    IMAGE = "IMAGE"
    VIDEO = "VIDEO"
    LIVE_STREAM = "LIVE_STREAM"
