"""The classifier of sounds."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from litegpu.errors import ModelError, TaskError
from litegpu.tasks.audio.core.audio_record import AudioRecord
from litegpu.tasks.audio.core.audio_task_running_mode import AudioTaskRunningMode as RunningMode
from litegpu.tasks.audio.core.resampling import Floats, Resampler
from litegpu.tasks.components.containers.audio_data import AudioData
from litegpu.tasks.components.containers.classification_result import ClassificationResult
from litegpu.tasks.components.processors.classifier_options import ClassifierOptions
from litegpu.tasks.core.assets import model_of
from litegpu.tasks.core.base_options import BaseOptions
from litegpu.tasks.core.heads import class_heads, classified
from litegpu.tasks.core.live_stream import LiveStream
from litegpu.tasks.core.model import TensorModel

if TYPE_CHECKING:
    from typing_extensions import Self

AudioClassifierResult = ClassificationResult
_MICROSECONDS = 1_000_000


@dataclass
class _Task:
    base_options: BaseOptions
    running_mode: RunningMode = RunningMode.AUDIO_CLIPS
    result_callback: Callable[[ClassificationResult, int], None] | None = None


@dataclass
class AudioClassifierOptions(ClassifierOptions, _Task):
    """The options of an AudioClassifier: see also ClassifierOptions.

    Args:
        base_options: the model.
        running_mode: separate clips, or the blocks of a stream.
        result_callback: the callback of a stream, which another thread calls with each result and
            its timestamp in milliseconds.
    """


class _Block(NamedTuple):
    """A block of a stream; without samples it is the end."""

    samples: Floats | None
    timestamp_ms: int


class AudioClassifier:
    """Classifies sounds; results are sorted by descending score.

    The metadata of the model have the sample rate and the number of channels of its input. Sound of
    another rate is resampled, and channels become one for a model of one channel. Longer sounds are
    split into chunks of the model's length; the last one is filled up with silence.
    """

    def __init__(self, options: AudioClassifierOptions) -> None:
        """Open the model; `create_from_options` and `create_from_model_path` are shorter.

        Raises:
            TaskError: an option is invalid.
            LitegpuError: the model is missing, damaged, no model of sounds, or cannot be compiled.
        """
        options.check()
        self._mode, self._callback = RunningMode(options.running_mode), options.result_callback
        streams = self._mode == RunningMode.AUDIO_STREAM
        if streams and self._callback is None:
            raise TaskError("The running mode is AUDIO_STREAM. Give a result_callback, too.")
        if not streams and self._callback is not None:
            raise TaskError(
                "The running mode is AUDIO_CLIPS, which returns results. Leave result_callback "
                "out, or use AUDIO_STREAM."
            )
        self._lock, self._order = threading.RLock(), threading.Lock()
        self._closed, self._released, self._last = False, False, -1
        self._rate: float | None = None
        self._resampler: Resampler | None = None
        self._time: int | None = None
        self._stream: LiveStream[_Block] | None = None
        self._model = TensorModel(model_of(options.base_options), options.base_options)
        try:
            self._target, self._channels, self._length = _sound(self._model)
            self._heads = class_heads(self._model, options)
            self._waiting: Floats = np.zeros((0, self._channels), np.float32)
            if streams:
                self._stream = LiveStream(
                    self._handle, "litegpu AudioClassifier", item="block", drops=False
                )
        except BaseException:
            self._model.close()
            raise

    @classmethod
    def create_from_options(cls, options: AudioClassifierOptions) -> Self:
        """Return the task with these options. Raises as the constructor does."""
        return cls(options)

    @classmethod
    def create_from_model_path(cls, model_path: str | os.PathLike[str]) -> Self:
        """Return the task for clips, with default options."""
        return cls(AudioClassifierOptions(base_options=BaseOptions(model_asset_path=model_path)))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Classify the rest of a stream, and release the model. Repeated calls do nothing.

        Raises:
            ExecutionError: a block of the stream failed.
        """
        with self._order:
            closed, self._closed = self._closed, True
        if closed:
            return
        try:
            if self._stream is not None:
                try:
                    self._stream.send(_Block(None, 0))
                finally:
                    self._stream.close()
        finally:
            with self._lock:
                self._released = True
                self._model.close()

    def create_audio_record(
        self, num_channels: int, sample_rate: int, required_input_buffer_size: int
    ) -> AudioRecord:
        """Return a record of the microphone, which `AudioRecord.start_recording` starts.

        `required_input_buffer_size` is the number of samples per channel that it stores. Raises the
        errors of AudioRecord.
        """
        return AudioRecord(num_channels, sample_rate, required_input_buffer_size)

    def classify(self, audio_clip: AudioData) -> list[ClassificationResult]:
        """Return the classes of each chunk of a clip, in the running mode AUDIO_CLIPS.

        The `timestamp_ms` of a result is the start of its chunk in the clip.

        Raises:
            TaskError: the task has another running mode, the clip has no sample rate or no samples,
                or its channels do not fit the model.
            LitegpuError: the device fails.
        """
        self._check(RunningMode.AUDIO_CLIPS)
        rate, samples = self._samples(audio_clip)
        if rate != self._target:
            resampler = Resampler(rate, self._target, self._channels)
            samples = np.concatenate([resampler(samples), resampler.flush()])
        with self._lock:
            self._check(RunningMode.AUDIO_CLIPS)
            return [
                self._classified(samples[first : first + self._length], self._start(number))
                for number, first in enumerate(range(0, len(samples), self._length))
            ]

    def classify_async(self, audio_block: AudioData, timestamp_ms: int) -> None:
        """Submit the next block of a stream, in the running mode AUDIO_STREAM; return at once.

        `result_callback` gets the classes of each chunk that is complete. Blocks are never dropped.
        The first timestamp is that of the stream, and the others must increase.

        Raises:
            TaskError: the task has another running mode, the timestamp does not increase, the
                sample rate is missing or another one than before, or the channels do not fit.
            ExecutionError: an earlier block failed.
        """
        self._check(RunningMode.AUDIO_STREAM)
        rate, samples = self._samples(audio_block)
        assert self._stream is not None
        with self._order:
            self._check(RunningMode.AUDIO_STREAM)
            if timestamp_ms <= self._last:
                raise TaskError(
                    f"The timestamp {timestamp_ms} ms does not follow {self._last} ms. Timestamps "
                    "must increase from block to block, from 0 on."
                )
            if self._rate not in (None, rate):
                raise TaskError(
                    f"The block has {rate} samples per second, and earlier ones had {self._rate}. "
                    "All blocks of a stream must have the same rate."
                )
            self._last, self._rate = timestamp_ms, rate
            self._stream.send(_Block(samples, timestamp_ms))

    def _check(self, mode: RunningMode) -> None:
        if self._mode != mode:
            raise TaskError(
                f"This method is for the running mode {mode.name}, and the task was created for "
                f"{self._mode.name}. Create it with running_mode=RunningMode.{mode.name}."
            )
        if self._closed:
            raise TaskError("The task is closed. Create another one.")

    def _samples(self, data: AudioData) -> tuple[float, Floats]:
        """Return the rate and the samples `[N, channels]` for the model, before resampling."""
        rate = data.audio_format.sample_rate
        if not rate or not 0 < rate < math.inf:
            raise TaskError(
                f"The sample rate of the audio data is {rate}. Give a positive number: "
                "AudioData.create_from_array(samples, sample_rate)."
            )
        samples = data.buffer.copy()
        if not len(samples):
            raise TaskError("The audio data are empty. Give at least one sample.")
        if samples.shape[1] == self._channels:
            return float(rate), samples
        if self._channels == 1:
            return float(rate), samples.mean(axis=1, keepdims=True)
        raise TaskError(
            f"The audio data have {samples.shape[1]} channels, and the model takes "
            f"{self._channels}. Give as many."
        )

    def _start(self, number: int) -> int:
        """Return the start of a chunk in microseconds."""
        return number * int(self._length / self._target * _MICROSECONDS + 0.5)

    def _classified(self, chunk: Floats, microseconds: int) -> ClassificationResult:
        padded = np.zeros((self._length, self._channels), np.float32)
        padded[: len(chunk)] = chunk
        return classified(self._heads, self._model(padded), microseconds // 1000)

    # The stream, on its thread

    def _handle(self, block: _Block) -> None:
        for chunk in self._chunks(block):
            assert self._time is not None and self._callback is not None
            with self._lock:
                if self._released:  # the callback has closed the task
                    return
                result = self._classified(chunk, self._time)
            self._time += self._start(1)
            self._callback(result, result.timestamp_ms or 0)

    def _chunks(self, block: _Block) -> Iterator[Floats]:
        """Yield the chunks that a block completes; at the end, yield the last chunk."""
        if block.samples is not None:
            if self._time is None:
                self._time = block.timestamp_ms * 1000
                if self._rate is not None and self._rate != self._target:
                    self._resampler = Resampler(self._rate, self._target, self._channels)
            added = block.samples if self._resampler is None else self._resampler(block.samples)
        elif self._resampler is not None:
            added = self._resampler.flush()
        else:
            added = self._waiting[:0]
        waiting = np.concatenate([self._waiting, added])
        complete = len(waiting) // self._length * self._length
        self._waiting = waiting[complete:]
        for first in range(0, complete, self._length):
            yield waiting[first : first + self._length]
        if block.samples is None and len(self._waiting):
            yield self._waiting


def _sound(model: TensorModel) -> tuple[int, int, int]:
    """Return the sample rate, the channels and the samples per channel that a model takes.

    Raises:
        ModelError: it is no model of sounds.
    """
    notes = model.notes.inputs
    if len(model.inputs) != 1 or not notes or not (notes[0].sample_rate and notes[0].channels):
        raise ModelError(
            "The model is no classifier of sounds: its metadata have no sample rate and channels "
            "of a single input. Use a model with MediaPipe's metadata."
        )
    size, channels = int(np.prod(model.inputs[0])), notes[0].channels
    if size % channels:
        raise ModelError(
            f"The input of the model has {size} numbers, which {channels} channels cannot share. "
            "Write its metadata again."
        )
    return notes[0].sample_rate, channels, size // channels
