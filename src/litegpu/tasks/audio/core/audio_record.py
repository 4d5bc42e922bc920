"""The newest sound of a microphone."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from litegpu.errors import TaskError, missing_dependency
from litegpu.tasks.audio.core.resampling import Floats


class AudioRecord:
    """Records a microphone into a buffer of its newest samples."""

    def __init__(self, channels: int, sampling_rate: int, buffer_size: int) -> None:
        """Open the system's default microphone; `start_recording` starts it.

        `buffer_size` is the number of samples per channel that `read` can return.

        Raises:
            TaskError: a number is not positive, or there is no such microphone.
            MissingDependencyError: the package sounddevice, or its library PortAudio, is missing.
        """
        given = {"channels": channels, "sampling_rate": sampling_rate, "buffer_size": buffer_size}
        for name, value in given.items():
            if value <= 0:
                raise TaskError(f"{name} is {value}. Give a positive number.")
        self.channels, self.sampling_rate, self.buffer_size = channels, sampling_rate, buffer_size
        self._lock = threading.Lock()
        self._buffer: Floats = np.zeros((buffer_size, channels), np.float32)
        sounddevice = _sounddevice()
        try:
            self._stream = sounddevice.InputStream(
                channels=channels, samplerate=sampling_rate, callback=self._add, dtype="float32"
            )
        except sounddevice.PortAudioError as error:
            raise TaskError(
                f"The microphone cannot record {channels} channels at {sampling_rate} Hz: {error}. "
                "Connect one, or give other numbers."
            ) from error

    def _add(self, samples: Floats, *_: Any) -> None:
        with self._lock:
            self._buffer = np.concatenate([self._buffer, samples])[-self.buffer_size :]

    def start_recording(self) -> None:
        """Clear the buffer and start to record."""
        with self._lock:
            self._buffer = np.zeros_like(self._buffer)
        self._stream.start()

    def stop(self) -> None:
        """Stop recording. `read` still returns the newest samples."""
        self._stream.stop()

    def read(self, size: int) -> Floats:
        """Return the newest `size` samples, `[size, channels]` float32 from -1 to 1.

        Raises:
            TaskError: the buffer has fewer samples, or `size` is not positive.
        """
        if not 0 < size <= self.buffer_size:
            raise TaskError(
                f"The buffer cannot return {size} samples. Read 1 to its size, {self.buffer_size}."
            )
        with self._lock:
            return self._buffer[-size:].copy()


def _sounddevice() -> Any:
    try:
        import sounddevice
    except ImportError as error:
        raise missing_dependency("sounddevice", "audio", "Recording a microphone") from error
    except OSError as error:  # its library is no part of the wheel for Linux
        found = missing_dependency(
            *("sounddevice", "audio", "Recording a microphone"),
            f"cannot load its library ({error}): apt-get install libportaudio2. Or install it",
        )
        raise found from error
    return sounddevice
