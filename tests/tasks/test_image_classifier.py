"""Classification: classes, their names and scores."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from litegpu.errors import ModelError, TaskError
from litegpu.files.metadata import AttachedFile, Calibration, FileKind
from litegpu.tasks import Image, ImageFormat, vision
from litegpu.tasks.core.classes import ScoreCalibration
from litegpu.tools.picture_flag import default_picture
from model_metadata import Noted, Written
from real_models import find
from seeing_models import saying
from task_models import on_cpu, picture

NAMES = {"labels.txt": "cat\ndog\nowl\nfox\n", "de.txt": "Katze\nHund\nEule\nFuchs\n"}
LABELS = (
    AttachedFile("labels.txt", FileKind.AXIS_LABELS),
    AttachedFile("de.txt", FileKind.AXIS_LABELS, "de"),
)
SEEN = [[0.1, 0.6, 0.2, 0.15]]


def noted(*, files: dict[str, str] = NAMES, scores: Any = SEEN, **fields: Any) -> bytes:
    """Return a model that sees these scores, with names of classes."""
    output = Noted("probability", files=fields.pop("labels", LABELS), **fields)
    return Written([Noted("image")], [output], files=files).on(saying({"scores": scores}))


def classified(model: bytes, **options: Any) -> list[tuple[Any, ...]]:
    settings = vision.ImageClassifierOptions(base_options=on_cpu(model), **options)
    with vision.ImageClassifier.create_from_options(settings) as task:
        (head,) = task.classify(picture()).classifications
    return [(c.index, c.score, c.category_name, c.display_name) for c in head.categories]


def test_the_highest_score_comes_first() -> None:
    found = classified(saying({"scores": SEEN}))
    assert [each[0] for each in found] == [1, 2, 3, 0]
    assert [each[1] for each in found] == pytest.approx([0.6, 0.2, 0.15, 0.1])
    assert {each[2:] for each in found} == {("", "")}


def test_classes_have_names() -> None:
    assert [each[2:] for each in classified(noted())] == [
        *(("dog", ""), ("owl", ""), ("fox", ""), ("cat", "")),
    ]
    german = classified(noted(), display_names_locale="de", max_results=1)
    assert [each[2:] for each in german] == [("dog", "Hund")]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"max_results": 2}, [1, 2]),
        ({"max_results": -1}, [1, 2, 3, 0]),
        ({"score_threshold": 0.15}, [1, 2, 3]),
        ({"category_allowlist": ["cat", "fox", "yak"]}, [3, 0]),
        ({"category_denylist": ["dog", "yak"]}, [2, 3, 0]),
        ({"category_denylist": ["dog"], "max_results": 1}, [2]),
    ],
)
def test_options_select_classes(options: dict[str, Any], expected: list[int]) -> None:
    assert [each[0] for each in classified(noted(), **options)] == expected


def test_the_metadata_have_a_threshold_that_options_replace() -> None:
    model = noted(threshold=0.18)
    assert [each[0] for each in classified(model)] == [1, 2]
    assert len(classified(model, score_threshold=0.0)) == 4


def test_several_outputs_have_names_and_numbers() -> None:
    model = saying({"a": [[0.5, 0.25]], "b": [[0.125, 0.75]]})
    described = Written([Noted()], [Noted("first"), Noted("second")]).on(model)
    for content, names in ((model, [None, None]), (described, ["first", "second"])):
        settings = vision.ImageClassifierOptions(base_options=on_cpu(content))
        with vision.ImageClassifier(settings) as task:
            heads = task.classify(picture()).classifications
        assert [(each.head_index, each.head_name) for each in heads] == [*enumerate(names)]
        assert [each.categories[0].index for each in heads] == [0, 1]


def test_a_frame_and_a_camera(monkeypatch: pytest.MonkeyPatch) -> None:
    model, found = on_cpu(noted()), []
    modes = vision.RunningMode
    settings = vision.ImageClassifierOptions(base_options=model, running_mode=modes.VIDEO)
    with vision.ImageClassifier(settings) as task:
        assert task.classify_for_video(picture(), 1).classifications[0].categories[0].index == 1
    settings = vision.ImageClassifierOptions(
        base_options=model,
        running_mode=modes.LIVE_STREAM,
        result_callback=lambda *each: found.append(each),
    )
    with vision.ImageClassifier(settings) as task:
        task.classify_async(picture(), 1)
    assert found[0][0].classifications[0].categories[0].index == 1


CURVES = "1,2,0\n\n0.5,1,1,0.3\n2,-1,0\n"


@pytest.mark.parametrize(
    ("kind", "transformed"),
    [
        (0, lambda score: score),
        (1, np.log),
        (2, lambda score: np.log(score) - np.log(1 - score)),
    ],
)
def test_scores_are_calibrated(kind: int, transformed: Any) -> None:
    files = (AttachedFile("curves.txt", FileKind.SCORE_CALIBRATION),)
    model = noted(files={"curves.txt": CURVES}, labels=files, calibration=Calibration(kind, 0.25))
    found = {each[0]: each[1] for each in classified(model)}
    first = 1 / (1 + np.exp(-2 * transformed(0.1)))
    last = 2 / (1 + np.exp(transformed(0.15)))
    # Class 1 has no curve, and the score of class 2 is too low.
    assert found == pytest.approx({0: first, 1: 0.25, 2: 0.25, 3: last}, rel=1e-5)


def test_a_score_of_zero_is_calibrated() -> None:
    curve = ScoreCalibration(Calibration(2, 0.0), "1,1,0")
    found = curve(np.array([0, 1], np.float32), np.array([0, 0]))
    assert found == pytest.approx([1e-16, 1], abs=1e-6)


def test_a_model_without_its_labels_file_classifies(caplog: pytest.LogCaptureFixture) -> None:
    found = classified(noted(files={}))
    assert [each[2] for each in found] == [""] * len(found)
    assert "name the labels file 'labels.txt', which is not attached" in caplog.text


@pytest.mark.parametrize(
    ("model", "options", "error", "message"),
    [
        (noted(), {"max_results": 0}, TaskError, "max_results is 0. Use a positive number, or -1"),
        (
            noted(),
            {"category_allowlist": ["cat"], "category_denylist": ["dog"]},
            TaskError,
            "category_allowlist and category_denylist exclude each other",
        ),
        (
            saying({"scores": SEEN}),
            {"category_allowlist": ["cat"]},
            TaskError,
            "need the names of the classes, and the metadata of the model have none",
        ),
        (
            noted(
                labels=(AttachedFile("curves.txt", FileKind.SCORE_CALIBRATION),),
                calibration=Calibration(0, 0.0),
            ),
            {},
            ModelError,
            "name the file 'curves.txt', which is not attached to it. Attach it, or remove it",
        ),
        (
            noted(files={**NAMES, "labels.txt": "cat\n"}),
            {},
            ModelError,
            "The model has 4 classes and 1 names of classes. Attach a file with a line for each",
        ),
        (
            noted(calibration=Calibration(0, 0.0)),
            {},
            ModelError,
            "calibrate scores without a file of parameters. Attach one of the type",
        ),
        (
            Written([], [Noted("a"), Noted("b")]).on(saying({"scores": SEEN})),
            {},
            ModelError,
            "The metadata describe 2 outputs, and the model has 1. Write its metadata again",
        ),
    ],
)
def test_what_does_not_fit(
    model: bytes, options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        classified(model, **options)


@pytest.mark.parametrize("line", ["1,2", "1,2,3,4,5", "a,b,c", "-1,2,3"])
def test_lines_that_are_no_curve(line: str) -> None:
    with pytest.raises(ModelError, match=f"Line 2 of the score calibration is '{line}'"):
        ScoreCalibration(Calibration(0, 0.0), f"1,1,1\n{line}")


def test_a_curve_is_missing() -> None:
    curve = ScoreCalibration(Calibration(0, 0.0), "1,1,1\n")
    with pytest.raises(ModelError, match=r"has 2 lines, and the model returns the classes 0 to 4"):
        curve(np.zeros(2, np.float32), np.array([0, 4]))


@pytest.mark.real_model
def test_results_are_those_of_mediapipe() -> None:
    """Recorded from MediaPipe 0.10.21 with the same model and picture."""
    model = find("mobilenet_v2_1.0_224_quant").read_bytes()
    image = Image.create_from_file(default_picture())
    assert image.image_format == ImageFormat.SRGB
    settings = vision.ImageClassifierOptions(base_options=on_cpu(model), max_results=2)
    with vision.ImageClassifier(settings) as task:
        result = task.classify(image)
    (head,) = result.classifications
    assert (result.timestamp_ms, head.head_name) == (0, "probability")
    names = [(each.index, each.category_name, each.display_name) for each in head.categories]
    assert names == [(653, "military uniform", ""), (835, "suit, suit of clothes", "")]
    # Readers of JPEG differ by a level of some pixels.
    scores = [each.score for each in head.categories]
    assert scores == pytest.approx([0.91796875, 0.015625], abs=0.01)
