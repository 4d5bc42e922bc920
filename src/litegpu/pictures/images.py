"""Reads, crops, resizes, normalizes and quantizes pictures for model inputs."""

from __future__ import annotations

import contextlib
import io
import os
import warnings
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from litegpu.errors import FileError, ModelError, missing_dependency
from litegpu.pictures.framing import CROP, Frame, framed

if TYPE_CHECKING:
    from PIL import Image

Scale = float | tuple[float, ...]
"""One number for all channels of a picture, or one number per channel."""

# By the number of channels of the input; four-channel inputs expect an empty mask as the last one.
MODES = {1: "L", 3: "RGB", 4: "RGB"}


def open_picture(path: str) -> Image.Image:
    """Return the picture at `path` in RGB, upright, with transparent parts over white.

    The function reads the first frame of an animation, and the upper 8 bits of 16-bit channels.

    Raises:
        FileError: `path` is not a readable picture, or the picture has too many pixels.
        MissingDependencyError: pillow is not installed.
    """
    require_pillow()
    if not os.path.isfile(path):
        what = "it is not a file" if os.path.exists(path) else "there is no such file"
        raise unreadable(path, what)
    return decode_picture(path, path)


def read_picture(picture: str | os.PathLike[str] | bytes | Image.Image) -> Image.Image:
    """Return the picture at a path, in a file's bytes or in a PIL image, as `open_picture` does.

    Raises:
        FileError: the argument is not a readable picture, or has too many pixels.
        MissingDependencyError: pillow is not installed.
    """
    if isinstance(picture, str | os.PathLike):
        return open_picture(os.fspath(picture))
    if isinstance(picture, bytes | bytearray):
        return decode_picture(io.BytesIO(picture), f"({len(picture)} bytes)")
    require_pillow()
    return _as_rgb(_upright(picture.copy()))


def decode_picture(file: str | IO[bytes], name: str) -> Image.Image:
    """Decode the picture in a file as `open_picture` does; error messages call the file `name`.

    Raises:
        FileError: the file is not a readable picture, has too many pixels, or is HEIC and
            pillow-heif is not installed.
        MissingDependencyError: pillow is not installed.
    """
    require_pillow()
    from PIL import Image

    if _is_heif(file):
        _require_heif(name)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow also warns about pictures that it can read
            with Image.open(file) as picture:
                picture.load()
                return _as_rgb(_upright(picture))
    except Image.DecompressionBombError as error:
        most = 2 * (Image.MAX_IMAGE_PIXELS or 0)
        raise unreadable(
            name, f"the file has more than {most} pixels", "Make it smaller."
        ) from error
    except Exception as error:  # Pillow's readers raise all kinds of errors
        raise unreadable(name, str(error) or type(error).__name__) from error


def require_pillow() -> None:
    """Raise MissingDependencyError if pillow is not installed."""
    try:
        import PIL  # noqa: F401
    except ImportError as error:
        raise missing_dependency("pillow", "tools", "Reading a picture") from error


def _is_heif(file: str | IO[bytes]) -> bool:
    """Return whether a file is HEIC, a format of phone cameras that Pillow does not read."""
    try:
        with open(file, "rb") if isinstance(file, str) else contextlib.nullcontext(file) as opened:
            beginning = opened.read(_MAX_BRANDS)
            opened.seek(0)
    except OSError:  # Pillow reports the error
        return False
    if beginning[4:8] != b"ftyp":
        return False
    end = int.from_bytes(beginning[:4], "big")
    # The major brand, a version, and those that it is compatible with.
    brands = {beginning[start : start + 4] for start in (8, *range(16, end, 4))}
    return bool(brands & _HEIF_BRANDS) and not brands & _AVIF_BRANDS


_MAX_BRANDS = 256
"""Number of bytes that contain a file's brands."""
_HEIF_BRANDS = {b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"}
_AVIF_BRANDS = {b"avif", b"avis"}
"""Brands of the HEIF container format that Pillow reads."""


def _require_heif(name: str) -> None:
    try:
        import pillow_heif
    except ImportError as error:
        why = "a HEIC picture needs the Python package 'pillow-heif'"
        raise unreadable(name, why, "Install it with: pip install 'litegpu[heif]'") from error
    pillow_heif.register_heif_opener()


def unreadable(path: str, why: str, remedy: str = "Give a JPEG, PNG or BMP file.") -> FileError:
    """Return the error for a picture that cannot be read."""
    return FileError(f"The picture '{path}' cannot be read: {why.rstrip('.')}. {remedy}")


def _upright(picture: Image.Image) -> Image.Image:
    from PIL import ImageOps

    # damaged metadata do not matter
    with contextlib.suppress(Exception):
        ImageOps.exif_transpose(picture, in_place=True)
    return picture


def _as_rgb(picture: Image.Image) -> Image.Image:
    from PIL import Image

    if picture.mode.startswith("I") or picture.mode == "F":
        return _eight_bits(picture).convert("RGB")
    if not picture.has_transparency_data:
        return picture.convert("RGB")
    paper = Image.new("RGBA", picture.size, "white")
    return Image.alpha_composite(paper, picture.convert("RGBA")).convert("RGB")


def _eight_bits(picture: Image.Image) -> Image.Image:
    """Convert a gray picture with wider numbers to 8 bits: the upper 8 bits of 16-bit numbers."""
    from PIL import Image

    values = np.asarray(picture, np.float64)
    low, high = float(values.min()), float(values.max())
    full = 1.0 if picture.mode == "F" and high <= 1 else _FULL_SCALE
    if not (low >= 0 and high <= full):  # false for NaN, too
        raise ValueError(f"its values, {low:g} to {high:g}, are no shades from 0 to {full:g}")
    return Image.fromarray((values * (255 / full)).round().astype(np.uint8))


_FULL_SCALE = 65535.0
"""The value of white in a picture of 16 bits per channel."""


def is_image_input(detail: dict[str, Any]) -> bool:
    """Return whether an input of the interpreter, `[N, H, W, C]`, can take a picture."""
    shape = detail["shape"]
    return len(shape) == 4 and int(shape[3]) in MODES and int(min(shape)) > 0


def centre_crop(picture: Image.Image, width: int, height: int) -> Image.Image:
    """Return the largest centered crop with the aspect ratio `width` to `height`."""
    return picture.crop(framed(picture.size, (width, height), CROP).box)


def to_tensor(
    picture: Image.Image,
    detail: dict[str, Any],
    mean: Scale = 127.5,
    std: Scale = 127.5,
    frame: Frame | None = None,
) -> NDArray[Any]:
    """Return `picture` as the value of the input that `detail` describes, `[N, H, W, C]`.

    The function resizes the part of the picture that `frame` selects; without `frame`, it crops the
    picture around the center. Pixels outside of the picture are black. Float inputs get `(pixel -
    mean) / std`, with one mean and std for all channels or one per channel. A uint8 input gets the
    pixel, an int8 input the pixel minus 128. All batch entries are equal.

    Raises:
        ModelError: the input's type is not supported.
    """
    from PIL import Image

    batch, height, width, channels = (int(size) for size in detail["shape"])
    shown = frame or framed(picture.size, (width, height), CROP)
    cropped, mode = picture.crop(shown.box), MODES[channels]
    if cropped.mode != mode:  # otherwise it would be copied
        cropped = cropped.convert(mode)
    resized = cropped.resize((width, height), Image.Resampling.BILINEAR)
    pixels = np.asarray(resized, np.float32).reshape(height, width, -1)
    values = _typed(pixels, detail, mean, std)
    if channels > values.shape[2]:
        values = np.pad(values, ((0, 0), (0, 0), (0, channels - values.shape[2])))
    return np.ascontiguousarray(np.broadcast_to(values, (batch, *values.shape)))


def random_tensor(detail: dict[str, Any], seed: int = 0) -> NDArray[Any]:
    """Return seeded noise for any input: floats in [-1, 1), or integers in the range of bytes."""
    random = np.random.default_rng(seed)
    shape, kind = tuple(detail["shape"]), np.dtype(detail["dtype"])
    if kind.kind == "f":
        return random.uniform(-1, 1, shape).astype(kind)
    low, high = (0, 2) if kind.kind == "b" else (-128, 128) if kind == np.int8 else (0, 256)
    return random.integers(low, high, shape).astype(kind)


def _typed(
    pixels: NDArray[np.float32], detail: dict[str, Any], mean: Scale, std: Scale
) -> NDArray[Any]:
    kind = np.dtype(detail["dtype"])
    if kind.kind == "f":
        scaled: NDArray[Any] = pixels - np.asarray(mean, np.float32)
        scaled /= np.asarray(std, np.float32)
        return scaled.astype(kind, copy=False)
    offsets = {np.dtype(np.uint8): 0, np.dtype(np.int8): 128}
    if kind not in offsets:
        raise ModelError(
            f"The input '{detail['name']}' has the type {kind}; a picture can be given only to "
            "float32, float16, uint8 and int8 inputs. Run the model without --image."
        )
    return (pixels - offsets[kind]).astype(kind)
