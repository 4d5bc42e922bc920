"""Keypoints of bodies, hands and faces from heatmaps and vectors, and their drawings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from PIL import Image

from litegpu.errors import ModelError
from litegpu.pictures.images import to_tensor
from litegpu.runtime_abi import interpreter as runtime
from litegpu.tools.drawing import landmarks, poses
from litegpu.tools.drawing.poses import TREE, Decoder
from litegpu.tools.drawing.skeletons import SKELETONS
from litegpu.tools.drawing.tasks import choose
from seeing_models import SIZE, finder, saying, seen


def figures(model: bytes, picture: tuple[int, int] = (200, 100), **options: Any) -> Any:
    outputs, scene = seen(model, picture, **options)
    task = choose(outputs, scene.facts, None)
    assert task is not None
    return task, task.reader.read(outputs, scene)


def hand(scale: float) -> Any:
    """21 points on a diagonal, with depths."""
    line = np.linspace(0.25, 0.75, 21)
    return np.stack([line * scale, line * scale, np.zeros(21)], 1)


@pytest.mark.parametrize("scale", [1.0, float(SIZE)])
@pytest.mark.parametrize("shape", [(1, 63), (1, 1, 1, 63), (1, 21, 3)])
def test_points_are_led_to_the_picture(scale: float, shape: tuple[int, ...]) -> None:
    """Whether they are pixels of the input or parts of its width."""
    answers = {"points": hand(scale).reshape(shape), "flag": [[4.0]]}
    task, found = figures(saying(answers))
    assert task.name == "landmarks"
    (one,) = found.found
    assert np.allclose(one.positions[0], (50, 25), atol=0.01)
    assert np.allclose(one.positions[20], (150, 75), atol=0.01)
    assert one.shown.all()
    assert found.confidences == {"flag": pytest.approx(0.982, abs=0.001)}
    assert found.brief() == "1 figure with 21 points, flag 0.98"


def test_letterboxed_points_are_led_to_the_picture() -> None:
    _, found = figures(
        saying({"points": [hand(64.0).reshape(63)], "flag": [[4.0]]}), (100, 200), fit="letterbox"
    )
    assert np.allclose(found.found[0].positions[[0, 20]], [(0, 50), (100, 150)], atol=0.01)


def test_points_around_the_figure_in_metres_are_not_taken() -> None:
    metres = hand(1.0) - 0.5
    answers = {"world": [metres.reshape(63)], "flag": [[1.0]], "screen": [hand(64.0).reshape(63)]}
    _, found = figures(saying(answers))
    assert np.allclose(found.found[0].positions[0], (50, 25), atol=0.01)


def test_visibility_hides_points() -> None:
    points = np.zeros((39, 5))
    points[:, :2] = np.linspace(10, 50, 39)[:, None]
    points[:, 3:] = 5
    points[3, 3] = -5
    task, found = figures(saying({"points": points.reshape(1, 195), "flag": [[3.0]]}))
    (one,) = found.found
    assert task.name == "landmarks"
    assert one.scores[3] < 0.01
    assert one.shown.sum() == 32, "33 points are a body's, of which one is not seen"


def test_a_body_of_17_has_y_before_x_and_a_score() -> None:
    points = np.zeros((1, 1, 17, 3))
    points[..., 0], points[..., 1] = np.linspace(0.1, 0.9, 17), np.linspace(0.3, 0.6, 17)
    points[..., 2] = 0.9
    _, found = figures(saying({"points": points}))
    assert np.allclose(found.found[0].positions[0], (60, 10), atol=0.01)
    assert np.allclose(found.found[0].scores, 0.9)


def test_probabilities_of_63_classes_are_no_hand() -> None:
    values = np.full((1, 63), 1 / 63)
    outputs, scene = seen(saying({"classes": values}))
    task = choose(outputs, scene.facts, None)
    assert task is not None
    assert task.name == "classify"


def test_any_vector_may_be_told_to_be_points() -> None:
    outputs, scene = seen(saying({"crop": [[[[32.0, 16.0, 48.0, 64.0]]]]}), (200, 100))
    assert choose(outputs, scene.facts, None) is None
    task_named = choose(outputs, scene.facts, "landmarks")
    assert task_named is not None
    found: Any = task_named.reader.read(outputs, scene)
    assert np.allclose(found.found[0].positions, [(100, 25), (150, 100)])


def test_what_is_no_vector_is_an_error() -> None:
    outputs, scene = seen(saying({"map": np.zeros((1, 8, 8, 32))}))
    with pytest.raises(ModelError, match=r"list of points; their shapes are \[1, 8, 8, 32\]"):
        landmarks.read(outputs, scene)
    with pytest.raises(ModelError, match="are not maps of points: scores"):
        poses.read(outputs, scene)


@pytest.mark.parametrize("fit", ["letterbox", "stretch", "crop"])
@pytest.mark.parametrize("size", [(300, 100), (100, 300)])
def test_points_of_maps_are_where_the_light_is(size: tuple[int, int], fit: str) -> None:
    model = finder()
    _, scene = seen(model, size, fit, min_score=0.5)
    target = runtime.interpreter(model)
    spot = (size[0] // 2 + 15, size[1] // 2 - 20)
    pixels = np.zeros((size[1], size[0], 3), np.uint8)
    cell = max(scene.frame.size) / 8
    half = round(0.4 * cell)
    pixels[spot[1] - half : spot[1] + half, spot[0] - half : spot[0] + half] = 255
    detail = target.get_input_details()[0]
    tensor = to_tensor(Image.fromarray(pixels), detail, 0, 255, scene.frame)
    runtime.set_inputs(target, [tensor])
    target.invoke()
    found = poses.read(runtime.outputs(target), scene)
    assert np.abs(found.found[0].positions - spot).max() < 1.2 * cell


def people_maps(centres: list[tuple[int, int]]) -> tuple[Any, ...]:
    """Maps of 16 by 16 cells, 16 pixels apart, of people whose points go down a column."""
    cells, points, size = 16, 17, 241
    scores = np.full((cells, cells, points), 0.01)
    offsets = np.zeros((cells, cells, 2 * points))
    forward, backward = (np.zeros((cells, cells, 2 * len(TREE))) for _ in range(2))
    for number, (row, column) in enumerate(centres):
        positions = {k: (row + k // 3, column + k % 3) for k in range(points)}
        for k, (y, x) in positions.items():
            scores[y, x, k] = 0.9 - 0.01 * number
            offsets[y, x, [k, k + points]] = (2.0, -3.0)
        for edge, (start, end) in enumerate(TREE):
            way = 16.0 * (np.array(positions[end]) - positions[start])
            forward[(*positions[start], slice(None))][[edge, edge + len(TREE)]] = way
            backward[(*positions[end], slice(None))][[edge, edge + len(TREE)]] = -way
    return Decoder(scores, offsets, (size, size)), forward, backward


def test_people_are_told_apart_along_the_tree() -> None:
    decoder, forward, backward = people_maps([(1, 1), (8, 9)])
    first, second = decoder.people(forward, backward, 0.5)
    for (positions, sure), (row, column) in zip((first, second), [(1, 1), (8, 9)], strict=True):
        expected = [(16 * (column + k % 3) - 3, 16 * (row + k // 3) + 2) for k in range(17)]
        assert np.allclose(positions, expected)
        assert sure.min() > 0.8


def test_a_few_stray_points_are_no_person() -> None:
    decoder, forward, backward = people_maps([(1, 1)])
    decoder.scores[12, 12, 4] = 0.95
    assert len(list(decoder.people(forward, backward, 0.5))) == 1


def test_maps_of_people_are_told_by_their_names() -> None:
    decoder, forward, backward = people_maps([(2, 3)])
    logits = np.log(decoder.scores / (1 - decoder.scores))
    answers = {
        "displacement_bwd": backward[None],
        "displacement_fwd": forward[None],
        "heatmap": logits[None],
        "offset": decoder.offsets[None],
    }
    task, found = figures(saying(answers, size=241), (241, 241))
    assert task.name == "pose"
    (one,) = found.found
    assert np.allclose(one.positions[0], (45, 34), atol=0.1)
    assert found.table()[1][0][:3] == ("1", "nose", "0.9000")
    assert found.to_dict()["figures"][0]["points"][16]["name"] == "right ankle"


def test_points_and_lines_are_drawn_where_they_are() -> None:
    _, found = figures(saying({"points": [hand(1.0).reshape(63)], "flag": [[4.0]]}))
    picture = Image.new("RGB", (200, 100), (128, 128, 128))
    drawn = np.asarray(found.draw(picture)).astype(int)
    changed = np.abs(drawn - 128).max(2) > 40
    assert changed[25, 50] and changed[75, 150]
    assert not changed[:, :40].any()
    assert not changed[:15].any()


def test_many_points_have_one_row() -> None:
    line = np.linspace(8, 56, 468)
    points = np.stack([line, line, line], 1).reshape(1, 1, 1, 1404)
    _, found = figures(saying({"mesh": points, "flag": [[[[2.0]]]]}))
    assert found.table()[1] == [("face", "468", "25.0", "12.5", "175.0", "87.5")]


@pytest.mark.parametrize("points", SKELETONS)
def test_skeletons_join_points_that_there_are(points: int) -> None:
    skeleton = SKELETONS[points]
    assert all(0 <= end < points for edge in skeleton.edges for end in edge)
    assert len(set(skeleton.edges)) == len(skeleton.edges)
    assert len(skeleton.names) in (0, skeleton.drawn or points)
