"""Sounds: clips, streams, sample rates, and the buffer of samples."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from litegpu.errors import ExecutionError, MissingDependencyError, ModelError, TaskError
from litegpu.tasks import audio
from litegpu.tasks.audio.core.audio_record import AudioRecord
from litegpu.tasks.audio.core.resampling import Resampler
from litegpu.tasks.components.containers import AudioData, AudioDataFormat
from sound_models import LENGTH, RATE, hearing
from task_models import on_cpu

CHUNK = LENGTH / RATE * 1000
STREAM = audio.RunningMode.AUDIO_STREAM


def created(model: bytes | None = None, **options: Any) -> audio.AudioClassifier:
    base = on_cpu(model or hearing())
    return audio.AudioClassifier.create_from_options(
        audio.AudioClassifierOptions(base_options=base, **options)
    )


def heard(result: audio.AudioClassifierResult) -> np.ndarray[Any, Any]:
    """Return what a model has heard, `[samples]`."""
    (head,) = result.classifications
    found = np.zeros(len(head.categories))
    for each in head.categories:
        assert each.index is not None
        found[each.index] = each.score
    return found


def noise(samples: int, channels: int = 1) -> np.ndarray[Any, Any]:
    return np.random.default_rng(0).normal(0, 0.3, (samples, channels)).astype(np.float32)


def test_a_clip_is_split_into_chunks() -> None:
    sound = noise(250)
    with created() as task:
        found = task.classify(AudioData.create_from_array(sound, RATE))
    assert [each.timestamp_ms for each in found] == [0, 6, 12]
    joined = np.concatenate([heard(each) for each in found])
    assert joined == pytest.approx(np.append(sound[:, 0], np.zeros(50)))


def test_options_select_classes() -> None:
    sound = np.zeros(LENGTH, np.float32)
    sound[[3, 7, 9]] = 0.5, 0.9, 0.2
    clip = AudioData.create_from_array(sound, RATE)
    with created(max_results=3, score_threshold=0.3) as task:
        (result,) = task.classify(clip)
    (head,) = result.classifications
    assert [each.index for each in head.categories] == [7, 3]
    assert (head.head_index, head.head_name) == (0, "scores")


def test_channels() -> None:
    stereo = noise(LENGTH, 2)
    clip = AudioData.create_from_array(stereo, RATE)
    with created() as task:
        assert heard(task.classify(clip)[0]) == pytest.approx(stereo.mean(1))
    with created(hearing(2, (RATE, 2))) as task:
        assert heard(task.classify(clip)[0]) == pytest.approx(stereo.ravel())
        with pytest.raises(TaskError, match=r"have 1 channels, and the model takes 2\. Give"):
            task.classify(AudioData.create_from_array(stereo[:, 0], RATE))


@pytest.mark.parametrize("rate", [8000, 11025, 22050, 44100, 48000, 7777.5])
def test_a_tone_is_resampled(rate: float) -> None:
    times = np.arange(int(rate / 2)) / rate
    with created() as task:
        found = task.classify(AudioData.create_from_array(np.sin(2000 * times), rate))
    joined = np.concatenate([heard(each) for each in found])
    wanted = np.sin(2000 * np.arange(len(joined)) / RATE)
    assert joined[200:7800] == pytest.approx(wanted[200:7800], abs=0.01)


def test_frequencies_that_are_too_high_are_removed() -> None:
    tone = np.sin(2 * np.pi * 15000 * np.arange(44100) / 44100).astype(np.float32)
    found = Resampler(44100, RATE, 1)(tone[:, np.newaxis])
    assert abs(found[100:-100]).max() < 2e-3


@pytest.mark.parametrize("rate", [8000, 44100])
def test_blocks_are_resampled_as_the_whole(rate: float) -> None:
    sound = noise(1001, 2)
    whole, parts = (Resampler(rate, RATE, 2) for _ in range(2))
    wanted = np.concatenate([whole(sound), whole.flush()])
    pieces = [parts(sound[:1]), parts(sound[1:4]), parts(sound[4:400]), parts(sound[400:])]
    assert np.concatenate([*pieces, parts.flush()]) == pytest.approx(wanted, abs=1e-6)


def stream(rate: float, sound: np.ndarray[Any, Any], block: int = 170) -> list[tuple[Any, int]]:
    """Return the results of a stream, with their timestamps."""
    found: list[tuple[Any, int]] = []

    def show(result: audio.AudioClassifierResult, timestamp_ms: int) -> None:
        found.append((result, timestamp_ms))

    with created(running_mode=STREAM, result_callback=show) as task:
        for first in range(0, len(sound), block):
            part = AudioData.create_from_array(sound[first : first + block], rate)
            task.classify_async(part, 5 + first)
    return found


@pytest.mark.parametrize("rate", [RATE, 44100, 8000])
def test_a_stream_has_the_chunks_of_a_clip(rate: float) -> None:
    sound = noise(1010)
    with created() as task:
        wanted = task.classify(AudioData.create_from_array(sound, rate))
    found = stream(rate, sound)
    assert [timestamp for _, timestamp in found] == [
        5 + int(index * CHUNK) for index in range(len(wanted))
    ]
    for (result, timestamp), each in zip(found, wanted, strict=True):
        assert result.timestamp_ms == timestamp
        assert heard(result) == pytest.approx(heard(each), abs=1e-6)


def test_a_stream_without_blocks_and_one_closed_by_its_callback() -> None:
    assert stream(RATE, noise(0)) == []
    calls: list[int] = []

    def close(_: object, timestamp_ms: int) -> None:
        calls.append(timestamp_ms)
        task.close()

    task = created(running_mode=STREAM, result_callback=close)
    task.classify_async(AudioData.create_from_array(noise(5 * LENGTH), RATE), 0)
    assert task._stream is not None
    task._stream._thread.join()
    assert calls == [0]


def test_a_block_that_fails() -> None:
    def fail(_: object, timestamp_ms: int) -> None:
        raise RuntimeError(f"no use for {timestamp_ms}.")

    task = created(running_mode=STREAM, result_callback=fail)
    task.classify_async(AudioData.create_from_array(noise(LENGTH), RATE), 7)
    with pytest.raises(ExecutionError, match=r"A block of the live stream failed: no use for 7\."):
        task.close()
    task.close()


def test_wrong_calls_of_a_stream() -> None:
    clip = AudioData.create_from_array(noise(10), RATE)
    with created(running_mode=STREAM, result_callback=lambda *_: None) as task:
        task.classify_async(clip, 3)
        with pytest.raises(TaskError, match=r"The timestamp 3 ms does not follow 3 ms. Timestamps"):
            task.classify_async(clip, 3)
        with pytest.raises(TaskError, match=r"has 8000.0 samples per second, and earlier ones had"):
            task.classify_async(AudioData.create_from_array(noise(10), 8000), 4)
        with pytest.raises(TaskError, match=r"for the running mode AUDIO_CLIPS, and the task was"):
            task.classify(clip)
    with pytest.raises(TaskError, match=r"The task is closed. Create another one"):
        task.classify_async(clip, 9)


def test_wrong_clips() -> None:
    with created() as task:
        for rate in (None, 0, -1, np.inf):
            with pytest.raises(TaskError, match=rf"The sample rate of the audio data is {rate}. G"):
                task.classify(AudioData.create_from_array(noise(10), rate))
        with pytest.raises(TaskError, match=r"The audio data are empty. Give at least one sample"):
            task.classify(AudioData.create_from_array(noise(0), RATE))


@pytest.mark.parametrize(
    ("model", "options", "error", "message"),
    [
        (None, {"running_mode": STREAM}, TaskError, "AUDIO_STREAM. Give a result_callback, too"),
        (None, {"result_callback": print}, TaskError, "AUDIO_CLIPS, which returns results. Leave"),
        (None, {"max_results": 0}, TaskError, "max_results is 0. Use a positive number"),
        (hearing(sound=None), {}, ModelError, "The model is no classifier of sounds: its metada"),
        (hearing(sound=(0, 1)), {}, ModelError, "The model is no classifier of sounds: its meta"),
        (hearing(inputs=2), {}, ModelError, "The model is no classifier of sounds: its metadata"),
        (hearing(sound=(RATE, 3)), {}, ModelError, "has 100 numbers, which 3 channels cannot"),
    ],
)
def test_what_does_not_fit(
    model: bytes | None, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        created(model, **options)


def test_a_task_of_a_path(tmp_path: Any) -> None:
    path = tmp_path / "sound.tflite"
    path.write_bytes(hearing())
    with audio.AudioClassifier.create_from_model_path(path) as task:
        assert len(task.classify(AudioData.create_from_array(noise(10), RATE))) == 1


def test_a_buffer_keeps_the_newest_samples() -> None:
    data = AudioData(4, AudioDataFormat(1, RATE))
    assert data.buffer.tolist() == [[0.0]] * 4 and data.buffer_length == 4
    data.load_from_array(np.array([1, 2, 3]))
    assert data.buffer.ravel().tolist() == [0, 1, 2, 3]
    data.load_from_array(np.arange(10, 20), offset=2, size=2)
    assert data.buffer.ravel().tolist() == [2, 3, 12, 13]
    data.load_from_array(np.arange(10, 20))
    assert data.buffer.ravel().tolist() == [16, 17, 18, 19]
    data.clear()
    assert not data.buffer.any()
    stereo = AudioData.create_from_array(np.ones((3, 2)), 8000)
    assert stereo.audio_format == AudioDataFormat(2, 8000)
    assert stereo.buffer.shape == (3, 2) and stereo.buffer.dtype == np.float32


def test_samples_that_do_not_fit_a_buffer() -> None:
    data = AudioData(4)
    with pytest.raises(TaskError, match=r"has 2 channels, and the audio data have 1. Give"):
        data.load_from_array(np.ones((3, 2)))
    for offset, size in ((2, 3), (5, 0), (-1, 2)):
        with pytest.raises(TaskError, match=rf"The samples {offset} to {offset + size} are not in"):
            data.load_from_array(np.ones(4), offset, size)


class FakeError(Exception):
    pass


class Microphone:
    """Replaces the package sounddevice: its stream gets blocks from `hear`."""

    PortAudioError = FakeError

    def __init__(self, error: str = "") -> None:
        self.error = error
        self.opened: dict[str, Any] = {}
        self.calls: list[str] = []

    def InputStream(self, **options: Any) -> Microphone:  # noqa: N802 (sounddevice's name)
        if self.error:
            raise self.PortAudioError(self.error)
        self.opened = options
        return self

    def start(self) -> None:
        self.calls.append("start")

    def stop(self) -> None:
        self.calls.append("stop")

    def hear(self, *samples: float) -> None:
        block = np.array(samples, np.float32)[:, np.newaxis]
        self.opened["callback"](block, len(block), None, None)


def test_a_microphone_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    microphone = Microphone()
    monkeypatch.setitem(sys.modules, "sounddevice", microphone)
    with created() as task:
        record = task.create_audio_record(1, 16000, 5)
    assert (record.channels, record.sampling_rate, record.buffer_size) == (1, 16000, 5)
    assert microphone.opened["channels"] == 1 and microphone.opened["samplerate"] == 16000
    record.start_recording()
    microphone.hear(1, 2)
    microphone.hear(3)
    assert record.read(4).ravel().tolist() == [0, 1, 2, 3]
    assert record.read(5).shape == (5, 1)
    microphone.hear(*range(10, 20))
    assert record.read(5).ravel().tolist() == [15, 16, 17, 18, 19]
    record.stop()
    record.start_recording()
    assert not record.read(5).any()
    assert microphone.calls == ["start", "stop", "start"]
    for size in (0, 6):
        with pytest.raises(TaskError, match=rf"return {size} samples. Read 1 to its size, 5"):
            record.read(size)


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ((0, 16000, 5), "channels is 0. Give a positive number"),
        ((1, -1, 5), "sampling_rate is -1. Give a positive number"),
        ((1, 16000, 0), "buffer_size is 0. Give a positive number"),
    ],
)
def test_wrong_numbers_of_a_record(numbers: tuple[int, int, int], message: str) -> None:
    with created() as task, pytest.raises(TaskError, match=message):
        task.create_audio_record(*numbers)


def test_records_without_a_microphone(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    monkeypatch.setitem(sys.modules, "sounddevice", Microphone("no default device"))
    with pytest.raises(TaskError, match="cannot record 1 channels at 8000 Hz: no default device"):
        AudioRecord(1, 8000, 5)
    monkeypatch.setitem(sys.modules, "sounddevice", None)
    needed = r"Recording a microphone needs .* 'sounddevice'.* pip install 'litegpu\[audio\]'"
    with pytest.raises(MissingDependencyError, match=needed):
        AudioRecord(1, 8000, 5)
    monkeypatch.delitem(sys.modules, "sounddevice")
    (tmp_path / "sounddevice.py").write_text("raise OSError('PortAudio library not found')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(MissingDependencyError, match=r"not found\): apt-get install libportaudio2"):
        AudioRecord(1, 8000, 5)
