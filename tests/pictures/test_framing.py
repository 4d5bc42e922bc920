"""The part of a picture that an input shows, and the positions of results on the picture."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from litegpu.errors import OptionsError
from litegpu.pictures.framing import CROP, FITS, LETTERBOX, STRETCH, Frame, framed, parse_region
from litegpu.pictures.images import to_tensor

SQUARE = (64, 64)


@pytest.mark.parametrize(
    ("picture", "fit", "box"),
    [
        ((200, 100), CROP, (50, 0, 150, 100)),
        ((200, 100), STRETCH, (0, 0, 200, 100)),
        ((200, 100), LETTERBOX, (0, -50, 200, 150)),
        ((100, 200), CROP, (0, 50, 100, 150)),
        ((100, 200), LETTERBOX, (-50, 0, 150, 200)),
    ],
)
def test_what_a_square_input_shows(
    picture: tuple[int, int], fit: str, box: tuple[int, int, int, int]
) -> None:
    assert framed(picture, SQUARE, fit).box == box


def test_a_wide_input_shows_the_middle_of_a_tall_picture() -> None:
    assert framed((100, 400), (128, 64), CROP).box == (0, 175, 100, 225)


def test_a_region_stands_for_the_picture() -> None:
    region = (100, 20, 200, 70)
    assert framed((400, 300), SQUARE, STRETCH, region) == Frame(region, (400, 300))
    assert framed((400, 300), SQUARE, CROP, region).box == (125, 20, 175, 70)
    assert framed((400, 300), SQUARE, LETTERBOX, region).box == (100, -5, 200, 95)


def test_what_of_the_frame_is_on_the_picture() -> None:
    assert framed((200, 100), SQUARE, LETTERBOX).visible == (0, 0, 200, 100)
    assert framed((200, 100), SQUARE, CROP).visible == (50, 0, 150, 100)


@pytest.mark.parametrize("fit", FITS)
@pytest.mark.parametrize("size", [(480, 120), (120, 480), (333, 257)])
@pytest.mark.parametrize("region", [None, (10, 20, 110, 118)])
def test_what_lies_somewhere_is_found_there(
    size: tuple[int, int], fit: str, region: tuple[int, int, int, int] | None
) -> None:
    """A white patch of a black picture is sought in the tensor, and led back."""
    left, top, right, bottom = region or (0, 0, *size)
    patch = ((left + right) // 2 + 8, (top + bottom) // 2 - 9)
    pixels = np.zeros((size[1], size[0], 3), np.uint8)
    pixels[patch[1] - 6 : patch[1] + 6, patch[0] - 6 : patch[0] + 6] = 255
    frame = framed(size, SQUARE, fit, region)
    detail = {"name": "input", "shape": np.array([1, 64, 64, 3]), "dtype": np.float32}
    tensor = to_tensor(Image.fromarray(pixels), detail, 0, 255, frame)[0, :, :, 0]
    y, x = np.mgrid[:64, :64] + 0.5
    found = np.array([(tensor * axis).sum() / tensor.sum() / 64 for axis in (x, y)])
    step = max(frame.size) / 64
    assert np.abs(frame.positions(found) - patch).max() < 0.3 * step + 0.5


def test_outside_of_the_picture_there_is_black() -> None:
    frame = framed((64, 32), SQUARE, LETTERBOX)
    detail = {"name": "input", "shape": np.array([1, 64, 64, 3]), "dtype": np.uint8}
    tensor = to_tensor(Image.new("RGB", (64, 32), "white"), detail, frame=frame)[0]
    assert np.all(tensor[:15] == 0)
    assert np.all(tensor[17:47] == 255)
    assert np.all(tensor[49:] == 0)


def test_each_channel_may_be_scaled_by_itself() -> None:
    detail = {"name": "input", "shape": np.array([1, 4, 4, 3]), "dtype": np.float32}
    white = Image.new("RGB", (4, 4), "white")
    tensor = to_tensor(white, detail, (255.0, 155.0, 55.0), (1.0, 10.0, 100.0))
    assert np.allclose(tensor, [0, 10, 2])


def test_regions_are_parsed() -> None:
    assert parse_region(None, (30, 20)) is None
    assert parse_region("0,1, 30,20", (30, 20)) == (0, 1, 30, 20)


@pytest.mark.parametrize("text", ["", "1,2,3", "0,0,31,20", "5,5,5,9", "0,-1,9,9", "0,0,nine,9"])
def test_what_is_no_part_of_the_picture_is_refused(text: str) -> None:
    with pytest.raises(OptionsError, match=rf"--region={text}: this is no part of .* 30×20 pixels"):
        parse_region(text, (30, 20))
