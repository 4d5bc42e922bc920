"""Masks, pictures and classes as results; the task of a model; colors and names."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from PIL import Image

from litegpu.errors import FileError, ModelError
from litegpu.pictures.framing import framed
from litegpu.tools.drawing import classes, images_out, ink, masks
from litegpu.tools.drawing.ink import Ink
from litegpu.tools.drawing.masks import Masks
from litegpu.tools.drawing.names import COCO, PASCAL_VOC
from litegpu.tools.drawing.tasks import TASKS, choose, unclear
from seeing_models import SIZE, detector, saying, seen

GREY = (200, 200, 200)


def found_by(
    model: bytes, picture: tuple[int, int] = (200, 100), **options: Any
) -> tuple[str, Any]:
    outputs, scene = seen(model, picture, **options)
    task = choose(outputs, scene.facts, None)
    assert task is not None
    return task.name, task.reader.read(outputs, scene)


def halves(channels: int = 3, size: int = SIZE) -> Any:
    """Scores: the first class at the left, the last one at the right."""
    scores = np.zeros((1, size, size, channels))
    scores[:, :, : size // 2, 0] = 5
    scores[:, :, size // 2 :, -1] = 5
    return scores


# Masks


def test_the_best_class_of_each_pixel_wins() -> None:
    name, found = found_by(saying({"map": halves(21)}))
    assert name == "segment"
    assert found.table()[1] == [("background", "50.0%"), ("TV monitor", "50.0%")]
    assert found.brief() == "background 50%, TV monitor 50%"
    assert found.to_dict()["segments"][1] == {"class": 20, "name": "TV monitor", "share": 0.5}


@pytest.mark.parametrize("fit", ["stretch", "letterbox", "crop"])
def test_masks_lie_where_the_model_saw_them(fit: str) -> None:
    _, found = found_by(saying({"map": halves(21)}), fit=fit)
    drawn = np.asarray(found.draw(Image.new("RGB", (200, 100), GREY)))[:, :200]
    plain = (drawn == GREY).all(axis=2)
    dark = (drawn == ink.DARK).all(axis=2)
    end = 150 if fit == "crop" else 200
    assert plain[:, :49].all() and plain[:, 51:99].all(), "the background, or not seen"
    assert dark[:, 99].all(), "the outline"
    assert not plain[:, 100 : end - 1].any()
    assert plain[:, end:].all(), "not seen"


def test_bars_beside_the_picture_do_not_count() -> None:
    scores = halves(21)
    scores[:, :16], scores[:, 48:] = 0, 0
    scores[:, :16, :, 7], scores[:, 48:, :, 7] = 9, 9  # cars in the bars
    _, found = found_by(saying({"map": scores}), fit="letterbox")
    assert [row[0] for row in found.table()[1]] == ["background", "TV monitor"]


def test_shares_are_sorted_and_tiny_ones_left_out() -> None:
    numbers = np.zeros((100, 100), np.int32)
    numbers[:60] = 15
    numbers[99, 99] = 3
    found = Masks(numbers, PASCAL_VOC, framed((100, 100), (100, 100), "stretch"))
    assert found.shares() == [(15, 0.6), (0, 0.3999)]


def test_background_keeps_the_picture_and_classes_colour_it() -> None:
    numbers = np.array([[15, 0], [0, 0]], np.int32)
    found = Masks(numbers, PASCAL_VOC, framed((100, 80), (2, 2), "stretch"))
    drawn = found.draw(Image.new("RGB", (100, 80), GREY))
    assert drawn.size[0] > 100
    assert drawn.getpixel((90, 70)) == GREY
    expected = [round(200 + (part - 200) * masks.OPACITY) for part in ink.colour(15)]
    assert drawn.getpixel((10, 10)) == pytest.approx(expected, abs=1)
    assert drawn.getpixel((49, 10)) == ink.DARK, "the outline"


def test_the_legend_shows_each_class() -> None:
    found = Masks(np.full((2, 2), 15, np.int32), PASCAL_VOC, framed((100, 80), (2, 2), "stretch"))
    legend = np.asarray(found.draw(Image.new("RGB", (100, 80), "black")))[:, 100:]
    assert (legend == ink.colour(15)).all(axis=2).any(), "the colour's box"
    assert (legend < 100).all(axis=2).sum() > 20, "the text"


def test_without_a_background_all_classes_are_coloured() -> None:
    _, found = found_by(saying({"map": halves(4)}), labels=["road", "sky", "tree", "car"])
    drawn = np.asarray(found.draw(Image.new("RGB", (200, 100), GREY)))
    assert not (drawn[:, :200] == GREY).all(axis=2).any()


def test_one_channel_is_a_mask() -> None:
    values = halves(2)[..., 1:] * 2 - 5
    name, found = found_by(saying({"map": values}, ops=["LOGISTIC"]))
    assert name == "segment"
    assert found.table()[1] == [("background", "50.0%"), ("foreground", "50.0%")]


def test_labels_of_another_number_of_classes_are_refused() -> None:
    with pytest.raises(FileError, match=r"has 2 lines but the model has 21 classes of pixels"):
        found_by(saying({"map": halves(21)}), labels=["a", "b"])


# Pictures


@pytest.mark.parametrize(("low", "high"), [(0.0, 1.0), (-1.0, 1.0), (0.0, 255.0)])
def test_a_picture_is_what_its_range_says(low: float, high: float) -> None:
    values = np.zeros((1, SIZE, SIZE, 3)) + low
    values[:, :32, :, 0] = high
    name, found = found_by(saying({"image": values}), (100, 200))
    assert name == "image"
    drawn = found.draw(Image.new("RGB", (100, 200), GREY))
    assert drawn.size == (100, 200)
    assert drawn.getpixel((50, 20)) == (255, 0, 0)
    assert drawn.getpixel((50, 180)) == (0, 0, 0)
    assert found.table()[1] == [("64×64", f"{low:g}", f"{high:g}")]


def test_a_letterboxed_picture_comes_back_without_its_bars() -> None:
    values = np.zeros((1, SIZE, SIZE, 3))
    values[:, 16:48, :, 1] = 1  # what shows the picture is green
    _, found = found_by(saying({"image": values}), fit="letterbox")
    drawn = np.asarray(found.draw(Image.new("RGB", (200, 100), GREY)))
    assert drawn.shape == (100, 200, 3)
    assert np.all(drawn[10:90, :, 1] > 200)


def test_more_pixels_than_the_picture_has_are_kept() -> None:
    _, found = found_by(saying({"image": np.zeros((1, 128, 128, 3))}), (32, 16))
    assert found.draw(Image.new("RGB", (32, 16))).size == (128, 64)


def test_a_map_of_other_numbers_may_be_told_to_be_a_picture() -> None:
    values = np.linspace(3, 900, SIZE * SIZE).reshape(1, SIZE, SIZE, 1)
    outputs, scene = seen(saying({"depth": values}))
    assert choose(outputs, scene.facts, None) is None
    task_named = choose(outputs, scene.facts, "image")
    assert task_named is not None
    found: Any = task_named.reader.read(outputs, scene)
    drawn = np.asarray(found.draw(Image.new("RGB", (SIZE, SIZE))))
    assert (drawn[0, 0] == 0).all() and (drawn[-1, -1] == 255).all()


# Classes


def test_classes_are_bars_below_the_picture() -> None:
    scores = np.zeros((1, 10))
    scores[0, 7], scores[0, 2] = 0.75, 0.25
    labels = [f"name {number}" for number in range(10)]
    name, found = found_by(saying({"scores": scores}), labels=labels)
    assert name == "classify"
    assert found.table()[1][0] == ("1", "0.7500", "7", "name 7")
    assert found.brief() == "name 7 0.75"
    picture = Image.new("RGB", (200, 100), GREY)
    drawn = np.asarray(found.draw(picture))
    assert np.all(drawn[:100] == GREY), "the picture itself is whole"
    bars = (drawn[100:] == ink.colour(4)).all(axis=2).sum(1)
    first, second = sorted({int(width) for width in bars if width > 2}, reverse=True)
    assert first == pytest.approx(3 * second, abs=4)


def test_logits_below_zero_are_bars_too() -> None:
    _, found = found_by(saying({"scores": np.linspace(-9, -3, 12)[None]}))
    found.draw(Image.new("RGB", (100, 100)))
    assert found.best[0] == (11, pytest.approx(-3))


# What a model is for


CASES = {
    "detect": detector([[0, 0, 1, 1]], [[0.0, 0.9]]),
    "segment": saying({"map": halves(5)}),
    "segment of probabilities": saying({"map": halves(3)}, ops=["SOFTMAX"]),
    "segment of a finer map": saying({"small": halves(7, 16), "map": halves(7)}),
    "image": saying({"image": np.full((1, 32, 32, 3), 0.5)}),
    "classify": saying({"scores": np.linspace(0, 1, 20)[None]}),
}


@pytest.mark.parametrize("case", CASES)
def test_what_a_model_is_for(case: str) -> None:
    outputs, scene = seen(CASES[case])
    task = choose(outputs, scene.facts, None)
    assert task is not None
    assert task.name == case.split()[0]
    assert task.why


@pytest.mark.parametrize(
    ("answers", "could_be"),
    [
        ({"features": np.zeros((1, 7, 7, 64))}, ["--task=segment"]),
        ({"few": [[0.1, 0.9]]}, ["--task=classify"]),
        ({"depth": np.full((1, 32, 32, 1), 77.0)}, ["--task=segment", "--task=image"]),
        ({"numbers": np.zeros((2, 3, 4, 5, 6))}, ["No task fits these outputs"]),
    ],
)
def test_what_is_not_certain_is_said(answers: dict[str, Any], could_be: list[str]) -> None:
    outputs, scene = seen(saying(answers))
    assert choose(outputs, scene.facts, None) is None
    text = str(unclear(outputs, scene.facts))
    assert "do not determine a task" in text
    assert all(each in text for each in could_be)
    assert f"--task={'|'.join(TASKS)}" in text


@pytest.mark.parametrize(
    ("module", "words"),
    [
        (masks, r"a map of classes, \[1, H, W\]"),
        (images_out, r"is a picture: \[1, H, W, 1 or 3\], at least 8×8"),
        (classes, "is a vector with a score for each class"),
    ],
)
def test_a_task_that_cannot_be_is_an_error(module: Any, words: str) -> None:
    outputs, scene = seen(saying({"numbers": np.zeros((2, 3, 4, 5))}))
    with pytest.raises(ModelError, match=rf"No output of this model .*{words}"):
        module.read(outputs, scene)


# Ink


def distance(one: tuple[int, ...], other: tuple[int, ...]) -> float:
    return float(np.linalg.norm(np.subtract(one, other)))


DICHROMATS = {
    "protan": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
    "deutan": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
    "tritan": [[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]],
}
"""What people without one kind of cones see of linear red, green and blue (Machado et al. 2009)."""


@pytest.mark.parametrize("kind", DICHROMATS)
def test_the_first_seven_colours_are_apart_for_everyone(kind: str) -> None:
    def seen_by(colour: tuple[int, ...]) -> Any:
        linear = (np.array(colour) / 255) ** 2.2
        return (np.array(DICHROMATS[kind]) @ linear).clip(0, 1) ** (1 / 2.2) * 255

    pairs = itertools.combinations(map(ink.colour, range(7)), 2)
    assert min(distance(seen_by(a), seen_by(b)) for a, b in pairs) > 25


def test_twenty_one_colours_differ() -> None:
    colours = [ink.colour(number) for number in range(21)]
    assert min(distance(a, b) for a, b in itertools.combinations(colours, 2)) > 25
    assert ink.colour(21) == ink.colour(0)
    assert ink.palette([3, 4]).tolist() == [list(ink.colour(3)), list(ink.colour(4))]


@pytest.mark.parametrize("number", range(21))
def test_text_is_read_on_each_colour(number: int) -> None:
    def luminance(colour: tuple[int, ...]) -> float:
        parts = np.array(colour) / 255
        linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
        return float(linear @ (0.2126, 0.7152, 0.0722))

    background = ink.colour(number)
    levels = sorted((luminance(background), luminance(ink.contrasting(background))))
    assert (levels[1] + 0.05) / (levels[0] + 0.05) >= 4.5, "WCAG's level AA"


def test_sizes_follow_from_the_picture() -> None:
    assert ink.text_size((100, 100)) == 11
    assert ink.text_size((3000, 2100)) == 70
    assert ink.line_width((64, 64)) == 2
    assert ink.line_width((3000, 2100)) == 14


def test_labels_stay_on_the_picture_and_off_each_other() -> None:
    picture = Image.new("RGB", (300, 200))
    pen = Ink(picture)
    for _ in range(3):
        pen.label((270, 2, 299, 60), "a rather long name", ink.colour(0))
    spots = pen._occupied
    assert all(box[0] >= 0 and box[2] <= 300 and box[1] >= 0 and box[3] <= 200 for box in spots)
    for one, other in itertools.combinations(spots, 2):
        assert one[3] <= other[1] or other[3] <= one[1]


def test_texts_are_cut_to_the_room() -> None:
    pen = Ink(Image.new("RGB", (300, 200)))
    assert pen.shortened("abc", 100) == "abc"
    cut = pen.shortened("a name that is much too long", 60)
    assert cut.endswith("…") and pen.length(cut) <= 60


def test_strange_characters_are_spelled() -> None:
    ink = Ink(Image.new("RGB", (400, 300)))
    assert ink.shortened("per\x00son\x1b[2J\n\u202e", 390) == r"per\x00son\x1b[2J\n\u202e"
    ink.label((0, 0, 50, 50), "cat\r\ndog \U0001f600", (255, 0, 0))


def test_names_of_coco() -> None:
    assert (COCO[0], COCO[89], len(COCO)) == ("person", "toothbrush", 90)
    assert sum(map(bool, COCO)) == 80
