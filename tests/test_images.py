"""Pictures as inputs: cropping, resizing, and the three number formats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from litegpu.errors import ModelError, OptionsError
from litegpu.tools.images import (
    centre_crop,
    default_picture,
    is_image_input,
    open_picture,
    random_tensor,
    to_tensor,
)


def detail(shape: tuple[int, ...], dtype: Any = np.float32) -> dict[str, Any]:
    return {"name": "input", "shape": np.array(shape), "dtype": dtype, "quantization": (0.0, 0)}


def stripes() -> Image.Image:
    """A 30x10 picture: red, green and blue squares side by side."""
    pixels = np.zeros((10, 30, 3), np.uint8)
    for channel in range(3):
        pixels[:, channel * 10 : channel * 10 + 10, channel] = 255
    return Image.fromarray(pixels)


def test_the_middle_is_kept() -> None:
    cropped = centre_crop(stripes(), 4, 4)
    assert cropped.size == (10, 10)
    assert np.all(np.asarray(cropped) == [0, 255, 0])


def test_a_wide_input_keeps_the_whole_width() -> None:
    assert centre_crop(stripes(), 6, 1).size == (30, 5)


def test_float_inputs_are_normalised() -> None:
    tensor = to_tensor(stripes(), detail((1, 5, 5, 3)))
    assert tensor.dtype == np.float32
    assert tensor.shape == (1, 5, 5, 3)
    assert np.all(tensor == np.array([-1, 1, -1], np.float32))


def test_mean_and_std_can_be_chosen() -> None:
    tensor = to_tensor(stripes(), detail((1, 5, 5, 3)), mean=0, std=255)
    assert np.all(tensor == np.array([0, 1, 0], np.float32))


def test_uint8_inputs_get_the_pixels() -> None:
    tensor = to_tensor(stripes(), detail((1, 5, 5, 3), np.uint8))
    assert tensor.dtype == np.uint8
    assert np.all(tensor == [0, 255, 0])


def test_int8_inputs_get_the_pixels_shifted() -> None:
    tensor = to_tensor(stripes(), detail((1, 5, 5, 3), np.int8))
    assert tensor.dtype == np.int8
    assert np.all(tensor == [-128, 127, -128])


def test_every_batch_entry_is_the_same() -> None:
    tensor = to_tensor(stripes(), detail((3, 5, 7, 3)))
    assert tensor.shape == (3, 5, 7, 3)
    assert tensor.flags.c_contiguous
    assert np.array_equal(tensor[0], tensor[2])


def test_grey_inputs_and_mask_channels() -> None:
    assert to_tensor(stripes(), detail((1, 5, 5, 1), np.uint8)).shape == (1, 5, 5, 1)
    masked = to_tensor(stripes(), detail((1, 5, 5, 4)))
    assert np.all(masked[..., 3] == 0)
    assert np.all(masked[..., 1] == 1)


def test_other_types_are_refused() -> None:
    with pytest.raises(ModelError, match="input 'input' has the type int32; a picture can be"):
        to_tensor(stripes(), detail((1, 5, 5, 3), np.int32))


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((1, 8, 8, 3), True), ((1, 8, 8, 2), False), ((1, 192), False), ((1, 0, 8, 3), False)],
)
def test_which_inputs_take_a_picture(shape: tuple[int, ...], expected: bool) -> None:
    assert is_image_input(detail(shape)) is expected


@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.uint8, np.int32, np.bool_])
def test_noise_is_seeded_and_in_range(dtype: Any) -> None:
    first, again = (random_tensor(detail((2, 9), dtype)) for _ in range(2))
    assert first.dtype == dtype
    assert np.array_equal(first, again)
    assert len(np.unique(first)) > 1


def test_unreadable_pictures_are_named(tmp_path: Path) -> None:
    with pytest.raises(OptionsError, match=r"The picture '.*absent.jpg' cannot be read: .*No such"):
        open_picture(str(tmp_path / "absent.jpg"))
    text = tmp_path / "text.png"
    text.write_text("not a picture")
    with pytest.raises(OptionsError, match="cannot identify image file"):
        open_picture(str(text))


def test_rotated_photographs_are_turned_upright(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # orientation: the camera was turned by 90 degrees
    stripes().save(tmp_path / "turned.jpg", exif=exif)
    assert open_picture(str(tmp_path / "turned.jpg")).size == (10, 30)


def test_the_shipped_picture_is_a_photograph() -> None:
    picture = open_picture(default_picture())
    assert picture.mode == "RGB"
    assert min(picture.size) >= 257
