"""Checks that buffers, numbers and names fit a model's tensors."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

from litegpu.compiled_model.signatures import Tensor
from litegpu.errors import CompiledModelError, did_you_mean
from litegpu.tensor_buffer import READ_ONLY, TensorBuffer

_HOST_MEMORY = 1
"""LiteRT's number for buffers in host memory."""
_LARGEST = 2**31 - 1
"""The largest size that the runtime can store."""
_Item = TypeVar("_Item")


def at(items: Sequence[_Item], index: int, what: str) -> _Item:
    """Return the item with an index. Raises CompiledModelError if there is none."""
    if not hasattr(index, "__index__"):
        raise CompiledModelError(
            f"{what} index is {index!r}. Give a number from 0 on; methods that end in `by_name` "
            "take names."
        )
    if not 0 <= index < len(items):
        raise CompiledModelError(
            f"{what} index out of range: {index} of {len(items)}. The first one is 0."
        )
    return items[index]


def count(name: str, value: Any) -> int:
    """Return a count as an int. Raises CompiledModelError below 1."""
    try:
        number = operator.index(value)
    except TypeError:
        number = 0
    if number < 1 or isinstance(value, bool):
        raise CompiledModelError(f"{name} is {value!r}. Use a number from 1 on.")
    return number


def sizes(dims: Sequence[Any]) -> list[int]:
    """Return the sizes of a shape. Raises CompiledModelError for sizes that no tensor has."""
    try:
        found = [*map(operator.index, dims)]
    except TypeError:
        found = [-1]
    if not all(0 <= size <= _LARGEST for size in found):
        raise CompiledModelError(
            f"An input cannot have the shape {dims!r}. Use whole numbers from 0 to {_LARGEST}."
        )
    return found


def called(tensors: Sequence[Tensor], name: str, what: str) -> Tensor:
    """Return the tensor with a name. Raises CompiledModelError if there is none."""
    for tensor in tensors:
        if tensor.key == name:
            return tensor
    known = [tensor.key for tensor in tensors]
    raise CompiledModelError(f"{what} tensor not found: '{name}'.{did_you_mean(name, known)}")


def requirements(tensor: Tensor) -> dict[str, Any]:
    """Return the size of a tensor's buffer in bytes, and the kinds of memory it may have."""
    return {"buffer_size": tensor.nbytes, "supported_types": [_HOST_MEMORY]}


def check(side: str, tensors: Sequence[Tensor], buffers: Sequence[TensorBuffer]) -> None:
    """Raise CompiledModelError unless each tensor has a buffer of the right dtype and size."""
    if len(tensors) != len(buffers):
        raise CompiledModelError(
            f"{side} buffer size mismatch: number of {side.lower()}s: {len(tensors)}, buffers: "
            f"{len(buffers)}. Give one for each of {[tensor.key for tensor in tensors]}."
        )
    for tensor, buffer in zip(tensors, buffers, strict=True):
        if buffer.dtype != tensor.dtype or buffer.nbytes != tensor.nbytes:
            raise CompiledModelError(
                f"{side} '{tensor.key}' is {tensor.dtype} of the shape {[*tensor.shape]}, and its "
                f"buffer {buffer.dtype} of {[*buffer.shape]}. Create a new buffer, or resize "
                "the input."
            )
        if side == "Output" and not buffer.writable:
            raise CompiledModelError(f"Output '{tensor.key}': {READ_ONLY}")


def grown(tensor: Tensor, shape: tuple[int, ...]) -> CompiledModelError:
    """Return the error for an output that a run has resized, so that its buffer does not fit."""
    return CompiledModelError(
        f"The output '{tensor.key}' has the shape {[*shape]} now, and its buffer is for "
        f"{[*tensor.shape]}. Create a new buffer, and run again."
    )


def check_all_open(name: str, buffers: Any) -> None:
    """Raise CompiledModelError unless `buffers` is a sequence of buffers that are not destroyed."""
    if not isinstance(buffers, Iterable):
        kind = type(buffers).__name__
        raise CompiledModelError(f"{name} is a {kind}. Give a list of TensorBuffers.")
    for buffer in buffers:
        check_open(buffer)


def check_open(buffer: TensorBuffer) -> None:
    """Raise CompiledModelError for an object that is not a buffer, or a destroyed buffer."""
    if not isinstance(buffer, TensorBuffer):
        raise CompiledModelError(
            f"A {type(buffer).__module__}.{type(buffer).__name__} is not a litegpu TensorBuffer. "
            "Create one from an array: TensorBuffer.of(array)."
        )
    buffer.memory  # noqa: B018 - raises for a destroyed buffer
