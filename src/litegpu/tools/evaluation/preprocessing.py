"""Decodes, crops, resizes and scales pictures like TensorFlow Lite's evaluation tasks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from litegpu.errors import ModelError, missing_dependency
from litegpu.pictures.images import unreadable
from litegpu.tools.engines.jobs import Tensor

CENTRAL_FRACTION = 0.875
"""The fraction of a picture's sides after the central crop for classification."""

_CHANNELS = 3
_JPEG = (".jpg", ".jpeg")
_RAW = ".rgb8"
_SCALING: dict[str, tuple[np.float32, np.float32]] = {
    "float32": (np.float32(127.5), np.float32(1 / 127.5)),
    "uint8": (np.float32(0), np.float32(1)),
    "int8": (np.float32(128), np.float32(1)),
}
"""Offset and factor of pixels, by the input's type."""


@dataclass(frozen=True)
class Preprocessing:
    """Converts a picture file to the value of an input, such as float32[height, width, 3].

    `fraction` is the side of the centered square crop, relative to the shorter side; None means no
    crop. A file of raw bytes (.rgb8) must have the size of the input.
    """

    height: int
    width: int
    kind: str
    fraction: float | None = None

    def __call__(self, path: str) -> NDArray[Any]:
        """Return the model's input for a picture.

        Raises:
            FileError: the file is not a readable picture.
        """
        suffix = Path(path).suffix.lower()
        pixels: NDArray[Any]
        if suffix == _RAW:
            pixels = self._raw(path)
        elif suffix in _JPEG:
            pixels = decode_jpeg(path)
            if self.fraction is not None:
                pixels = square_crop(pixels, self.fraction)
            pixels = resize_bilinear(pixels, self.height, self.width)
        else:
            raise unreadable(
                path,
                f"Extension {suffix} is not supported",
                "Convert the picture to a .jpg or .jpeg file.",
            )
        mean, scale = _SCALING[self.kind]
        scaled: NDArray[np.float32] = pixels.astype(np.float32, copy=False) - mean
        scaled *= scale
        return scaled.astype(self.kind, copy=False)

    def _raw(self, path: str) -> NDArray[np.uint8]:
        size = self.height * self.width * _CHANNELS
        try:
            content = Path(path).read_bytes()
        except OSError as error:
            raise unreadable(path, error.strerror or str(error)) from error
        if len(content) != size:
            raise unreadable(
                *(path, f"the file has {len(content)} bytes, but the input needs {size}"),
                f"Write {self.height}×{self.width} pixels of {_CHANNELS} bytes each.",
            )
        return np.frombuffer(content, np.uint8).reshape(self.height, self.width, _CHANNELS)


def for_input(tensor: Tensor, batched: bool, fraction: float | None = None) -> Preprocessing:
    """Return the preprocessing for a model input; if `batched`, its shape excludes the batch.

    Raises:
        ModelError: the input is not a single picture with three channels of float32, uint8 or int8.
    """
    shape = [1, *tensor.shape] if batched else list(tensor.shape)
    fits = len(shape) == 4 and shape[0] == 1 and shape[3] == _CHANNELS and min(shape) > 0
    if not fits or tensor.dynamic:
        open_sizes = ", with sizes that are known only at run time" if tensor.dynamic else ""
        raise ModelError(
            f"Invalid input shape for model: '{tensor.name}' is {shape}{open_sizes}. "
            "Use a model with an input of [1, height, width, 3]."
        )
    if tensor.dtype.name not in _SCALING:
        raise ModelError(
            f"Invalid input type for model: '{tensor.name}' is {tensor.dtype.name}. "
            f"Use a model with an input of {', '.join(_SCALING)}."
        )
    return Preprocessing(shape[1], shape[2], tensor.dtype.name, fraction)


def check_decoder() -> None:
    """Raise MissingDependencyError if pictures cannot be decoded."""
    try:
        import PIL.Image  # noqa: F401
    except ImportError as error:
        raise missing_dependency("pillow", "tools", "Reading a picture") from error


def decode_jpeg(path: str) -> NDArray[np.uint8]:
    """Return the pixels of a JPEG file, [height, width, 3], without rotation by EXIF.

    The decoder uses libjpeg's accurate integer DCT, which is also Pillow's default.

    Raises:
        FileError: the file cannot be read, is damaged, or is not a JPEG.
    """
    from PIL import Image, UnidentifiedImageError

    remedy = "Replace the file by a complete JPEG."
    try:
        with Image.open(path, formats=("JPEG",)) as picture:
            return np.asarray(picture if picture.mode == "RGB" else picture.convert("RGB"))
    except UnidentifiedImageError as error:
        raise unreadable(path, "the file is not a JPEG", remedy) from error
    except Exception as error:  # Pillow's readers raise all kinds of errors
        why = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise unreadable(path, why, remedy) from error


def square_crop(pixels: NDArray[Any], fraction: float) -> NDArray[Any]:
    """Return the centered square crop whose side is this fraction of the shorter side."""
    height, width = pixels.shape[:2]
    side = min(_rounded(fraction * height), _rounded(fraction * width))
    top, left = _rounded((height - side) / 2), _rounded((width - side) / 2)
    return pixels[top : top + side, left : left + side]


def _rounded(value: float) -> int:
    """Round to the nearest integer, with halves rounded up."""
    return math.floor(value + 0.5)


def resize_bilinear(pixels: NDArray[Any], height: int, width: int) -> NDArray[np.float32]:
    """Return a picture resized to this size by bilinear interpolation, in float32.

    The resize neither aligns corners nor uses half-pixel centers: pixel i of the result is at
    position i × (old size / new size). Sums have the order of TensorFlow Lite's reference kernel,
    so that rounding is identical.
    """
    y0, y1, dy = _neighbours(pixels.shape[0], height)
    x0, x1, dx = _neighbours(pixels.shape[1], width)
    # Rows are as long as possible, including the channels: NumPy is slow for short ones.
    below, right = dy[:, np.newaxis], np.repeat(dx, pixels.shape[2])
    above, left = np.float32(1) - below, np.float32(1) - right
    used, position = np.unique(np.concatenate((y0, y1)), return_inverse=True)
    rows, y0, y1 = pixels[used], position[:height], position[height:]

    def columns(x: NDArray[np.intp]) -> NDArray[np.float32]:
        return rows.take(x, axis=1).astype(np.float32).reshape(len(rows), -1)

    def corner(column: NDArray[np.float32], y: NDArray[np.intp], *weights: Any) -> Any:
        values = column[y]
        for weight in weights:
            values *= weight
        return values

    column = columns(x0)
    result: NDArray[np.float32] = corner(column, y0, above, left)
    result += corner(column, y1, below, left)
    column = columns(x1)
    result += corner(column, y0, above, right)
    result += corner(column, y1, below, right)
    return result.reshape(height, width, -1)


def _neighbours(old: int, new: int) -> tuple[NDArray[np.intp], NDArray[np.intp], Any]:
    """Return the two neighbors of each new pixel, and its distance from the first one."""
    position = np.arange(new, dtype=np.float32) * (np.float32(old) / np.float32(new))
    low = np.minimum(np.floor(position).astype(np.intp), old - 1)
    high = np.minimum(np.ceil(position).astype(np.intp), old - 1)
    return low, high, position - low.astype(np.float32)
