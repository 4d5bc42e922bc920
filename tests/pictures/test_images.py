"""Pictures as inputs: cropping, resizing, and the three number formats."""

from __future__ import annotations

import contextlib
import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from PIL import Image

from litegpu.errors import FileError, ModelError
from litegpu.pictures.images import (
    centre_crop,
    is_image_input,
    open_picture,
    random_tensor,
    to_tensor,
)
from litegpu.tools.picture_flag import (
    default_picture,
    picture_of_flag,
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
    text, cut = tmp_path / "text.png", tmp_path / "cut.jpg"
    text.write_text("not a picture")
    cut.write_bytes(Path(default_picture()).read_bytes()[:5000])
    (tmp_path / "empty.png").touch()
    for path, why in {
        tmp_path / "absent.jpg": "there is no such file",
        tmp_path: "it is not a file",
        text: "cannot identify image file",
        cut: "image file is truncated",
        tmp_path / "empty.png": "cannot identify image file",
    }.items():
        with pytest.raises(FileError, match=rf"The picture '.*' cannot be read: .*{why}.*Give a"):
            open_picture(str(path))


def test_damaged_pictures_have_one_kind_of_error(tmp_path: Path) -> None:
    """Pillow's readers raise SyntaxError, ValueError, struct.error, zlib.error and others."""
    dice = np.random.default_rng(0)
    for kind in ("png", "gif", "tiff", "bmp", "webp"):
        path = tmp_path / f"picture.{kind}"
        stripes().save(path)
        whole = path.read_bytes()
        for _ in range(40):
            damaged = np.frombuffer(whole, np.uint8).copy()
            damaged[dice.integers(len(damaged), size=3)] = dice.integers(256, size=3)
            path.write_bytes(damaged.tobytes())
            with contextlib.suppress(FileError):
                open_picture(str(path))


def test_a_picture_of_too_many_pixels(tmp_path: Path) -> None:
    path = tmp_path / "huge.jpg"
    Image.new("L", (20000, 12000)).save(path)
    with pytest.raises(
        FileError, match=r"the file has more than 178956970 pixels\. Make it smaller\."
    ):
        open_picture(str(path))


def test_a_large_picture_is_read_without_a_word(
    tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    path = tmp_path / "large.png"
    Image.new("1", (12000, 9000)).save(path)
    assert open_picture(str(path)).size == (12000, 9000)
    assert not recwarn


GREY = np.array([[0, 128], [200, 255]], np.uint8)


def read_back(picture: Image.Image, path: Path, **options: Any) -> npt.NDArray[np.uint8]:
    picture.save(path, **options)
    return np.asarray(open_picture(str(path)))


@pytest.mark.parametrize("kind", ["png", "tiff"])
def test_16_bits_are_scaled_and_not_clipped(kind: str, tmp_path: Path) -> None:
    types = (np.uint16, np.int32) if kind == "tiff" else (np.uint16,)
    for values in (GREY.astype(each) * 257 for each in types):
        seen = read_back(Image.fromarray(values), tmp_path / f"deep.{kind}")
        assert np.array_equal(seen, np.repeat(GREY[..., None], 3, axis=2))


def test_floats_are_shades(tmp_path: Path) -> None:
    seen = read_back(Image.fromarray(GREY.astype(np.float32) / 255), tmp_path / "floats.tiff")
    assert np.array_equal(seen[..., 0], GREY)
    for wrong in (-1.0, np.nan, 1e9):
        values = np.full((2, 2), wrong, np.float32)
        with pytest.raises(FileError, match="are no shades from 0 to"):
            read_back(Image.fromarray(values), tmp_path / "wrong.tiff")


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P", "PA-as-GIF"])
def test_what_is_transparent_is_white(mode: str, tmp_path: Path) -> None:
    pixels = np.array([[[10, 10, 10, 0], [10, 10, 10, 255]]], np.uint8)
    picture = Image.fromarray(pixels)
    path = tmp_path / ("picture.gif" if "GIF" in mode else "picture.png")
    if mode == "P":
        palette = Image.new("P", (2, 1))
        palette.putpalette([10, 10, 10, 10, 10, 10])
        palette.putpixel((1, 0), 1)
        seen = read_back(palette, path, transparency=0)
    else:
        seen = read_back(picture if "GIF" in mode else picture.convert(mode), path)
    assert seen.tolist() == [[[255, 255, 255], [10, 10, 10]]]


def test_half_transparent_is_half_white(tmp_path: Path) -> None:
    seen = read_back(Image.new("RGBA", (1, 1), (0, 0, 0, 128)), tmp_path / "half.png")
    assert seen.tolist() == [[[127, 127, 127]]]


def test_other_kinds_of_pictures(tmp_path: Path) -> None:
    red = Image.new("RGB", (8, 8), (255, 0, 0))
    assert np.all(read_back(red.convert("CMYK"), tmp_path / "red.tiff") == [255, 0, 0])
    seen = read_back(red.convert("CMYK"), tmp_path / "red.jpg", quality=95)
    assert np.allclose(seen, [255, 0, 0], atol=4)
    assert np.all(read_back(Image.new("1", (8, 8), 1), tmp_path / "bits.png") == 255)
    assert np.all(read_back(Image.new("L", (8, 8), 77), tmp_path / "grey.png") == 77)
    assert np.all(read_back(red.convert("P"), tmp_path / "palette.png") == [255, 0, 0])


def test_the_first_frame_of_an_animation(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    seen = read_back(frames[0], tmp_path / "two.gif", save_all=True, append_images=frames[1:])
    assert np.all(seen == [255, 0, 0])


def test_rotated_photographs_are_turned_upright(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6  # orientation: the camera was turned by 90 degrees
    for name in ("turned.jpg", "turned.png", "turned.webp"):
        stripes().save(tmp_path / name, exif=exif)
        assert open_picture(str(tmp_path / name)).size == (10, 30)


def test_damaged_metadata_do_not_spoil_a_photograph(tmp_path: Path) -> None:
    stripes().save(tmp_path / "picture.jpg", exif=b"Exif\0\0MM\0*\xff\xff\xff\xff")
    assert open_picture(str(tmp_path / "picture.jpg")).size == (30, 10)


@pytest.mark.parametrize("size", [(1, 3000), (3000, 1), (1, 1)])
def test_narrow_pictures_have_a_centre(size: tuple[int, int]) -> None:
    tensor = to_tensor(Image.new("RGB", size, "white"), detail((1, 8, 64, 3)))
    assert np.all(tensor == 1)


def test_the_shipped_picture_is_a_photograph() -> None:
    picture = open_picture(default_picture())
    assert picture.mode == "RGB"
    assert min(picture.size) >= 257


def test_a_picture_comes_by_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    content = Path(default_picture()).read_bytes()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))
    assert picture_of_flag("-").size == open_picture(default_picture()).size
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"no picture")))
    with pytest.raises(FileError, match=r"'\(standard input\)' cannot be read: cannot identify"):
        picture_of_flag("-")
    with pytest.raises(FileError, match=r"'-' cannot be read: there is no such file"):
        open_picture("-")  # of a table or a program: a file


@pytest.mark.parametrize("brand", [b"mif1", b"msf1", b"avif"])
def test_avif_is_none_of_phones(
    brand: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its files may begin with the brand of any picture in that container."""
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    path = tmp_path / "picture.avif"
    path.write_bytes(b"\0\0\0\x1cftyp" + brand + b"\0\0\0\0mif1avifmiaf rest")
    with pytest.raises(FileError, match=r"cannot be read: (?!a HEIC)"):
        open_picture(str(path))


def test_heic_names_the_package_that_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "phone.jpg"  # whatever it is called
    path.write_bytes(b"\0\0\0\x18ftypheic\0\0\0\0mif1heic")
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    with pytest.raises(FileError, match=r"'pillow-heif'. Install it with: pip install 'litegpu\[h"):
        open_picture(str(path))


def test_heic_is_read(tmp_path: Path) -> None:
    why = "pillow-heif is not installed: pip install 'litegpu[heif]'"
    heif = pytest.importorskip("pillow_heif", reason=why)
    heif.from_pillow(stripes().resize((300, 100), 0)).save(tmp_path / "phone.heic")
    assert open_picture(str(tmp_path / "phone.heic")).size == (300, 100)
