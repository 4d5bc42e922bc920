"""How a task receives its pictures."""

from __future__ import annotations

import enum


class VisionTaskRunningMode(enum.Enum):
    """Single pictures, the frames of a video, or those of a camera as they come."""

    IMAGE = "IMAGE"
    VIDEO = "VIDEO"
    LIVE_STREAM = "LIVE_STREAM"
