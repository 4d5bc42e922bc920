"""The three running modes, timestamps, and the end of a task."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from every_backend import on_every_backend
from litegpu.errors import ExecutionError, ModelError, TaskError, UnsupportedDeviceError
from litegpu.tasks import BaseOptions, Image, vision
from litegpu.tasks.core import model as core_model
from litegpu.tasks.core.live_stream import LiveStream
from task_models import CPU, on_cpu, picture, showing

SHOWING = showing()
MODES = vision.RunningMode


def embedder(**options: Any) -> vision.ImageEmbedder:
    settings = vision.ImageEmbedderOptions(base_options=on_cpu(SHOWING), **options)
    return vision.ImageEmbedder.create_from_options(settings)


def test_single_pictures() -> None:
    with embedder() as task:
        one, other = task.embed(picture()), task.embed(picture(seed=1))
    assert not np.array_equal(one.embeddings[0].embedding, other.embeddings[0].embedding)


def test_a_task_of_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "model.tflite"
    path.write_bytes(SHOWING)
    monkeypatch.setattr(core_model, "is_gpu_available", lambda: False)
    monkeypatch.delenv("LITEGPU_BACKEND", raising=False)
    for given in (path, str(path)):
        with vision.ImageEmbedder.create_from_model_path(given) as task:
            assert task._model._model.report is None  # no device is opened without a GPU
            assert len(task.embed(picture()).embeddings) == 1


@on_every_backend
def test_on_a_gpu(backend: str) -> None:
    base = BaseOptions(
        model_asset_buffer=SHOWING,
        delegate=BaseOptions.Delegate.GPU,
        gpu_options={"backend": backend, "min_nodes_per_partition": 1},
    )
    with (
        vision.ImageEmbedder(vision.ImageEmbedderOptions(base_options=base)) as task,
        embedder() as host,
    ):
        report = task._model._model.report
        assert report is not None and report.partitions
        found, wanted = (each.embed(picture()).embeddings[0].embedding for each in (task, host))
    np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_frames_of_a_video_follow_each_other() -> None:
    with embedder(running_mode=MODES.VIDEO) as task:
        task.embed_for_video(picture(), 0)
        task.embed_for_video(picture(), 33)
        for timestamp in (33, 5, -1):
            with pytest.raises(TaskError, match=rf"timestamp {timestamp} ms does not follow 33 ms"):
                task.embed_for_video(picture(), timestamp)
        task.embed_for_video(picture(), 34)


def test_results_of_a_live_stream_come_with_their_picture() -> None:
    found: list[tuple[Any, Image, int]] = []
    arrived = threading.Event()

    def callback(result: Any, image: Image, timestamp: int) -> None:
        found.append((result, image, timestamp))
        arrived.set()

    image = picture()
    with embedder(running_mode=MODES.LIVE_STREAM, result_callback=callback) as task:
        task.embed_async(image, 7)
        assert arrived.wait(30)
        with pytest.raises(TaskError, match=r"timestamp 7 ms does not follow 7 ms"):
            task.embed_async(image, 7)
    ((result, returned, timestamp),) = found
    assert returned is image and timestamp == 7
    with embedder() as single:
        np.testing.assert_array_equal(
            result.embeddings[0].embedding, single.embed(image).embeddings[0].embedding
        )


def test_the_newest_picture_waits_and_older_ones_go() -> None:
    handled: list[int] = []
    busy, go_on = threading.Event(), threading.Event()

    def handle(item: int) -> None:
        handled.append(item)
        busy.set()
        assert go_on.wait(30)

    stream = LiveStream(handle, "test")
    stream.send(0)
    assert busy.wait(30)
    for item in (1, 2, 3):
        stream.send(item)
    go_on.set()
    stream.close()
    assert handled == [0, 3]


def test_a_failed_picture_is_reported_later() -> None:
    done = threading.Event()

    def callback(*_: object) -> None:
        done.set()
        raise KeyError("seen")

    task = embedder(running_mode=MODES.LIVE_STREAM, result_callback=callback)
    task.embed_async(picture(), 1)
    assert done.wait(30)
    with pytest.raises(ExecutionError, match=r"A picture of the live stream failed: 'seen'"):
        task.close()
    task.close()


def test_a_callback_may_end_the_task() -> None:
    ended = threading.Event()
    tasks: list[vision.ImageEmbedder] = []

    def callback(*_: object) -> None:
        tasks[0].close()
        ended.set()

    tasks.append(embedder(running_mode=MODES.LIVE_STREAM, result_callback=callback))
    tasks[0].embed_async(picture(), 1)
    assert ended.wait(30)
    with pytest.raises(TaskError, match=r"The task is closed"):
        tasks[0].embed_async(picture(), 2)


def test_a_system_without_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    with pytest.raises(UnsupportedDeviceError, match=r"can't start new thread"):
        LiveStream(print, "test")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"running_mode": MODES.LIVE_STREAM}, "is LIVE_STREAM. Give a result_callback, too"),
        ({"result_callback": print}, "mode is IMAGE, which returns results. Leave result_callback"),
        (
            {"running_mode": MODES.VIDEO, "result_callback": print},
            "is VIDEO, which returns results. Leave result_callback out, or use LIVE_STREAM",
        ),
    ],
)
def test_callbacks_belong_to_live_streams(options: dict[str, Any], message: str) -> None:
    with pytest.raises(TaskError, match=message):
        embedder(**options)


def test_methods_belong_to_running_modes() -> None:
    with embedder() as task:
        with pytest.raises(TaskError, match=r"is for the running mode VIDEO, and the task was cre"):
            task.embed_for_video(picture(), 0)
        with pytest.raises(TaskError, match=r"Create it with running_mode=RunningMode.LIVE_STREAM"):
            task.embed_async(picture(), 0)
        given: Any = np.zeros((2, 2, 3), np.uint8)
        with pytest.raises(TaskError, match=r"The image is a ndarray. Give an Image: Image"):
            task.embed(given)
    with (
        embedder(running_mode=MODES.VIDEO) as task,
        pytest.raises(TaskError, match=r"and the task was created for VIDEO"),
    ):
        task.embed(picture())


def test_a_closed_task() -> None:
    for mode in (MODES.IMAGE, MODES.VIDEO):
        task = embedder(running_mode=mode)
        task.close()
        task.close()
        with pytest.raises(TaskError, match=r"The task is closed. Create another one"):
            task.embed(picture()) if mode == MODES.IMAGE else task.embed_for_video(picture(), 0)


@pytest.mark.parametrize(
    ("base", "error", "message"),
    [
        (BaseOptions(), TaskError, "name no model. Give model_asset_path or model_asset_buffer"),
        (BaseOptions("absent.tflite"), ModelError, "Model file 'absent.tflite' does not exist"),
        (
            BaseOptions(model_asset_buffer=b"TFL3"),
            ModelError,
            "The model is damaged, or has no in",
        ),
        (
            BaseOptions("zoo:mobilenet_v1_0.25_128", delegate=CPU, gpu_options={"backend": "cuda"}),
            ValueError,
            "backend: these are options of the GPU, which was not requested",
        ),
    ],
)
def test_models_that_cannot_be_opened(
    base: BaseOptions, error: type[Exception], message: str
) -> None:
    options = vision.ImageEmbedderOptions(base_options=base)
    with pytest.raises(error, match=message):
        vision.ImageEmbedder.create_from_options(options)
