"""Embeddings and their similarity."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from litegpu.errors import TaskError
from litegpu.tasks import vision
from litegpu.tasks.components.containers import Embedding, EmbeddingResult
from litegpu.tasks.components.utils import cosine_similarity
from model_metadata import Noted, Written
from seeing_models import saying
from task_models import on_cpu, picture, showing

SEEN = [[3.0, -4.0, 0.0]]


def embedded(model: bytes, **options: Any) -> Embedding:
    settings = vision.ImageEmbedderOptions(base_options=on_cpu(model), **options)
    with vision.ImageEmbedder.create_from_options(settings) as task:
        (found,) = task.embed(picture()).embeddings
    return found


def test_numbers_are_those_of_the_model() -> None:
    found = embedded(saying({"numbers": SEEN}))
    assert found.embedding.dtype == np.float64
    assert found.embedding.tolist() == SEEN[0]
    assert (found.head_index, found.head_name) == (0, None)
    named = Written([], [Noted("features")]).on(saying({"numbers": SEEN}))
    assert embedded(named).head_name == "features"


def test_numbers_are_normalized() -> None:
    found = embedded(saying({"numbers": SEEN}), l2_normalize=True).embedding
    assert found == pytest.approx([0.6, -0.8, 0.0])
    zero = embedded(saying({"numbers": [[0.0, 0.0]]}), l2_normalize=True).embedding
    assert zero.tolist() == [0, 0]


def test_numbers_are_quantized() -> None:
    seen = [[0.5, -0.5, 2.0, -2.0, 0.50390625, -0.50390625]]
    found = embedded(saying({"numbers": seen}), quantize=True).embedding
    assert found.dtype == np.uint8
    assert found.view(np.int8).tolist() == [64, -64, 127, -128, 65, -65]


def test_the_mean_and_deviation_are_those_of_the_metadata() -> None:
    model = Written([Noted(mean=(100.0,), std=(50.0,))], [Noted()]).on(showing())
    settings = vision.ImageEmbedderOptions(base_options=on_cpu(model))
    image = picture(10, 10)
    with vision.ImageEmbedder(settings) as task:
        found = task.embed(image).embeddings[0].embedding
    wanted = (image.numpy_view().ravel() - 100.0) / 50
    assert found == pytest.approx(wanted, abs=1e-5)


def test_a_frame_and_a_camera() -> None:
    modes, found = vision.RunningMode, []
    base = on_cpu(saying({"numbers": SEEN}))
    settings = vision.ImageEmbedderOptions(base_options=base, running_mode=modes.VIDEO)
    with vision.ImageEmbedder(settings) as task:
        assert isinstance(task.embed_for_video(picture(), 0), EmbeddingResult)
    settings = vision.ImageEmbedderOptions(
        base_options=base,
        running_mode=modes.LIVE_STREAM,
        result_callback=lambda *each: found.append(each),
    )
    with vision.ImageEmbedder(settings) as task:
        task.embed_async(picture(), 0)
    assert found[0][0].embeddings[0].embedding.tolist() == SEEN[0]


def embedding(*values: float, quantized: bool = False) -> Embedding:
    array = np.array(values, np.int8).view(np.uint8) if quantized else np.array(values, float)
    return Embedding(array)


@pytest.mark.parametrize("quantized", [False, True])
def test_similarity(quantized: bool) -> None:
    one, other = (embedding(*each, quantized=quantized) for each in ((3, 4), (4, -3)))
    against = embedding(-6, -8, quantized=quantized)
    similarity = vision.ImageEmbedder.cosine_similarity
    assert similarity(one, one) == pytest.approx(1)
    assert similarity(one, other) == pytest.approx(0)
    assert similarity(one, against) == pytest.approx(-1)


@pytest.mark.parametrize(
    ("one", "other", "message"),
    [
        (embedding(1, 2), embedding(1), "have 2 and 1 numbers. Give two of the same model"),
        (embedding(), embedding(), "The embeddings are empty"),
        (embedding(1), embedding(1, quantized=True), "One embedding is quantized, the other is no"),
        (embedding(0, 0), embedding(1, 2), "An embedding has only zeros, and no direction"),
    ],
)
def test_embeddings_without_a_similarity(one: Embedding, other: Embedding, message: str) -> None:
    with pytest.raises(TaskError, match=message):
        cosine_similarity(one, other)
