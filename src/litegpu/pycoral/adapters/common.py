"""Inputs and outputs of any model with one picture as input."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from litegpu.errors import BindingError, ModelError


def output_tensor(interpreter: Any, i: int) -> NDArray[Any]:
    """Return output `i` of the interpreter as a view of the runtime's memory.

    As with `Interpreter.tensor`, the interpreter cannot run while a view exists.
    """
    view: NDArray[Any] = interpreter.tensor(interpreter.get_output_details()[i]["index"])()
    return view


def input_details(interpreter: Any, key: str) -> Any:
    """Return one detail of the first input, such as "shape", "dtype" or "quantization"."""
    return interpreter.get_input_details()[0][key]


def input_size(interpreter: Any) -> tuple[int, int]:
    """Return the width and height of the first input in pixels.

    Raises ModelError if the input is not a picture: (batch, height, width, channels).
    """
    shape = [int(size) for size in input_details(interpreter, "shape")]
    if len(shape) != 4:
        raise ModelError(
            f"The model's input has the shape {shape}, which is not a picture. Use a model whose "
            "input has four axes: batch, height, width, channels."
        )
    return shape[2], shape[1]


def input_tensor(interpreter: Any) -> NDArray[Any]:
    """Return the first input without its batch axis, (height, width, channels), as a view."""
    view: NDArray[Any] = interpreter.tensor(input_details(interpreter, "index"))()[0]
    return view


def set_input(interpreter: Any, data: ArrayLike) -> None:
    """Copy a picture with the size of the model, (height, width, channels), to the first input.

    Raises BindingError if the picture has another shape.
    """
    tensor, picture = input_tensor(interpreter), np.asarray(data)
    if picture.shape not in ((), tensor.shape, (1, *tensor.shape)):
        raise BindingError(
            f"The picture has the shape {list(picture.shape)}, and the model takes "
            f"{list(tensor.shape)}. Resize it to common.input_size(interpreter), or use "
            "common.set_resized_input."
        )
    tensor[...] = picture


def set_resized_input(
    interpreter: Any, size: tuple[int, int], resize: Callable[[tuple[int, int]], Any]
) -> tuple[Any, tuple[float, float]]:
    """Copy a picture of any size to the first input, with its aspect ratio.

    `size` is the width and height of the picture. `resize` gets the width and height that fit into
    the input, and returns the resized picture. Zeros fill the remaining rows and columns.

    Returns the resized picture, and the scale of both axes for `detect.get_objects`.
    """
    limits = input_size(interpreter)
    scale = min(limit / length for limit, length in zip(limits, size, strict=True))
    width, height = (int(length * scale) for length in size)
    resized = resize((width, height))
    tensor = input_tensor(interpreter)
    tensor[...] = 0
    tensor[:height, :width] = np.reshape(resized, (height, width, tensor.shape[2]))
    return resized, (scale, scale)
