"""Suggests remedies for arrays of a wrong shape; each remedy is verified to work."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from litegpu.compiled_model.signatures import Signature, Tensor

Shape = tuple[int, ...]
CanHaveRows = Callable[[int], str]
"""Returns why the model cannot be compiled for this number of rows, or an empty text."""


def for_call(signature: Signature, index: int, number: int, shape: Shape, can: CanHaveRows) -> str:
    """Return what to do if the array for input `number` of a signature has another shape."""
    tensor = signature.inputs[number]
    return (
        _by_another_array(tensor, shape)
        or _by_rows(signature, tensor, shape, can)
        or _by_resizing(signature, index, number, shape)
    )


def for_resize(
    signature: Signature, number: int, shape: Shape, strict: bool, can: CanHaveRows
) -> str:
    """Return what to do if an input could not be resized to a shape."""
    tensor = signature.inputs[number]
    by_rows = _by_rows(signature, tensor, shape, can) if _differs_in_rows(tensor, shape) else ""
    if by_rows:
        return by_rows
    if strict and not tensor.states(shape):
        return (
            "With strict=False the input can have this shape if the model's operations support it."
        )
    return (
        f"The model's operations are made for other shapes: keep {[*tensor.shape]}, or convert "
        "the model with the shape that you need."
    )


def _differs_in_rows(tensor: Tensor, shape: Sequence[int]) -> bool:
    return len(shape) > 0 and tuple(shape[1:]) == tensor.shape[1:] and len(tensor.shape) > 0


def _by_another_array(tensor: Tensor, shape: Shape) -> str:
    """Return how to bring the same numbers into the tensor's shape; "" if that is impossible."""
    if shape == tensor.shape[1:] and tensor.shape[0] == 1:
        return "The batch dimension is missing: give x[np.newaxis]."
    for axes, to in (((0, 2, 3, 1), "last"), ((0, 3, 1, 2), "first")):
        if len(shape) == len(axes) and tuple(shape[axis] for axis in axes) == tensor.shape:
            return f"The channels must come {to}: give x.transpose{axes}."
    if _elements(shape) == _elements(tensor.shape):
        return f"The number of elements is right: give np.reshape(x, {[*tensor.shape]})."
    return ""


def _by_rows(signature: Signature, tensor: Tensor, shape: Shape, can: CanHaveRows) -> str:
    """Return how to run another number of rows; "" if other dimensions differ, too."""
    if not _differs_in_rows(tensor, shape) or not shape[0]:
        return ""
    if len(signature.inputs) == 1 and tensor.states(shape):
        return ""  # the input can be resized
    rows = shape[0]
    if not (why := can(rows)):
        return f"model.at_batch({rows}) is the model for {rows} rows."
    return (
        f"The model is for {tensor.shape[0]} at a time ({why.rstrip('.')}): call the model for "
        f"each part, as in model(x[i : i + {tensor.shape[0]}])."
    )


def _by_resizing(signature: Signature, index: int, number: int, shape: Shape) -> str:
    tensor = signature.inputs[number]
    other = f", signature_index={index}" if index else ""
    call = f"model.resize_input_tensor({number}, {[*shape]}{other}"
    if tensor.states(shape):
        return f"{call}) changes the input to that shape."
    text = f"Give it {[*tensor.shape]}."
    if len(shape) == len(tensor.shape):
        text += (
            f" {call}, strict=False) changes the input's shape if the model's operations support "
            "it."
        )
    return text


def _elements(shape: Shape) -> int:
    found = 1
    for size in shape:
        found *= size
    return found
