"""Converts arrays and pictures to values of a model's inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from litegpu.errors import FileError, ModelError
from litegpu.pictures.images import MODES, read_picture, to_tensor
from litegpu.runtime_abi.interpreter import dequantised, quantised
from litegpu.tools.engines import Tensor


def takes_pictures(tensor: Tensor, batched: bool) -> bool:
    """Return whether an input can be a picture: `[H, W, C]` or `[1, H, W, C]` without a batch."""
    shape = tensor.shape if batched else tensor.shape[1:]
    return len(shape) == 3 and shape[2] in MODES and min(shape) > 0


def from_picture(picture: str | bytes, tensor: Tensor, mean: float, std: float) -> NDArray[Any]:
    """Convert a picture, given by its path or its file's bytes, to the value of an input.

    Raises:
        FileError: the picture cannot be read.
        ModelError: the input's type does not support pictures.
    """
    opened = read_picture(picture)
    shape = tensor.shape if len(tensor.shape) == 4 else (1, *tensor.shape)
    detail = {"name": tensor.name, "shape": np.array(shape), "dtype": tensor.dtype}
    return to_tensor(opened, detail, mean, std).reshape(tensor.shape)


def from_array(values: Any, tensor: Tensor) -> NDArray[Any]:
    """Convert an array to the value of an input.

    The array may be flat, or have a leading batch axis of size 1. The function casts numbers if
    only precision is lost, and quantizes real numbers for an integer input.

    Raises:
        ModelError: the array has another size, or values that the input cannot represent.
    """
    array = np.asarray(values)
    fits = array.ndim <= 1 or _core(array.shape) == _core(tensor.shape)
    if array.size != np.prod(tensor.shape, dtype=np.int64) or not fits:
        raise ModelError(
            f"The input '{tensor.name}' takes arrays of shape {list(tensor.shape)}, not "
            f"{list(array.shape)}. Reshape them, or give a model of that shape."
        )
    return _typed(array.reshape(tensor.shape), tensor)


def _core(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return a shape without leading dimensions of size 1."""
    start = next((index for index, size in enumerate(shape) if size != 1), len(shape))
    return shape[start:]


def _typed(array: NDArray[Any], tensor: Tensor) -> NDArray[Any]:
    kind = tensor.dtype
    if array.dtype == kind:
        return np.ascontiguousarray(array)
    if kind.kind == "f" and array.dtype.kind in "fiub":
        return array.astype(kind)
    if kind.kind in "iu" and array.dtype.kind in "iub":
        limits = np.iinfo(kind)
        if array.size and not (limits.min <= array.min() and array.max() <= limits.max):
            raise ModelError(
                f"The input '{tensor.name}' has the type {kind}, which cannot represent "
                f"the array's values from {array.min()} to {array.max()}."
            )
        return array.astype(kind)
    if kind.kind in "iu" and array.dtype.kind == "f" and tensor.quantization[0]:
        stored = quantised(array, {"quantization": tensor.quantization, "dtype": kind})
        if np.isnan(stored).any():
            raise ModelError(f"The input '{tensor.name}' takes {kind}, which has no NaN.")
        return stored.astype(kind)
    raise ModelError(
        f"The input '{tensor.name}' takes {kind}, not {array.dtype}. Convert the arrays."
    )


def real_numbers(values: NDArray[Any], tensor: Tensor) -> NDArray[Any]:
    """Dequantize an output if it is quantized, else return it unchanged."""
    return dequantised(values, {"quantization": tensor.quantization})


def read_array_file(path: str, inputs: tuple[Tensor, ...]) -> list[NDArray[Any]]:
    """Return the arrays of a .npy or .npz file, one per input; .npz arrays are found by name.

    Raises:
        FileError: the file cannot be read, or lacks an array.
        ModelError: an array does not fit its input.
    """
    try:
        with open(path, "rb") as file:
            found = np.load(file, allow_pickle=False)
            arrays = dict(found) if isinstance(found, np.lib.npyio.NpzFile) else {"": found}
    except Exception as error:  # damaged archives raise all kinds of errors
        raise FileError(f"The array '{path}' cannot be read: {error}. Write it again.") from error
    if len(arrays) == len(inputs) == 1:
        return [from_array(next(iter(arrays.values())), inputs[0])]
    missing = [each.name for each in inputs if each.name not in arrays]
    if missing:
        raise FileError(
            f"The file '{path}' has no array '{missing[0]}'; it has "
            f"{', '.join(arrays) or 'none'}. Write one .npz file per sample, with an array for "
            "each input's name."
        )
    return [from_array(arrays[each.name], each) for each in inputs]
