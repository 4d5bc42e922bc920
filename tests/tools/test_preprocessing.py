"""Picture preprocessing of the evaluations: decoding, cropping, resizing and scaling."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from litegpu.errors import FileError, MissingDependencyError, ModelError
from litegpu.tools.engines.jobs import Tensor
from litegpu.tools.evaluation.preprocessing import (
    Preprocessing,
    check_decoder,
    decode_jpeg,
    for_input,
    resize_bilinear,
    square_crop,
)

RANDOM = np.random.default_rng(5)


def pixels(height: int, width: int) -> npt.NDArray[np.uint8]:
    return RANDOM.integers(0, 256, (height, width, 3), dtype=np.uint8)


def resized_one_by_one(image: npt.NDArray[Any], height: int, width: int) -> npt.NDArray[Any]:
    """Return the documented rule, element by element in double precision."""
    result = np.zeros((height, width, 3))
    for y in range(height):
        for x in range(width):
            at_y, at_x = y * image.shape[0] / height, x * image.shape[1] / width
            top, left = math.floor(at_y), math.floor(at_x)
            bottom = min(math.ceil(at_y), image.shape[0] - 1)
            right = min(math.ceil(at_x), image.shape[1] - 1)
            down, across = at_y - top, at_x - left
            upper = image[top, left] * (1 - across) + image[top, right] * across
            lower = image[bottom, left] * (1 - across) + image[bottom, right] * across
            result[y, x] = upper * (1 - down) + lower * down
    return result


@pytest.mark.parametrize("old", [(1, 1), (5, 7), (13, 4), (6, 6)])
@pytest.mark.parametrize("new", [(1, 1), (6, 6), (9, 5)])
def test_resizing_takes_neither_corners_nor_half_pixels(
    old: tuple[int, int], new: tuple[int, int]
) -> None:
    image = pixels(*old)
    found = resize_bilinear(image, *new)
    assert found.dtype == np.float32 and found.shape == (*new, 3)
    assert np.allclose(found, resized_one_by_one(image.astype(np.float64), *new), atol=1e-3)


def test_resizing_by_hand() -> None:
    row = np.array([[[0, 0, 0], [100, 10, 1], [200, 20, 2]]], np.uint8)
    found = resize_bilinear(row, 1, 2)  # pixel 1 is at 1.5, between the second and the third
    assert found.tolist() == [[[0, 0, 0], [150, 15, 1.5]]]


@pytest.mark.parametrize(
    ("size", "box"),
    [
        ((16, 16), (1, 1, 14)),  # 0.875 × 16 = 14
        ((12, 40), (1, 15, 11)),  # 10.5 is 11; (12 - 11) / 2 = 0.5 is 1, (40 - 11) / 2 = 14.5 is 15
        ((500, 375), (86, 24, 328)),  # 328.125
        ((1, 3), (0, 1, 1)),
    ],
)
def test_halves_are_rounded_upwards(size: tuple[int, int], box: tuple[int, int, int]) -> None:
    image = pixels(*size)
    top, left, side = box
    assert np.array_equal(square_crop(image, 0.875), image[top : top + side, left : left + side])


@pytest.fixture
def photo(tmp_path: Path) -> Path:
    path = tmp_path / "photo.JPEG"
    Image.fromarray(pixels(20, 30)).save(path)
    return path


def test_values_by_type(photo: Path) -> None:
    by_type = {kind: Preprocessing(9, 7, kind)(str(photo)) for kind in ("float32", "uint8", "int8")}
    exact = resize_bilinear(decode_jpeg(str(photo)), 9, 7)
    assert {kind: str(values.dtype) for kind, values in by_type.items()} == {
        kind: kind for kind in by_type
    }
    assert np.allclose(by_type["float32"], (exact - 127.5) / 127.5, atol=1e-6)
    assert np.array_equal(by_type["uint8"], np.floor(exact))
    # what is between two numbers goes to the one that is nearer to zero
    assert np.array_equal(by_type["int8"], np.trunc(exact - 128))
    assert not np.array_equal(by_type["int8"], np.floor(exact - 128))


def test_a_picture_is_not_turned_and_grey_is_three_channels(tmp_path: Path) -> None:
    path = tmp_path / "turned.jpg"
    exif = Image.Exif()
    exif[0x0112] = 6  # a viewer would turn it
    Image.fromarray(pixels(20, 30)[..., 0]).save(path, exif=exif)
    found = decode_jpeg(str(path))
    assert found.shape == (20, 30, 3)
    assert np.array_equal(found[..., 0], found[..., 2])


def test_raw_bytes_have_the_input_s_size(tmp_path: Path) -> None:
    path, values = tmp_path / "raw.rgb8", pixels(4, 5)
    path.write_bytes(values.tobytes())
    assert np.array_equal(Preprocessing(4, 5, "uint8", 0.875)(str(path)), values)
    with pytest.raises(
        FileError, match=r"raw.rgb8' cannot be read: the file has 60 bytes, but the input"
    ):
        Preprocessing(4, 4, "uint8")(str(path))
    with pytest.raises(FileError, match=r"'no.rgb8' cannot be read: No such file or directory"):
        Preprocessing(4, 4, "uint8")("no.rgb8")


def test_what_is_no_jpeg(photo: Path, tmp_path: Path) -> None:
    prepare = Preprocessing(4, 4, "float32")
    content = photo.read_bytes()
    files = {
        "cut.jpg": content[:-100],
        "text.jpg": b"hello",
        "empty.jpeg": b"",
        "other.png": content,
    }
    for name, damaged in files.items():
        (tmp_path / name).write_bytes(damaged)
    reasons = {
        "cut.jpg": "image file is truncated",
        "text.jpg": "the file is not a JPEG. Replace the file",
        "empty.jpeg": "the file is not a JPEG. Replace the file",
        "other.png": (
            "Extension .png is not supported. Convert the picture to a .jpg or .jpeg file."
        ),
        "missing.jpg": "No such file or directory. Replace the file by a complete JPEG.",
    }
    for name, reason in reasons.items():
        with pytest.raises(FileError) as caught:
            prepare(str(tmp_path / name))
        assert f"{name}' cannot be read: {reason}" in str(caught.value)


def test_inputs_that_take_no_picture() -> None:
    def tensor(shape: tuple[int, ...], kind: str = "float32") -> Tensor:
        return Tensor("x", shape, np.dtype(kind))

    assert for_input(tensor((9, 7, 3), "int8"), True, 0.5) == Preprocessing(9, 7, "int8", 0.5)
    with pytest.raises(ModelError, match=r"Invalid input shape for model: 'x' is \[1, 9, 7, 1\]"):
        for_input(tensor((9, 7, 1)), True)
    with pytest.raises(ModelError, match=r"Invalid input shape for model: 'x' is \[2, 9, 7, 3\]"):
        for_input(tensor((2, 9, 7, 3)), False)
    with pytest.raises(
        ModelError, match=r"'x' is \[1, 1, 1, 3\], with sizes that are known only at run time"
    ):
        for_input(Tensor("x", (1, 1, 3), np.dtype("float32"), dynamic=True), True)
    with pytest.raises(ModelError, match=r"Invalid input type for model: 'x' is float16\. Use a"):
        for_input(tensor((9, 7, 3), "float16"), True)


def test_without_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    check_decoder()
    monkeypatch.setitem(__import__("sys").modules, "PIL.Image", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'litegpu\[tools\]'"):
        check_decoder()


def test_jpegs_are_decoded_exactly(tmp_path: Path) -> None:
    """Noise at full quality comes back but for the rounding of its frequencies, at most by one.

    libjpeg's fast transform, which multiplies with fewer digits, is further off.
    """
    noise = RANDOM.integers(0, 256, (64, 64), dtype=np.uint8)
    path = tmp_path / "noise.jpg"
    Image.fromarray(noise).save(path, quality=100)
    error = np.abs(decode_jpeg(str(path))[..., 0].astype(int) - noise)
    assert error.max() <= 1 and error.mean() < 0.12
