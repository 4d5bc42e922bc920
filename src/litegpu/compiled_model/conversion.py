"""Converts arguments of calls (arrays, real numbers, images) to tensors, and results back."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from typing import Any

import numpy as np

from litegpu.compiled_model.arrays import Array, fitting, is_quantized
from litegpu.compiled_model.signatures import Tensor
from litegpu.errors import CompiledModelError
from litegpu.pictures import images
from litegpu.pictures.formats import FORMATS, NV12
from litegpu.runtime_abi.interpreter import dequantised, quantised

_PICTURE_AXES = 4


@dataclass(frozen=True, slots=True)
class Conversion:
    """How calls of a model convert their arguments and results."""

    quantize: bool = False
    """Whether calls accept and return dequantized (real) values for quantized tensors."""
    input_format: str | None = None
    """The pixel format of images, see `pictures.with_picture_input`; None without image input."""
    picture_input: int | str = 0
    """The number or name of the input that takes images."""

    def array(self, number: int, tensor: Tensor, data: Any) -> Array:
        """Return the argument of an input as an array of any shape and numeric type.

        The method converts images (paths, bytes of files, PIL images, or a list of these) to an
        array of shape [images, height, width, channels]. Raises CompiledModelError for an argument
        without numbers, and FileError for an image that cannot be read.
        """
        if isinstance(data, np.ndarray) and data.dtype.kind in "biufc":
            return data
        pictures = data if isinstance(data, list | tuple) and data else [data]
        if all(map(_is_picture, pictures)):
            pixels = [self._pixels(number, tensor, each) for each in pictures]
            if sizes := sorted({each.shape[1:3] for each in pixels})[1:]:
                first = min(each.shape[1:3] for each in pixels)
                raise CompiledModelError(
                    f"Input '{tensor.key}' was given pictures of several sizes, {[*first]} and "
                    f"{[*sizes[0]]} among them. Give one picture a call, or pictures of one size."
                )
            return np.concatenate(pixels)
        try:
            array = np.asarray(data)
        except (ValueError, TypeError, RuntimeError) as error:
            raise CompiledModelError(
                f"Input '{tensor.key}' was given a {type(data).__name__} that is no array: "
                f"{str(error).rstrip('.')}. Give numbers of the shape {[*tensor.shape]}."
            ) from error
        # bfloat16 of ml_dtypes also has kind V, but is not a record.
        if array.dtype.hasobject or array.dtype.kind in "SU" or array.dtype.type is np.void:
            shown = "None" if data is None else f"a {type(data).__name__} without numbers"
            raise CompiledModelError(
                f"Input '{tensor.key}' is {tensor.dtype} {[*tensor.shape]}, and was given {shown}. "
                "Give an array of numbers of that shape."
            )
        return array

    def fitting(self, tensor: Tensor, given: Array, keep: bool = False) -> Array:
        """Return an array with the tensor's type; with `keep` always a copy.

        With `quantize`, an array of the tensor's dtype contains quantized values; any other array
        contains real numbers. Raises CompiledModelError if the conversion would change the kind of
        dtype, or a value.
        """
        if not self.quantize or not is_quantized(tensor) or given.dtype == tensor.dtype:
            return fitting(tensor, given, keep)
        # bfloat16 and other types of ml_dtypes have kind V.
        if given.dtype.kind not in "iuf" and not (
            given.dtype.kind == "V" and np.can_cast(given.dtype, np.float32)
        ):
            raise CompiledModelError(
                f"Input '{tensor.key}' takes real numbers, and was given {given.dtype}. Give "
                "floats."
            )
        return quantized(tensor, given)

    def result(self, tensor: Tensor, stored: Array) -> Array:
        """Return an output as calls return it: with `quantize`, as real numbers (float32)."""
        if not self.quantize or not is_quantized(tensor):
            return stored
        return dequantised(stored, {"quantization": tensor.quantization})

    def _pixels(self, number: int, tensor: Tensor, picture: Any) -> Array:
        """Return the pixels of an image, [1, height, width, channels].

        As in `litegpu run`, the method crops the image around its centre. If the model file states
        the input's height and width, the image is resized to them.
        """
        if self.input_format is None or self.picture_input not in (number, tensor.key, tensor.name):
            raise CompiledModelError(_no_pictures(tensor, picture))
        if self.input_format == NV12:
            raise CompiledModelError(
                f"Input '{tensor.key}' takes NV12, as cameras give it, and was given "
                f"{_shown(picture)}. Give its bytes as an array, or compile the model with "
                'input_format="rgb8".'
            )
        rgb = images.read_picture(picture)
        sizes = [
            now if stated > 0 else own
            for now, stated, own in zip(
                tensor.shape[1:3], tensor.stated[1:3], rgb.size[::-1], strict=True
            )
        ]
        shape = (1, *sizes, tensor.shape[3])
        detail = {"name": tensor.key, "dtype": tensor.dtype, "shape": shape}
        pixels = images.to_tensor(rgb, detail)
        order = FORMATS[self.input_format].rgb
        if order[0] > order[-1]:
            pixels = pixels[..., [2, 1, 0, *range(3, pixels.shape[-1])]]
        return pixels


def quantized(tensor: Tensor, real: Array) -> Array:
    """Return real numbers as quantized values, rounded half away from zero and clipped.

    Raises CompiledModelError for NaN.
    """
    detail = {"quantization": tensor.quantization, "dtype": tensor.dtype}
    stored = quantised(np.asarray(real, np.float32), detail)
    if np.isnan(stored).any():
        raise CompiledModelError(
            f"Input '{tensor.key}' was given NaN, which {tensor.dtype} cannot represent. Give "
            "real numbers."
        )
    return stored.astype(tensor.dtype)


def _is_picture(data: Any) -> bool:
    """Return whether an argument is an image: a path, bytes, or a PIL image."""
    pillow = sys.modules.get("PIL.Image")
    kinds = (str, os.PathLike, bytes, bytearray)
    return isinstance(data, kinds) or (pillow is not None and isinstance(data, pillow.Image))


def _shown(picture: Any) -> str:
    if isinstance(picture, str | os.PathLike):
        return f"'{os.fspath(picture)}'"
    return f"{'bytes' if isinstance(picture, bytes | bytearray) else 'a PIL image'}"


def _no_pictures(tensor: Tensor, picture: Any) -> str:
    text = (
        f"Input '{tensor.key}' takes an array, {tensor.dtype} {[*tensor.shape]}, and was given "
        f"{_shown(picture)}. "
    )
    if len(tensor.shape) != _PICTURE_AXES or tensor.shape[3] not in images.MODES:
        return f"{text}Give an array of that shape."
    return (
        f'{text}Compile the model with input_format="rgb8" (and the `mean` and `std` of its '
        "training): the model then takes paths, the bytes of image files and PIL images. Or give "
        "an array of that shape."
    )
