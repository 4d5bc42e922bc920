"""Pictures as model inputs: read, crop, resize, normalise, quantise."""

from __future__ import annotations

import importlib.resources
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from litegpu.errors import ModelError, OptionsError, missing_dependency

if TYPE_CHECKING:
    from PIL import Image

# By the number of channels of the input; four-channel inputs expect an empty mask in the last one.
MODES = {1: "L", 3: "RGB", 4: "RGB"}


def default_picture() -> str:
    """Return the path of the photograph that ships with litegpu."""
    return str(importlib.resources.files("litegpu.tools") / "data" / "grace_hopper.jpg")


def open_picture(path: str) -> Image.Image:
    """Return the picture at `path` as RGB, upright.

    Raises:
        OptionsError: there is no readable picture at `path`.
    """
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise missing_dependency("pillow", "tools", "Reading a picture") from error
    try:
        with Image.open(path) as picture:
            return ImageOps.exif_transpose(picture).convert("RGB")
    except OSError as error:
        raise OptionsError(
            f"The picture '{path}' cannot be read: {error}. Give a JPEG, PNG or BMP file."
        ) from error


def is_image_input(detail: dict[str, Any]) -> bool:
    """Say whether an input of the interpreter, `[N, H, W, C]`, can take a picture."""
    shape = detail["shape"]
    return len(shape) == 4 and int(shape[3]) in MODES and int(min(shape)) > 0


def centre_crop(picture: Image.Image, width: int, height: int) -> Image.Image:
    """Return the largest part around the centre with the aspect ratio of `width` to `height`."""
    scale = min(picture.width / width, picture.height / height)
    crop_width, crop_height = round(width * scale), round(height * scale)
    left, top = (picture.width - crop_width) // 2, (picture.height - crop_height) // 2
    return picture.crop((left, top, left + crop_width, top + crop_height))


def to_tensor(
    picture: Image.Image, detail: dict[str, Any], mean: float = 127.5, std: float = 127.5
) -> NDArray[Any]:
    """Return `picture` as the value of the input that `detail` describes, `[N, H, W, C]`.

    The picture is cropped around its centre and resized. Float inputs get `(pixel - mean) / std`,
    uint8 inputs the pixel, int8 inputs the pixel minus 128; each batch entry is the same.

    Raises:
        ModelError: the input's type is none of these.
    """
    from PIL import Image

    batch, height, width, channels = (int(size) for size in detail["shape"])
    cropped = centre_crop(picture, width, height).convert(MODES[channels])
    resized = cropped.resize((width, height), Image.Resampling.BILINEAR)
    pixels = np.asarray(resized, np.float32).reshape(height, width, -1)
    values = _typed(pixels, detail, mean, std)
    if channels > values.shape[2]:
        values = np.pad(values, ((0, 0), (0, 0), (0, channels - values.shape[2])))
    return np.ascontiguousarray(np.broadcast_to(values, (batch, *values.shape)))


def random_tensor(detail: dict[str, Any], seed: int = 0) -> NDArray[Any]:
    """Return seeded noise for any input: floats in [-1, 1), integers over the range of bytes."""
    random = np.random.default_rng(seed)
    shape, kind = tuple(detail["shape"]), np.dtype(detail["dtype"])
    if kind.kind == "f":
        return random.uniform(-1, 1, shape).astype(kind)
    low, high = (0, 2) if kind.kind == "b" else (-128, 128) if kind == np.int8 else (0, 256)
    return random.integers(low, high, shape).astype(kind)


def _typed(
    pixels: NDArray[np.float32], detail: dict[str, Any], mean: float, std: float
) -> NDArray[Any]:
    kind = np.dtype(detail["dtype"])
    if kind.kind == "f":
        return ((pixels - mean) / std).astype(kind)
    offsets = {np.dtype(np.uint8): 0, np.dtype(np.int8): 128}
    if kind not in offsets:
        raise ModelError(
            f"The input '{detail['name']}' has the type {kind}; a picture can be given only to "
            "float32, float16, uint8 and int8 inputs. Run the model without --image."
        )
    return (pixels - offsets[kind]).astype(kind)
