"""Sound: samples, their rate and their channels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from litegpu.errors import TaskError


@dataclass
class AudioDataFormat:
    """The number of channels, and the samples per second of each channel."""

    num_channels: int = 1
    sample_rate: float | None = None


class AudioData:
    """A buffer of sound, `[length, channels]` float32 from -1 to 1."""

    def __init__(self, buffer_length: int, audio_format: AudioDataFormat | None = None) -> None:
        """Create a buffer of silence with this number of samples per channel."""
        self._format = audio_format or AudioDataFormat()
        self._buffer = np.zeros((buffer_length, self._format.num_channels), np.float32)

    def clear(self) -> None:
        """Replace the sound by silence."""
        self._buffer.fill(0)

    def load_from_array(self, src: NDArray[Any], offset: int = 0, size: int = -1) -> None:
        """Append samples; the oldest ones leave the buffer.

        Args:
            src: `[samples]` or `[samples, channels]`.
            offset: the first sample of `src` to append.
            size: the number of samples to append; a negative number for all.

        Raises:
            TaskError: the number of channels differs, or the samples are not in `src`.
        """
        channels = 1 if src.ndim == 1 else src.shape[1]
        if channels != self._format.num_channels:
            raise TaskError(
                f"The array has {channels} channels, and the audio data have "
                f"{self._format.num_channels}. Give an array [samples, channels] with as many."
            )
        size = len(src) if size < 0 else size
        if not 0 <= offset <= offset + size <= len(src):
            raise TaskError(
                f"The samples {offset} to {offset + size} are not in the array, which has "
                f"{len(src)}. Give another offset or size."
            )
        added = src[offset : offset + size].reshape(size, channels).astype(np.float32)
        joined = np.concatenate([self._buffer, added])
        self._buffer = joined[len(joined) - len(self._buffer) :]

    @classmethod
    def create_from_array(cls, src: NDArray[Any], sample_rate: float | None = None) -> AudioData:
        """Return a copy of samples, `[samples]` or `[samples, channels]`."""
        channels = 1 if src.ndim == 1 else src.shape[1]
        found = cls(len(src), AudioDataFormat(channels, sample_rate))
        found.load_from_array(src)
        return found

    @property
    def audio_format(self) -> AudioDataFormat:
        """The channels and the sample rate."""
        return self._format

    @property
    def buffer_length(self) -> int:
        """The number of samples per channel."""
        return len(self._buffer)

    @property
    def buffer(self) -> NDArray[np.float32]:
        """The samples, `[length, channels]`."""
        return self._buffer
