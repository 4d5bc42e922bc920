"""Converts the arrays passed to a model to the dtypes of its tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from litegpu.compiled_model.signatures import Tensor
from litegpu.errors import CompiledModelError

Array = npt.NDArray[Any]
_INTEGERS = "iu"


def fitting(tensor: Tensor, given: Array, keep: bool = False) -> Array:
    """Return an array with a tensor's dtype and in C order; with `keep`, always a copy.

    Raises CompiledModelError if the conversion would change the kind of dtype, or a value.
    """
    array = given if given.dtype == tensor.dtype else _converted(tensor, given)
    array = np.asarray(array, order="C")
    return array.copy() if keep and np.may_share_memory(array, given) else array


Remedy = Callable[[int, tuple[int, ...]], str]
"""Returns the remedy for an input's wrong shape, from the input's number and the shape."""


def check_shape(number: int, tensor: Tensor, shape: tuple[int, ...], remedy: Remedy) -> None:
    """Raise CompiledModelError, with the remedy, if `shape` is not the shape of input `number`."""
    if shape != tensor.shape:
        raise CompiledModelError(
            f"Input '{tensor.key}' has the shape {[*tensor.shape]}, and was given {[*shape]}. "
            f"{remedy(number, shape)}"
        )


def _converted(tensor: Tensor, given: Array) -> Array:
    source, target = given.dtype, tensor.dtype
    if np.can_cast(source, target):
        return given.astype(target)
    if source.kind in _INTEGERS and target.kind in _INTEGERS:
        limits = np.iinfo(target)
        # As Python ints: NumPy compares signed with unsigned numbers as floats.
        for value in (int(given.min()), int(given.max())) if given.size else ():
            if not limits.min <= value <= limits.max:
                raise _refused(tensor, value, f"which goes from {limits.min} to {limits.max}")
        return given.astype(target)
    if not np.can_cast(source, target, "same_kind"):
        raise CompiledModelError(
            f"Input '{tensor.key}' is {target}, and was given {source}. "
            f"{_how_to_convert(tensor, source)}"
        )
    with np.errstate(over="ignore"):  # overflow raises an error below
        array = given.astype(target)
    infinite = np.isinf(array)
    if infinite.any():
        lost = given[infinite & np.isfinite(given)]
        if lost.size:
            raise _refused(tensor, lost[0], "in which the value is infinite")
    return array


def is_quantized(tensor: Tensor) -> bool:
    """Return whether a tensor stores quantized real numbers."""
    return tensor.quantization[0] > 0 and tensor.dtype.kind in _INTEGERS


def _how_to_convert(tensor: Tensor, source: np.dtype[Any]) -> str:
    if source.kind == "f" and is_quantized(tensor):
        scale, zero_point = tensor.quantization
        limits = np.iinfo(tensor.dtype)
        return (
            "Compile the model with quantize=True: its calls then take and return real numbers. "
            f"Or quantize the input yourself: np.clip(np.rint(x / {scale:.9g}) + {zero_point}, "
            f"{limits.min}, {limits.max}).astype(np.{tensor.dtype})."
        )
    numbers = "np.real(x)" if source.kind == "c" else "x"
    return f"Convert it: {numbers}.astype({tensor.dtype.name!r})."


def _refused(tensor: Tensor, value: object, why: str) -> CompiledModelError:
    return CompiledModelError(
        f"Input '{tensor.key}' is {tensor.dtype}, {why}, and was given {value}. Give numbers in "
        "the range of this type."
    )
