"""Picture preprocessing in NumPy, as the reference for models."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from litegpu.graph.ir import Quantization
from litegpu.tools.evaluation import preprocessing

Array = NDArray[Any]

YUV = {
    "bt601": (16, 1.164383, 1.596027, 0.391762, 0.812968, 2.017232),
    "bt709": (16, 1.164384, 1.792741, 0.213249, 0.532909, 2.112402),
    "bt601_full": (0, 1.0, 1.402, 0.344136, 0.714136, 1.772),
    "bt709_full": (0, 1.0, 1.5748, 0.187324, 0.468124, 1.8556),
}
"""Black; what Y, V in red, U and V in green, and U in blue are multiplied with."""


def rgb(picture: Array, input_format: str, colors: str = "bt601") -> Array:
    """Return R, G and B from 0 to 255, [N, height, width, 3], of a picture as it comes."""
    if input_format == "nv12":
        return _decoded(picture, *YUV[colors])
    if input_format == "gray8":
        return np.repeat(picture, 3, axis=3)
    return picture[..., 2::-1] if input_format.startswith("bgr") else picture[..., :3]


def _decoded(
    picture: Array, black: int, y: float, rv: float, gu: float, gv: float, bu: float
) -> Array:
    batch, high, width, _ = picture.shape
    height = high * 2 // 3
    luma = y * (picture[:, :height, :, 0].astype(np.float64) - black)
    pairs = picture[:, height:].reshape(batch, height // 2, width // 2, 2)
    u, v = np.moveaxis(pairs.repeat(2, axis=1).repeat(2, axis=2) - 128.0, 3, 0)
    decoded = np.stack([luma + rv * v, luma - gu * u - gv * v, luma + bu * u], axis=3)
    return decoded.clip(0, 255).astype(np.float32)


def resized(pixels: Array, size: tuple[int, int], resize: str) -> Array:
    """Return pictures of that size."""
    if pixels.shape[1:3] == size:
        return pixels
    if resize == "bilinear":
        return np.stack([preprocessing.resize_bilinear(each, *size) for each in pixels])
    if resize == "nearest":
        rows, columns = (
            np.arange(n) * old // n for n, old in zip(size, pixels.shape[1:3], strict=True)
        )
        return pixels[:, rows][:, :, columns]
    for axis, n in enumerate(size, start=1):
        old = pixels.shape[axis]
        place = np.clip((np.arange(n) + 0.5) * old / n - 0.5, 0, old - 1)
        low = np.floor(place).astype(int)
        part = (place - low).reshape([-1 if i == axis else 1 for i in range(4)])
        near, far = pixels.take(low, axis), pixels.take(np.minimum(low + 1, old - 1), axis)
        pixels = near * (1 - part) + far * part
    return pixels


def value(
    picture: Array,
    input_format: str,
    shape: tuple[int, ...],
    mean: Any = 127.5,
    std: Any = 127.5,
    *,
    resize: str = "bilinear",
    colors: str = "bt601",
) -> Array:
    """Return `(pixel - mean) / std` with the height, width and channels of an input's shape."""
    pixels = rgb(picture, input_format, colors)[..., : shape[3]]
    pixels = resized(pixels, (shape[1], shape[2]), resize)
    scaled = (pixels - np.asarray(mean, np.float32)) / np.asarray(std, np.float32)
    missing = shape[3] - scaled.shape[3]
    return np.pad(scaled, ((0, 0), (0, 0), (0, 0), (0, missing))).astype(np.float32)


def stored(real: Array, dtype: str, quantization: Quantization) -> Array:
    """Return the integers nearest to real numbers."""
    found = np.rint(real / np.float32(quantization.scale[0])) + quantization.zero_point[0]
    limits = np.iinfo(dtype)
    return found.clip(limits.min, limits.max).astype(dtype)
