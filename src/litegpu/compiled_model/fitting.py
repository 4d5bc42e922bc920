"""Whether buffers, numbers and names fit a model's tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from litegpu.compiled_model.signatures import Tensor
from litegpu.compiled_model.tensor_buffer import TensorBuffer
from litegpu.errors import CompiledModelError, did_you_mean

_HOST_MEMORY = 1
"""LiteRT's number for buffers in memory of the host."""
_Item = TypeVar("_Item")


def at(items: Sequence[_Item], index: int, what: str) -> _Item:
    """Return an item. Raises CompiledModelError where there is none of that number."""
    if not 0 <= index < len(items):
        raise CompiledModelError(
            f"{what} index out of range: {index} of {len(items)}. The first one is 0."
        )
    return items[index]


def called(tensors: Sequence[Tensor], name: str, what: str) -> Tensor:
    """Return the tensor of a name. Raises CompiledModelError where there is none."""
    for tensor in tensors:
        if tensor.key == name:
            return tensor
    known = [tensor.key for tensor in tensors]
    raise CompiledModelError(f"{what} tensor not found: '{name}'.{did_you_mean(name, known)}")


def requirements(tensor: Tensor) -> dict[str, Any]:
    """Return the bytes of a tensor's buffer, and the kinds of memory it may have."""
    return {"buffer_size": tensor.nbytes, "supported_types": [_HOST_MEMORY]}


def check(side: str, tensors: Sequence[Tensor], buffers: Sequence[TensorBuffer]) -> None:
    """Raise CompiledModelError unless there is a buffer of type and size for each tensor."""
    if len(tensors) != len(buffers):
        raise CompiledModelError(
            f"{side} buffer size mismatch: number of {side.lower()}s: {len(tensors)}, buffers: "
            f"{len(buffers)}. Give one for each of {[tensor.key for tensor in tensors]}."
        )
    for tensor, buffer in zip(tensors, buffers, strict=True):
        array = buffer.array
        if array.dtype != tensor.dtype or array.nbytes != tensor.nbytes:
            raise CompiledModelError(
                f"{side} '{tensor.key}' is {tensor.dtype} of the shape {[*tensor.shape]}, and its "
                f"buffer {array.dtype} of {[*array.shape]}. Create the buffer anew, or resize the "
                "input."
            )


def as_buffer(tensor: Tensor, data: npt.ArrayLike) -> TensorBuffer:
    """Return what an input of a call is read from."""
    array = np.asarray(data)
    if array.dtype != tensor.dtype and not np.can_cast(array.dtype, tensor.dtype, "same_kind"):
        raise CompiledModelError(
            f"Input '{tensor.key}' is {tensor.dtype}, and was given {array.dtype}. Convert it."
        )
    if array.shape != tensor.shape:
        raise CompiledModelError(
            f"Input '{tensor.key}' has the shape {[*tensor.shape]}, and was given "
            f"{[*array.shape]}. Use that shape, or resize_input_tensor."
        )
    return TensorBuffer.create_from_host_memory(np.ascontiguousarray(array, tensor.dtype))
