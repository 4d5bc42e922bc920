"""Audio tasks with the names, options and results of MediaPipe Tasks."""

from litegpu.tasks.audio.audio_classifier import (
    AudioClassifier,
    AudioClassifierOptions,
    AudioClassifierResult,
)
from litegpu.tasks.audio.core.audio_task_running_mode import AudioTaskRunningMode as RunningMode

__all__ = ["AudioClassifier", "AudioClassifierOptions", "AudioClassifierResult", "RunningMode"]
