"""Masks of pictures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from litegpu.errors import ModelError, TaskError
from litegpu.files.metadata import AttachedFile, FileKind
from litegpu.tasks import Image, ImageFormat, vision
from litegpu.tasks.components.containers import Rect
from litegpu.tools.picture_flag import default_picture
from model_metadata import Noted, Written, segmenter_metadata
from real_models import find
from seeing_models import saying
from task_models import on_cpu, picture, segmenter

SCORES = np.random.default_rng(0).normal(size=(4, 6, 3)).astype(np.float32)
SIGMOID, SOFTMAX = 1, 2


def segmented(model: bytes, image: Image, **options: Any) -> vision.ImageSegmenterResult:
    settings = vision.ImageSegmenterOptions(base_options=on_cpu(model), **options)
    with vision.ImageSegmenter.create_from_options(settings) as task:
        return task.segment(image)


def activated(model: bytes, activation: int) -> bytes:
    """Return a model whose metadata name its activation."""
    custom = {"SEGMENTER_METADATA": segmenter_metadata(activation)}
    return Written([Noted()], [Noted()], custom=custom).on(model)


def masks(result: vision.ImageSegmenterResult) -> np.ndarray:
    assert result.confidence_masks is not None
    assert {each.image_format for each in result.confidence_masks} == {ImageFormat.VEC32F1}
    return np.stack([each.numpy_view() for each in result.confidence_masks], -1)


def test_there_is_a_mask_for_each_class() -> None:
    result = segmented(segmenter(SCORES), picture(4, 6))
    assert result.category_mask is None
    np.testing.assert_array_equal(masks(result), SCORES)


def test_scores_become_probabilities() -> None:
    powers = np.exp(SCORES)
    softmax = powers / powers.sum(-1, keepdims=True)
    found = masks(segmented(activated(segmenter(SCORES), SOFTMAX), picture(4, 6)))
    np.testing.assert_allclose(found, softmax, rtol=1e-5)
    found = masks(segmented(activated(segmenter(SCORES), SIGMOID), picture(4, 6)))
    np.testing.assert_allclose(found, 1 / (1 + np.exp(-SCORES)), rtol=1e-5)


def interpolated(scores: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Return scores at fractional positions, `[rows, columns, classes]`."""

    def along(values: np.ndarray, at: np.ndarray) -> np.ndarray:
        known = np.arange(len(values))
        flat = values.reshape(len(values), -1)
        wide = [np.interp(at, known, each) for each in flat.T]
        return np.stack(wide, -1).reshape(len(at), *values.shape[1:])

    return along(along(scores, rows).swapaxes(0, 1), columns).swapaxes(0, 1)


@pytest.mark.parametrize(("height", "width"), [(20, 30), (3, 2), (4, 11)])
def test_masks_have_the_size_of_the_picture(height: int, width: int) -> None:
    found = masks(segmented(segmenter(SCORES), picture(height, width)))
    rows = (np.arange(height) + 0.5) * 4 / height - 0.5
    columns = (np.arange(width) + 0.5) * 6 / width - 0.5
    np.testing.assert_allclose(found, interpolated(SCORES, rows, columns), atol=1e-5)


@pytest.mark.parametrize(("height", "width"), [(20, 30), (70, 9), (1, 1)])
def test_the_category_of_a_pixel_has_the_highest_score(height: int, width: int) -> None:
    options = {"output_category_mask": True, "output_confidence_masks": False}
    result = segmented(segmenter(SCORES), picture(height, width), **options)
    assert result.confidence_masks is None and result.category_mask is not None
    assert result.category_mask.image_format == ImageFormat.GRAY8
    rows = np.arange(height) * (3 / max(height - 1, 1))
    columns = np.arange(width) * (5 / max(width - 1, 1))
    wanted = interpolated(SCORES, rows, columns).argmax(-1)
    assert (result.category_mask.numpy_view() == wanted).mean() > 0.999


@pytest.mark.parametrize(("activation", "cut"), [(0, 0.5), (SIGMOID, 0.0)])
def test_one_class_is_in_front_or_not(activation: int, cut: float) -> None:
    model = activated(segmenter(SCORES[:, :, :1]), activation)
    result = segmented(model, picture(4, 6), output_category_mask=True)
    assert result.category_mask is not None
    wanted = np.where(SCORES[:, :, 0] > cut, 0, 255)
    np.testing.assert_array_equal(result.category_mask.numpy_view(), wanted)


def test_an_output_without_classes_is_one_mask() -> None:
    result = segmented(saying({"mask": SCORES[np.newaxis, :, :, 0]}), picture(4, 6))
    np.testing.assert_array_equal(masks(result)[:, :, 0], SCORES[:, :, 0])


def test_masks_are_computed_when_they_are_read() -> None:
    result = segmented(segmenter(SCORES), picture(20, 30))
    assert result.confidence_masks is not None
    mask = result.confidence_masks[0]
    assert (mask.width, mask.height, mask._data) == (30, 20, None)
    assert mask.numpy_view() is mask.numpy_view()
    with pytest.raises(ValueError, match=r"read-only"):
        mask.numpy_view()[0] = 1


def test_classes_have_labels() -> None:
    files = (AttachedFile("labels.txt", FileKind.AXIS_LABELS),)
    model = Written([], [Noted(files=files)], files={"labels.txt": "a\nb\nc"}).on(segmenter(SCORES))
    with vision.ImageSegmenter(vision.ImageSegmenterOptions(on_cpu(model))) as task:
        assert task.labels == ["a", "b", "c"]
    with vision.ImageSegmenter(vision.ImageSegmenterOptions(on_cpu(segmenter(SCORES)))) as task:
        assert task.labels == []


def test_a_frame_and_a_camera() -> None:
    modes, found = vision.RunningMode, []
    base = on_cpu(segmenter(SCORES))
    settings = vision.ImageSegmenterOptions(base_options=base, running_mode=modes.VIDEO)
    with vision.ImageSegmenter(settings) as task:
        assert masks(task.segment_for_video(picture(), 0)).shape == (20, 30, 3)
    settings = vision.ImageSegmenterOptions(
        base_options=base,
        running_mode=modes.LIVE_STREAM,
        result_callback=lambda *each: found.append(each),
    )
    with vision.ImageSegmenter(settings) as task:
        task.segment_async(picture(), 0)
    assert masks(found[0][0]).shape == (20, 30, 3)


@pytest.mark.parametrize(
    ("model", "options", "error", "message"),
    [
        (
            segmenter(SCORES),
            {"output_confidence_masks": False},
            TaskError,
            "Neither output_confidence_masks nor output_category_mask is set",
        ),
        (
            saying({"scores": [[1.0, 2.0]]}),
            {},
            ModelError,
            r"The last output is \[1, 2\]. A segme",
        ),
        (
            activated(segmenter(SCORES), 9),
            {},
            ModelError,
            "The metadata of the segmenter are dama",
        ),
    ],
)
def test_models_that_do_not_segment(
    model: bytes, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        segmented(model, picture(), **options)


def test_a_segmenter_looks_at_the_whole_picture() -> None:
    part = vision.ImageProcessingOptions(Rect(0, 0, 0.5, 0.5))
    with (
        vision.ImageSegmenter(vision.ImageSegmenterOptions(on_cpu(segmenter(SCORES)))) as task,
        pytest.raises(TaskError, match=r"takes no region_of_interest: it looks at the whole"),
    ):
        task.segment(picture(), part)


@pytest.mark.real_model
def test_results_are_those_of_mediapipe() -> None:
    """Recorded from MediaPipe 0.10.21 with the same model and picture."""
    model = activated(find("deeplabv3_257_mv_gpu").read_bytes(), SOFTMAX)
    image = Image.create_from_file(default_picture())
    result = segmented(model, image, output_category_mask=True)
    assert result.category_mask is not None
    classes, counts = np.unique(result.category_mask.numpy_view(), return_counts=True)
    assert classes.tolist() == [0, 15]
    assert counts.tolist() == pytest.approx([114698, 192502], rel=0.005)
    person = masks(result)[:, :, 15]
    assert person.mean() == pytest.approx(0.6246, abs=0.003)
    wanted = [0.0021865, 0.0034928, 0.930726, 0.9990876, 0.9997417, 7.6e-5, 7.2e-5]
    assert person[200, ::80] == pytest.approx(wanted, abs=0.02)
