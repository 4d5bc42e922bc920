"""The running modes of audio tasks."""

from __future__ import annotations

import enum


class AudioTaskRunningMode(enum.Enum):
    """How a task gets sound: as separate clips, or as the blocks of a stream."""

    AUDIO_CLIPS = "AUDIO_CLIPS"
    AUDIO_STREAM = "AUDIO_STREAM"
