"""Detectors: outputs in any order, boxes relative to anchors, and drawings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from PIL import Image

from litegpu.errors import FileError, ModelError
from litegpu.files import metadata
from litegpu.pictures.images import (
    open_picture,
    to_tensor,
)
from litegpu.runtime_abi import interpreter as runtime
from litegpu.tools.drawing import anchors, cells, detections
from litegpu.tools.drawing.facts import Grid
from litegpu.tools.drawing.tasks import choose
from litegpu.tools.picture_flag import (
    default_picture,
)
from litegpu.zoo import ssd
from litegpu.zoo.cuts import CuttableModel
from litegpu.zoo.writer import ModelWriter
from real_models import find
from seeing_models import SIZE, detector, saying, seen

BOXES = [[0.25, 0.125, 0.5, 0.375], [0.5, 0.5, 1.0, 0.75]]
SCORES = [[0.0, 0.9, 0.0, 0.0], [0.0, 0.0, 0.0, 0.7]]
NAMES = ["cat", "dog", "bird"]


def objects(model: bytes, picture: tuple[int, int] = (200, 100), **settings: Any) -> Any:
    outputs, scene = seen(model, picture, **{"labels": NAMES, **settings})
    task = choose(outputs, scene.facts, None)
    assert task is not None
    assert task.name == "detect"
    return task.reader.read(outputs, scene)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (2, 0, 3, 1), (3, 2, 1, 0)])
def test_the_operation_says_which_output_is_what(order: tuple[int, ...]) -> None:
    first, second = objects(detector(BOXES, SCORES, order)).found
    assert (first.name, first.number) == ("cat", 0)
    assert first.score == pytest.approx(0.9, abs=1e-6)
    assert first.box == pytest.approx((25, 25, 75, 50), abs=1e-3)
    assert second.name == "bird"
    assert second.box == pytest.approx((100, 50, 150, 100), abs=1e-3)


ANSWERS: dict[str, Any] = {
    "a": [[[0.25, 0.125, 0.5, 0.375], [0.5, 0.5, 1.0, 0.75]]],
    "b": [[0.0, 2.0]],
    "c": [[0.9, 0.7]],
    "d": [2.0],
}


@pytest.mark.parametrize("order", ["abcd", "dcba", "cabd", "acb"])
def test_without_the_operation_shapes_and_values_say_it(order: str) -> None:
    found = objects(saying({name: ANSWERS[name] for name in order})).found
    assert [each.name for each in found] == ["cat", "bird"]
    assert [each.score for each in found] == pytest.approx([0.9, 0.7])
    assert found[1].box == pytest.approx((100, 50, 150, 100))


def test_no_more_objects_than_counted() -> None:
    assert len(objects(saying({**ANSWERS, "d": [1.0]})).found) == 1
    assert objects(saying({**ANSWERS, "d": [0.0]})).found == ()
    assert objects(saying({**ANSWERS, "d": [0.0]})).brief() == "0 objects"


def test_low_scores_are_left_out() -> None:
    assert [each.name for each in objects(detector(BOXES, SCORES), min_score=0.8).found] == ["cat"]


def test_other_outputs_are_refused() -> None:
    outputs, scene = seen(saying({"a": np.zeros((1, 5)), "b": np.zeros((1, 2, 2, 3))}))
    with pytest.raises(ModelError, match=r"of shapes \[1, 5\], \[1, 2, 2, 3\], are not the boxes"):
        detections.read(outputs, scene)


@pytest.mark.parametrize(
    ("labels", "first"),
    [(["cat", "dog", "bird"], "cat"), (["???", "cat", "dog", "bird"], "cat")],
)
def test_a_first_line_may_stand_for_the_background(labels: list[str], first: str) -> None:
    assert objects(detector(BOXES, SCORES), labels=labels).found[0].name == first


def test_labels_of_another_number_are_refused() -> None:
    with pytest.raises(FileError, match=r"has 2 lines but the model has 3 classes of objects"):
        objects(detector(BOXES, SCORES), labels=["cat", "dog"])


def test_ninety_classes_are_those_of_coco() -> None:
    scores = np.zeros((2, 91))
    scores[0, 17], scores[1, 12] = 0.9, 0.8  # with the background in front
    found = objects(detector(BOXES, scores), labels=None).found
    assert [each.name for each in found] == ["cat", "class 11"]


def test_a_box_is_drawn_where_the_object_is() -> None:
    picture = Image.new("RGB", (200, 100), (128, 128, 128))
    found = objects(detector(BOXES, SCORES))
    drawn = np.asarray(found.draw(picture)).astype(int)
    changed = np.abs(drawn - 128).max(2) > 40
    assert changed[25:50, 25:28].all(), "the left edge of the first box"
    assert changed[50:100, 100:102].all(), "the left edge of the second box"
    assert not changed[30:48, 30:70].any(), "inside of the first box"
    assert not changed[:, 160:].any(), "beyond"
    assert np.all(np.asarray(picture) == 128), "the picture itself is left as it is"


def test_the_table_and_the_json_have_pixels() -> None:
    found = objects(detector(BOXES, SCORES))
    headings, rows = found.table()
    assert headings == ("object", ">score", ">left", ">top", ">right", ">bottom")
    assert rows[0] == ("cat", "0.9000", "25.0", "25.0", "75.0", "50.0")
    assert found.to_dict()["objects"][1]["name"] == "bird"
    assert found.brief() == "2 objects: cat, bird"


def test_the_metadata_say_what_boxes_are() -> None:
    """Centre and size in pixels, x before y."""
    answer = {**ANSWERS, "a": [[[16.0, 24.0, 16.0, 16.0], [40.0, 48.0, 16.0, 32.0]]]}
    outputs, scene = seen(saying(answer), (200, 100), labels=NAMES)
    boxes = metadata.TensorNotes(is_boxes=True, box_order=(0, 1, 2, 3), box_form=3, in_pixels=True)
    others = [metadata.TensorNotes() for _ in range(3)]
    scene.facts.__dict__["notes"] = metadata.Metadata((), (boxes, *others))
    found = detections.read(outputs, scene).found
    assert found[0].box == pytest.approx((25, 25, 75, 50))
    assert found[1].box == pytest.approx((100, 50, 150, 100))


def test_the_metadata_name_the_outputs() -> None:
    """Where scores and classes look the same."""
    answer = {"a": ANSWERS["a"], "b": [[1.0, 1.0]], "c": [[1.0, 0.0]]}
    outputs, scene = seen(saying(answer), labels=NAMES)
    names = ("location", "score", "category")
    notes = tuple(metadata.TensorNotes(name=name) for name in names)
    scene.facts.__dict__["notes"] = metadata.Metadata((), notes)
    assert [each.name for each in detections.read(outputs, scene).found] == ["dog", "cat"]


# Boxes relative to anchors


def raw_detector(values: int = 8, classes: int = 1, maps: tuple[int, ...] = (4, 2)) -> bytes:
    """A model with maps of features that are reshaped and joined; the object is in one cell."""
    writer = ModelWriter()
    picture = writer.input((1, SIZE, SIZE, 3))
    parts: dict[str, list[Any]] = {"codes": [], "scores": []}
    for number, extent in enumerate(maps):
        step = SIZE // extent
        for kind, width in (("codes", values), ("scores", classes)):
            bias = np.full(2 * width, -9.0, np.float32)
            weights = np.zeros((2 * width, step, step, 3), np.float32)
            if kind == "scores":
                weights[0] = 20 / (3 * step * step) if number == 0 else 0
            else:
                bias = np.tile(np.array([2, -1, 16, 8, 4, 0, 0, 3][:values], np.float32), 2)
            operands = [
                picture,
                writer.weights(weights, name=f"{kind} weights {number}"),
                writer.weights(bias, name=f"{kind} bias {number}"),
            ]
            options = {"padding": "VALID", "stride_h": step, "stride_w": step}
            options |= {"dilation_h_factor": 1, "dilation_w_factor": 1}
            grid = writer.op("CONV_2D", operands, [(1, extent, extent, 2 * width)], options=options)
            rows = (1, 2 * extent * extent, width)
            parts[kind].append(writer.op("RESHAPE", [grid], [rows], options={"new_shape": rows}))
    for kind, joined in parts.items():
        rows = sum(each.shape[1] for each in joined)
        shape = (1, rows, joined[0].shape[2])
        writer.output(writer.op("CONCATENATION", joined, [shape], options={"axis": 1}, name=kind))
    return writer.build()


@pytest.mark.parametrize("fit", ["letterbox", "stretch", "crop"])
def test_boxes_relative_to_anchors_are_where_the_light_is(fit: str) -> None:
    """Codes are in pixels of the input: centre, size, and two points."""
    model = raw_detector()
    pixels = np.zeros((90, 60, 3), np.uint8)
    target = runtime.interpreter(model)
    _, scene = seen(model, (60, 90), fit)
    left, top, _, _ = scene.frame.box
    width, height = scene.frame.size
    # The cell in the third row and the second column of the map of 4 by 4.
    rows = [round(top + height * row / 4) for row in (2, 3)]
    columns = [round(left + width * column / 4) for column in (1, 2)]
    pixels[rows[0] : rows[1], columns[0] : columns[1]] = 255
    detail = target.get_input_details()[0]
    picture = Image.fromarray(pixels)
    runtime.set_inputs(target, [to_tensor(picture, detail, 0, 255, scene.frame)])
    target.invoke()
    (found,) = anchors.read(runtime.outputs(target), scene).found
    centre = scene.frame.positions(np.array([(24 + 2) / 64, (40 - 1) / 64]))
    expected = np.array([*centre, *centre]) + np.array([-16, -8, 16, 8]) / 128 * np.tile(
        scene.frame.size, 2
    )
    assert found.box == pytest.approx(tuple(expected), abs=0.01)
    point = scene.frame.positions(np.array([[(24 + 4) / 64, 40 / 64], [24 / 64, (40 + 3) / 64]]))
    assert np.allclose(found.points, point, atol=0.01)
    assert found.score > 0.9


def test_maps_are_found_behind_moves() -> None:
    outputs, scene = seen(raw_detector())
    assert scene.facts.grids(0) == [Grid(4, 4, 16), Grid(2, 2, 16)]
    found = anchors.find(outputs, scene.facts)
    assert found == anchors.Raw(0, 1, 40, 8, 1)
    assert anchors.anchors_in_cells(scene.facts.grids(0), found) == [2, 2]


def test_rows_that_no_maps_make_up_are_an_error() -> None:
    outputs, scene = seen(saying({"codes": np.zeros((1, 40, 16)), "scores": np.zeros((1, 40, 1))}))
    with pytest.raises(ModelError, match=r"40 boxes .* relative to anchors.*the maps found have 0"):
        anchors.read(outputs, scene)


def test_boxes_of_unknown_sizes_are_an_error() -> None:
    outputs, scene = seen(raw_detector(values=4, classes=3))
    with pytest.raises(ModelError, match=r"have 2, 2 anchors per cell; .* known only for 3, 6"):
        anchors.read(outputs, scene)


def test_what_is_no_detector_is_an_error() -> None:
    outputs, scene = seen(saying({"a": np.zeros((1, 40))}))
    with pytest.raises(ModelError, match="are not those of a detector"):
        anchors.read(outputs, scene)


def test_anchors_of_the_ssd_family() -> None:
    extents = (19, 10, 5, 3, 2, 1)
    grids = [Grid(extent, extent, 4 * (3 if n == 0 else 6)) for n, extent in enumerate(extents)]
    known = ssd._anchors(extents)
    corners = anchors._ssd_boxes(np.zeros((1917, 4)), grids, [3, 6, 6, 6, 6, 6])
    centre, half = known[:, [1, 0]], known[:, [3, 2]] / 2
    assert np.allclose(corners, np.hstack([centre - half, centre + half]), atol=1e-6)


def test_overlapping_boxes_of_a_class_are_one() -> None:
    _, scene = seen(saying({"a": np.zeros((1, 4))}), (100, 100), labels=["cat", "dog"])
    corners = np.array([[0, 0, 0.5, 0.5], [0.02, 0, 0.5, 0.5], [0, 0, 0.5, 0.5], [0.4, 0.4, 1, 1]])
    scores = np.array([[0.9, 0], [0.8, 0], [0, 0.7], [0.6, 0]])
    found = anchors.suppressed(corners, scores, scene).found
    assert [(each.name, round(each.score, 1)) for each in found] == [
        ("cat", 0.9),
        ("dog", 0.7),
        ("cat", 0.6),
    ]


@pytest.mark.real_model
@pytest.mark.parametrize("name", ["face_detection_front", "face_detection_short_range_float16"])
def test_a_real_model_finds_the_face(name: str) -> None:
    content = find(name).read_bytes()
    picture = open_picture(default_picture())
    _, scene = seen(content, picture.size, "letterbox")
    target = runtime.interpreter(content)
    detail = target.get_input_details()[0]
    runtime.set_inputs(target, [to_tensor(picture, detail, frame=scene.frame)])
    target.invoke()
    (face,) = anchors.read(runtime.outputs(target), scene).found
    width, height = picture.size
    left, top, right, bottom = (x / y for x, y in zip(face.box, (width, height) * 2, strict=True))
    assert (0.25 < left < 0.4) and (0.6 < right < 0.8)
    assert (0.15 < top < 0.3) and (0.45 < bottom < 0.65)
    assert len(face.points) == 6
    assert all(face.box[0] - 5 <= x <= face.box[2] + 5 for x, _ in face.points)


@pytest.mark.real_model
def test_anchors_are_those_of_a_real_model() -> None:
    model = CuttableModel(find("ssd_mobilenet_v1_coco_float32").read_bytes())
    node = model.ops.index("TFLite_Detection_PostProcess")
    tensor = model._graph.tensors[model.node_inputs[node][2]]
    content = model._model.buffers[tensor.buffer].data
    known = np.frombuffer(bytes(content), np.float32).reshape(-1, 4)
    steps = 0.006  # they were kept in bytes once
    assert np.allclose(known, ssd._anchors((19, 10, 5, 3, 2, 1)), atol=steps)


# One box for each cell


def rows_of(anchors_a_cell: int, numbers: int) -> Any:
    """Rows for an input of 64 by 64: two overlapping boxes of one object, and one of another."""
    rows = np.zeros((1, anchors_a_cell * (64 + 16 + 4), numbers))
    scores = 5 if anchors_a_cell == 3 else 4
    rows[..., :4] = 0.5
    for row, box, number, score in (
        (3, [0.25, 0.5, 0.25, 0.5], 1, 0.9),
        (4, [0.26, 0.5, 0.25, 0.5], 1, 0.8),
        (70, [0.75, 0.5, 0.25, 0.25], 2, 0.7),
    ):
        rows[0, row, :4], rows[0, row, scores + number] = box, score
        if scores == 5:
            rows[0, row, 4] = 0.9
    return rows


@pytest.mark.parametrize("in_pixels", [False, True])
@pytest.mark.parametrize(("anchors_a_cell", "turned"), [(1, True), (1, False), (3, False)])
def test_one_box_for_each_cell(anchors_a_cell: int, turned: bool, in_pixels: bool) -> None:
    rows = rows_of(anchors_a_cell, 7 if anchors_a_cell == 1 else 8)
    if in_pixels:
        rows[..., :4] *= SIZE
    answer = rows.transpose(0, 2, 1) if turned else rows
    first, second = objects(saying({"output": answer})).found
    sure = 1 if anchors_a_cell == 1 else 0.9
    assert (first.name, second.name) == ("dog", "bird")
    assert (first.score, second.score) == pytest.approx((0.9 * sure, 0.7 * sure))
    assert first.box == pytest.approx((25, 25, 75, 75))
    assert second.box == pytest.approx((125, 37.5, 175, 62.5))


def test_eighty_classes_and_a_score_of_objects() -> None:
    rows = np.zeros((1, 84, 85))
    rows[0, 9, :4], rows[0, 9, 4], rows[0, 9, 5 + 15] = [0.5, 0.5, 0.2, 0.2], 0.9, 1.0
    (found,) = objects(saying({"output": rows}), labels=None).found
    assert (found.name, found.score) == ("cat", pytest.approx(0.9))


def test_rows_that_are_no_cells_are_an_error() -> None:
    outputs, scene = seen(saying({"output": np.zeros((1, 86, 7))}))
    with pytest.raises(ModelError, match="is not one box for each cell of maps"):
        cells.read(outputs, scene)
