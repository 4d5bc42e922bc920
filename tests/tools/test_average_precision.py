"""Mean average precision, compared with cases computed by hand and with pycocotools."""

from __future__ import annotations

import math
import sys
from typing import Any

import numpy as np
import pytest

from litegpu.errors import MissingDependencyError
from litegpu.tools.evaluation.average_precision import IOU_THRESHOLDS, Detection, average_precision
from litegpu.tools.evaluation.coco_api import coco_figures

Box = tuple[float, float, float, float]


def wide(width: float) -> Box:
    """Return a box that overlaps `wide(1)` by `width`."""
    return (0.0, 0.0, 1.0, width)


def test_a_case_worked_out_by_hand() -> None:
    """Two classes on two pictures.

    Class 1 has three objects. By score: 0.9 hits with an overlap of 0.8125, 0.8 hits nothing, 0.7
    hits exactly. Up to a threshold of 0.8 precisions are 1, 1/2, 2/3 at recalls 1/3, 1/3, 2/3:
    recalls 0 to 0.33 (34 of 101) have 1, 0.34 to 0.66 (33) have 2/3, the rest 0. Above it they are
    0, 0, 1/3 at 0, 0, 1/3: 34 of 101 have 1/3. Class 2 is found and not there: 0.
    """
    there, elsewhere = wide(1.0), (2.0, 2.0, 3.0, 3.0)
    pictures = [
        (
            [Detection(1, there), Detection(1, (5.0, 5.0, 6.0, 6.0))],
            [Detection(1, elsewhere, 0.8), Detection(1, wide(0.8125), 0.9)],
        ),
        ([Detection(1, there)], [Detection(1, there, 0.7), Detection(2, there, 0.5)]),
    ]
    found = average_precision(pictures)
    low, high = (34 + 33 * 2 / 3) / 101, 34 / 3 / 101
    expected = [(low if threshold < 0.81 else high) / 2 for threshold in IOU_THRESHOLDS]
    assert [value for _, value in found.at] == pytest.approx(expected, abs=1e-12)
    assert [each for each, _ in found.at] == pytest.approx(np.arange(0.5, 1, 0.05), abs=1e-6)
    assert found.overall == pytest.approx((7 * low + 3 * high) / 20, abs=1e-12)
    assert found.classes == {1: pytest.approx((7 * low + 3 * high) / 10), 2: 0.0}


@pytest.mark.parametrize(
    ("found", "precision"),
    [
        ([], 0.0),
        ([("right", 0.9)], 1.0),
        ([("right", 0.9), ("right", 0.8)], 1.0),  # the object is taken: the second one is wrong
        ([("wrong", 0.9), ("right", 0.8)], 0.5),
        ([("right", 0.8), ("wrong", 0.8)], 1.0),  # of equal scores the first comes first
        ([("wrong", 0.8), ("right", 0.8)], 0.5),
        ([("wrong", math.nan), ("right", 0.1)], 1.0),  # no number is no score
    ],
)
def test_one_object(found: list[tuple[str, float]], precision: float) -> None:
    boxes = {"right": wide(1.0), "wrong": (4.0, 4.0, 5.0, 5.0)}
    objects = [Detection(1, boxes[name], score) for name, score in found]
    assert average_precision([([Detection(1, wide(1.0))], objects)]).overall == precision


def test_each_takes_the_free_object_that_it_overlaps_most() -> None:
    # The first detection prefers the second object, and so does the second, which then gets none:
    # it overlaps the first object by 0.5.
    objects = [Detection(1, wide(0.5)), Detection(1, wide(1.0))]
    found = [Detection(1, wide(1.0), 0.9), Detection(1, wide(1.0), 0.8)]
    at = dict(average_precision([(objects, found)]).at)
    assert at[0.5] == 1.0
    assert all(value == pytest.approx(51 / 101) for each, value in at.items() if each > 0.5)


def test_objects_of_other_pictures_and_classes_are_not_taken() -> None:
    there = wide(1.0)
    pictures = [
        ([Detection(1, there)], []),
        ([], [Detection(1, there, 0.9)]),
        ([Detection(2, there)], [Detection(2, there, 0.9)]),
    ]
    found = average_precision(pictures)
    assert found.classes == {1: 0.0, 2: 1.0}
    assert found.overall == 0.5


def test_boxes_without_an_area_overlap_nothing() -> None:
    empty = (0.0, 0.0, 0.0, 0.0)
    assert average_precision([([Detection(1, empty)], [Detection(1, empty)])]).overall == 0


def test_nothing_at_all() -> None:
    found = average_precision([([], []), ([], [])])
    assert (found.at, found.overall, found.classes) == ((), 0.0, {})


def scattered(seed: int) -> tuple[dict[str, Any], dict[str, list[Detection]], list[Any]]:
    """Return random objects as COCO's form, what was found of them, and both as pictures."""
    random = np.random.default_rng(seed)
    images: list[Any] = []
    annotations: list[Any] = []
    found: dict[str, list[Detection]] = {}
    pictures = []
    for number in range(12):
        images.append({"id": number, "file_name": f"folder/{number}.jpg", "width": 4, "height": 2})
        truth, objects = [], []
        for _ in range(random.integers(1, 5)):
            top, left = random.uniform(0, 0.5, 2)
            down, across = random.uniform(0.2, 0.5, 2)
            kind = int(random.integers(1, 4))
            truth.append(Detection(kind, (top, left, top + down, left + across)))
            box = [left * 4, top * 2, across * 4, down * 2]
            annotations.append(
                {
                    **{"id": len(annotations) + 1, "image_id": number, "category_id": kind},
                    **{"bbox": box, "area": box[2] * box[3], "iscrowd": 0},
                }
            )
            moved = np.array(truth[-1].box) + random.normal(0, 0.03, 4)
            if random.uniform() < 0.8:
                score = float(random.uniform())
                objects.append(Detection(kind, tuple(float(e) for e in moved), score))  # type: ignore[arg-type]
        found[f"{number}.jpg"] = objects
        pictures.append((truth, objects))
    classes = [{"id": each, "name": str(each)} for each in (1, 2, 3)]
    dataset = {"images": images, "annotations": annotations, "categories": classes}
    return dataset, found, pictures


@pytest.mark.parametrize("seed", range(3))
def test_cocos_rule_says_the_same_where_both_rules_do(seed: int) -> None:
    pytest.importorskip("pycocotools", reason="pycocotools is not installed")
    dataset, found, pictures = scattered(seed)
    ours, theirs = average_precision(pictures), coco_figures(dataset, found)
    assert theirs and 0.1 < theirs.mean < 0.9
    # a box that was taken may be passed over for a worse one there, which is rare
    assert ours.overall == pytest.approx(theirs.mean, abs=0.01)
    assert dict(ours.at)[0.5] == pytest.approx(theirs.at_50, abs=0.01)


def test_cocos_figures_of_a_part_and_of_nothing() -> None:
    pytest.importorskip("pycocotools", reason="pycocotools is not installed")
    dataset, found, _ = scattered(0)
    assert coco_figures(dataset, {}) is None
    assert coco_figures({**dataset, "annotations": []}, found) is None
    nothing = coco_figures(dataset, {name: [] for name in found})
    assert nothing and nothing.text() == "AP=0, AP50=0, AP75=0"
    first = {"0.jpg": found["0.jpg"]}
    part = coco_figures(dataset, first)
    alone = {**dataset, "images": dataset["images"][:1]}
    alone["annotations"] = [each for each in dataset["annotations"] if each["image_id"] == 0]
    assert part == coco_figures(alone, first)


def test_cocos_figures_of_files_that_say_no_more_than_boxes() -> None:
    pytest.importorskip("pycocotools", reason="pycocotools is not installed")
    dataset, found, _ = scattered(0)
    needed = ("image_id", "category_id", "bbox")
    boxes = [{name: each[name] for name in needed} for each in dataset["annotations"]]
    bare = {"images": dataset["images"], "annotations": boxes}
    assert coco_figures(bare, found) == coco_figures(dataset, found)
    assert "id" not in boxes[0], "the caller's own stays as it is"


def test_without_pycocotools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pycocotools.coco", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'litegpu\[coco\]'"):
        coco_figures({}, {})
