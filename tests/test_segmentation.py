"""The drawing of a segmentation: colours, shares, overlay, legend."""

from __future__ import annotations

import numpy as np
from PIL import Image

from litegpu.tools import segmentation


def test_the_palette_is_that_of_pascal_voc() -> None:
    colours = segmentation.palette()
    known = {0: (0, 0, 0), 1: (128, 0, 0), 2: (0, 128, 0), 15: (192, 128, 128), 20: (0, 64, 128)}
    assert {number: tuple(map(int, colours[number])) for number in known} == known
    assert len(np.unique(colours, axis=0)) == 256


def test_the_best_class_of_each_pixel_wins() -> None:
    scores = np.zeros((1, 2, 3, 21), np.float32)
    scores[0, :, :, 15] = 1
    scores[0, 1, 2, 8] = 2
    assert segmentation.class_map(scores).tolist() == [[15, 15, 15], [15, 15, 8]]


def test_shares_are_sorted_and_tiny_ones_left_out() -> None:
    classes = np.zeros((100, 100), np.uint8)
    classes[:60] = 15
    classes[99, 99] = 3
    assert segmentation.shares(classes) == [(15, 0.6), (0, 0.3999)]


def test_class_names() -> None:
    assert len(segmentation.CLASSES) == 21
    assert segmentation.class_name(15) == "person"
    assert segmentation.class_name(99) == "class 99"


def test_background_keeps_the_picture_and_classes_colour_it() -> None:
    picture = Image.new("RGB", (100, 80), (200, 200, 200))
    classes = np.zeros((2, 2), np.uint8)
    classes[0, 0] = 15
    drawing = segmentation.draw(picture, classes)
    assert drawing.size == (100 + segmentation.LEGEND_WIDTH, 80)
    assert drawing.getpixel((90, 70)) == (200, 200, 200)
    assert drawing.getpixel((10, 10)) == (195, 156, 156)  # 40 % of 200 and 60 % of the colour


def test_the_legend_shows_each_class() -> None:
    picture = Image.new("RGB", (100, 80), "black")
    legend = np.asarray(segmentation.draw(picture, np.full((2, 2), 15, np.uint8)))[:, 100:]
    assert (legend == [192, 128, 128]).all(axis=2).any()  # the colour's box
    assert (legend == 0).all(axis=2).sum() > 20  # the text
