"""Images, and the pixels that a model gets."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
from PIL import Image as Pillow

from litegpu.errors import FileError, TaskError
from litegpu.tasks import Image, ImageFormat, vision
from litegpu.tasks.components.containers import NormalizedRect, Rect
from litegpu.tasks.vision.core.regions import WHOLE, Region, rgb, sampled
from task_models import on_cpu, picture, showing


def test_an_image_has_the_values_that_it_was_made_of() -> None:
    pixels = np.arange(24, dtype=np.uint8).reshape(2, 4, 3)
    image = Image(image_format=ImageFormat.SRGB, data=pixels)
    pixels[:] = 0
    assert (image.width, image.height, image.channels, image.step) == (4, 2, 3, 12)
    assert image.image_format == ImageFormat.SRGB
    assert image[1, 3, 2] == 23
    assert image.numpy_view().sum() == sum(range(24))
    assert image.is_contiguous() and not image.is_empty() and not image.uses_gpu()
    assert repr(image) == "<Image SRGB 4×2>"
    with pytest.raises(ValueError, match=r"read-only"):
        image.numpy_view()[0] = 1


def test_one_channel_needs_no_axis() -> None:
    for shape in ((2, 4), (2, 4, 1)):
        image = Image(ImageFormat.VEC32F1, np.zeros(shape, np.float32))
        assert image.numpy_view().shape == (2, 4)
        assert (image.channels, image.step) == (1, 16)


@pytest.mark.parametrize(
    ("kind", "data", "message"),
    [
        (
            ImageFormat.SRGB,
            np.zeros((2, 2), np.uint8),
            r"uint8 \[2, 2\]. An image of the form",
        ),
        (ImageFormat.SRGB, np.zeros((2, 2, 3)), r"SRGB takes uint8 \[height, width, 3\]"),
        (ImageFormat.GRAY8, np.zeros((2, 2, 3), np.uint8), r"GRAY8 takes uint8 \[height, width\]"),
        (ImageFormat.SRGB, np.zeros((0, 2, 3), np.uint8), "have no pixels. Give a picture"),
        (ImageFormat.UNKNOWN, np.zeros((2, 2)), "of the format UNKNOWN have no data. Use SRGB"),
    ],
)
def test_data_that_are_no_image(kind: ImageFormat, data: np.ndarray, message: str) -> None:
    with pytest.raises(TaskError, match=message):
        Image(kind, data)


@pytest.mark.parametrize(
    ("mode", "expected"),
    [("RGB", "SRGB"), ("RGBA", "SRGBA"), ("L", "GRAY8"), ("LA", "SRGBA"), ("CMYK", "SRGB")],
)
def test_a_file_is_read_as_it_is(mode: str, expected: str, tmp_path: Path) -> None:
    path = tmp_path / ("a.tif" if mode == "CMYK" else "a.png")
    original = Pillow.effect_noise((5, 4), 90).convert(mode)
    original.save(path)
    image = Image.create_from_file(path)
    assert image.image_format.name == expected
    wanted = original.convert({"SRGB": "RGB", "SRGBA": "RGBA", "GRAY8": "L"}[expected])
    np.testing.assert_array_equal(image.numpy_view(), np.asarray(wanted))


def test_a_file_that_is_no_picture(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_text("text")
    with pytest.raises(FileError, match=r"a.png' cannot be read: cannot identify image file"):
        Image.create_from_file(tmp_path / "a.png")
    with pytest.raises(FileError, match=r"b.png' cannot be read"):
        Image.create_from_file(str(tmp_path / "b.png"))


def test_models_get_red_green_and_blue() -> None:
    pixels = np.arange(2 * 3 * 4, dtype=np.uint8).reshape(2, 3, 4)
    np.testing.assert_array_equal(rgb(Image(ImageFormat.SRGBA, pixels)), pixels[:, :, :3])
    np.testing.assert_array_equal(rgb(Image(ImageFormat.SBGRA, pixels)), pixels[:, :, [2, 1, 0]])
    gray = rgb(Image(ImageFormat.GRAY8, pixels[:, :, 0]))
    np.testing.assert_array_equal(gray, pixels[:, :, [0, 0, 0]])
    with pytest.raises(TaskError, match=r"the format VEC32F1. Give SRGB, SRGBA, SBGRA or GRAY8"):
        rgb(Image(ImageFormat.VEC32F1, np.zeros((2, 2), np.float32)))


def reference(pixels: np.ndarray, region: Region, size: tuple[int, int], zeros: bool) -> np.ndarray:
    """Interpolate each pixel by itself, at positions rounded to 1/32."""
    height, width = pixels.shape[:2]
    found = np.zeros((size[1], size[0], 3), np.uint8)
    matrix = region.matrix()
    for row, column in np.ndindex(size[1], size[0]):
        at = matrix @ (column / size[0], row / size[1], 1)
        x, y = np.rint(at * 32).astype(int)
        total = np.zeros(3)
        for i, wx in ((x >> 5, 32 - (x & 31)), ((x >> 5) + 1, x & 31)):
            for j, wy in ((y >> 5, 32 - (y & 31)), ((y >> 5) + 1, y & 31)):
                if not zeros or (0 <= i < width and 0 <= j < height):
                    value = pixels[min(max(j, 0), height - 1), min(max(i, 0), width - 1)]
                    total += value.astype(float) * wx * wy / 1024
        found[row, column] = np.floor(total + 0.5)
    return found


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize(
    "rect",
    [
        WHOLE,
        NormalizedRect(0.4, 0.5, 0.6, 0.3, 0.0),
        NormalizedRect(0.5, 0.4, 0.5, 0.7, 0.4),
        NormalizedRect(0.1, 0.9, 0.8, 0.9, -2.0),
        NormalizedRect(0.5, 0.5, 1.7, 1.4, math.pi / 2),
    ],
)
def test_regions_are_interpolated(rect: NormalizedRect, zeros: bool) -> None:
    pixels = picture().numpy_view()
    region = Region.of(rect, (30, 20))
    found = sampled(pixels, region, (9, 13), zeros=zeros)
    np.testing.assert_array_equal(found, reference(pixels, region, (9, 13), zeros))


def test_a_picture_of_the_size_of_the_input_is_not_touched() -> None:
    pixels = picture().numpy_view()
    assert sampled(pixels, Region.of(WHOLE, (30, 20)), (30, 20)) is pixels


def test_a_region_is_padded_to_the_aspect_ratio_of_the_input() -> None:
    region = Region(5, 5, 10, 20, 0.3)
    assert region.padded((1, 1)) == Region(5, 5, 20, 20, 0.3)
    assert region.padded((1, 4)) == Region(5, 5, 10, 40, 0.3)


def shown(image: Image, options: vision.ImageProcessingOptions | None = None) -> np.ndarray:
    """Return the pixels that a model sees, from 0 to 255."""
    settings = vision.ImageEmbedderOptions(base_options=on_cpu(showing()))
    with vision.ImageEmbedder.create_from_options(settings) as task:
        found = task.embed(image, options).embeddings[0].embedding
    return np.rint(found.reshape(10, 10, 3) * 127.5 + 127.5).astype(np.uint8)


def test_a_model_sees_the_part_and_the_rotation_that_options_ask_for() -> None:
    image = picture(10, 10)
    pixels = image.numpy_view()
    np.testing.assert_array_equal(shown(image), pixels)
    turned = shown(image, vision.ImageProcessingOptions(rotation_degrees=90))
    # Positions are those of corners, so a rotation by half a circle begins outside.
    np.testing.assert_array_equal(turned[:, 1:], np.rot90(pixels, -1)[:, :-1])
    left = vision.ImageProcessingOptions(region_of_interest=Rect(0, 0, 0.5, 1))
    np.testing.assert_array_equal(shown(image, left)[:, ::2], pixels[:, :5])


def test_a_rotated_part_has_its_own_sides() -> None:
    image = picture(20, 40)
    part = Rect(0.25, 0.0, 0.75, 1.0)
    whole = vision.ImageProcessingOptions(part, rotation_degrees=-90)
    upright = vision.ImageProcessingOptions(part)
    one, other = shown(image, whole), np.rot90(shown(image, upright))
    np.testing.assert_array_equal(one[1:], other[:-1])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (vision.ImageProcessingOptions(rotation_degrees=45), "is 45. Use a multiple of 90"),
        (vision.ImageProcessingOptions(Rect(0.5, 0, 0.5, 1)), "Give sides from 0 to 1, left befor"),
        (vision.ImageProcessingOptions(Rect(0, 0, 1.5, 1)), "region of interest is Rect"),
    ],
)
def test_parts_that_are_none(options: vision.ImageProcessingOptions, message: str) -> None:
    with pytest.raises(TaskError, match=message):
        shown(picture(), options)
