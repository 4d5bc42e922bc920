"""Inputs and results by PyCoral's functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from litegpu import BindingError, ModelError
from litegpu.pycoral.adapters import classify, common, detect, segment
from litegpu.pycoral.utils import edgetpu
from small_models import two_signatures


class Fake:
    """An interpreter whose tensors are arrays, in the order of its inputs, then its outputs."""

    def __init__(self, inputs: list[Any], outputs: list[Any], signatures: Any = None) -> None:
        self.arrays = [np.array(each) for each in (*inputs, *outputs)]
        self.count = len(inputs)
        self.signatures = signatures or {}
        self.quantization = (0.0, 0)

    def _details(self, indices: range) -> list[dict[str, Any]]:
        return [
            {
                "index": index,
                "shape": np.array(self.arrays[index].shape),
                "dtype": self.arrays[index].dtype.type,
                "quantization": self.quantization,
            }
            for index in indices
        ]

    def get_input_details(self) -> list[dict[str, Any]]:
        return self._details(range(self.count))

    def get_output_details(self) -> list[dict[str, Any]]:
        return self._details(range(self.count, len(self.arrays)))

    def _get_full_signature_list(self) -> Any:
        return self.signatures

    def tensor(self, index: int) -> Any:
        return lambda: self.arrays[index]


PICTURE = np.zeros((1, 40, 20, 3), np.uint8)


def test_a_picture_keeps_its_aspect_ratio() -> None:
    target = Fake([np.full((1, 40, 20, 3), 9, np.uint8)], [])
    sizes = []

    def resize(size: tuple[int, int]) -> np.ndarray[Any, Any]:
        sizes.append(size)
        return np.full((size[1], size[0], 3), 7, np.uint8)

    resized, scale = common.set_resized_input(target, (40, 40), resize)
    assert (sizes, scale, resized.shape) == ([(20, 20)], (0.5, 0.5), (20, 20, 3))
    assert (target.arrays[0][0, :20] == 7).all() and not target.arrays[0][0, 20:].any()
    common.set_input(target, np.ones((40, 20, 3)))
    assert (target.arrays[0] == 1).all()
    assert common.input_size(target) == (20, 40)


def test_only_pictures_have_a_size() -> None:
    with pytest.raises(ModelError, match=r"the shape \[1, 4\], which is not a picture"):
        common.input_size(Fake([np.zeros((1, 4))], []))


def test_a_picture_of_another_size_is_an_error() -> None:
    with pytest.raises(BindingError, match=r"shape \[9, 9, 3\], and the model takes \[40, 20, 3\]"):
        common.set_input(Fake([PICTURE], []), np.ones((9, 9, 3)))


def test_a_classifier_has_no_objects() -> None:
    with pytest.raises(ModelError, match=r"has 1 output.*, and a detector has four: boxes"):
        detect.get_objects(Fake([PICTURE], [SCORES]))


def test_classes_are_ordered_by_their_scores() -> None:
    target = Fake([PICTURE], [np.array([[30, 10, 20, 20]], np.uint8)])
    target.quantization = (0.5, 10)
    assert classify.num_classes(target) == 4
    assert classify.get_scores(target).tolist() == [10, 0, 5, 5]
    assert classify.get_classes(target) == [(0, 10), (2, 5), (3, 5), (1, 0)]
    assert classify.get_classes(target, top_k=2, score_threshold=6) == [(0, 10)]
    assert classify.get_classes(target, top_k=0) == []
    best = classify.get_classes(target, top_k=1)[0]
    assert (best.id, best.score) == (0, 10.0)


def test_a_mask_is_the_first_output() -> None:
    mask = np.arange(6, dtype=np.int64).reshape(1, 2, 3)
    found = segment.get_output(Fake([PICTURE], [mask]))
    assert found.dtype == np.uint8 and found.tolist() == mask[0].tolist()


BOXES, CLASSES, SCORES = [[[0, 0.25, 0.5, 1], [0, 0, 1, 1]]], [[3, 4]], [[0.75, 0.25]]
FOUND = [(3, 0.75, (10, 0, 40, 40)), (4, 0.25, (0, 0, 40, 80))]


@pytest.mark.parametrize(
    "outputs", [(BOXES, CLASSES, SCORES, [2.0]), (SCORES, BOXES, [2.0], CLASSES)]
)
def test_objects_are_in_pixels_of_the_picture(outputs: Any) -> None:
    target = Fake([PICTURE], list(outputs))
    assert detect.get_objects(target, image_scale=(0.5, 0.5)) == FOUND
    assert detect.get_objects(target, 0.5, (0.5, 0.5)) == FOUND[:1]


def test_objects_by_the_names_of_a_signature() -> None:
    target = Fake([PICTURE], [CLASSES, [2.0], BOXES, SCORES])
    names = {"output_0": 2, "output_1": 4, "output_2": 1, "output_3": 3}
    target.signatures = {"serving_default": {"inputs": {}, "outputs": names}}
    assert detect.get_objects(target, image_scale=(0.5, 0.5)) == FOUND


def test_a_detector_has_a_single_signature(null_device: Any) -> None:
    target = edgetpu.make_interpreter(two_signatures())
    with pytest.raises(ModelError, match="several signatures"):
        detect.get_objects(target)


def test_boxes() -> None:
    a, b = detect.BBox(0, 0, 4, 2), detect.BBox(2, 1, 6, 3)
    assert (a.width, a.height, a.area, a.valid) == (4, 2, 8, True)
    assert detect.BBox.intersect(a, b) == (2, 1, 4, 2)
    assert detect.BBox.union(a, b) == (0, 0, 6, 3)
    assert detect.BBox.iou(a, b) == pytest.approx(2 / 14)
    assert detect.BBox.iou(a, a.translate(9, 0)) == 0
    assert not detect.BBox.intersect(a, a.translate(9, 0)).valid
    assert a.translate(1, -1) == (1, -1, 5, 1)
    assert a.scale(0.5, 2).map(lambda edge: edge + 1) == (1, 1, 3, 5)
