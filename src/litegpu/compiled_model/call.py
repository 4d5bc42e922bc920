"""Calls of a model on arrays: what they are read from, and what they return."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from litegpu.adopted_memory import adopted
from litegpu.backends.buffers import Buffer, HostBuffer, MemoryKind
from litegpu.compiled_model.contexts import ModelContext, Run
from litegpu.compiled_model.instance import Instance
from litegpu.compiled_model.signatures import Tensor
from litegpu.errors import CompiledModelError, did_you_mean
from litegpu.tensor_buffer import KINDS, TensorBuffer


class Call:
    """The buffers of one call of an instance's first signature."""

    def __init__(
        self,
        instance: Instance,
        inputs: Sequence[Any],
        named: Mapping[str, Any],
        keep: bool = False,
    ) -> None:
        """Take arrays in order and by name; with `keep` copies of those that could change.

        Raises CompiledModelError for those that do not fit.
        """
        signature = instance.signatures[0]
        tensors = signature.inputs
        given = ordered(tensors, inputs, named)
        self._instance, self._tensors = instance, signature.outputs
        self._inputs = [_source(*pair, keep) for pair in zip(tensors, given, strict=True)]
        self._outputs: list[Any] = []

    def run_on(self, context: ModelContext) -> Run:
        """Return the run of this call on a context. Raises CompiledModelError or BindingError."""
        arrays = [each for each in self._inputs if isinstance(each, np.ndarray)]
        if len(arrays) == len(self._inputs) and not any(map(holds_strings, self._tensors)):
            self._outputs = [np.empty(tensor.shape, tensor.dtype) for tensor in self._tensors]
            return context.on_arrays(arrays, self._outputs)
        buffers = [
            TensorBuffer.create_from_host_memory(each) if isinstance(each, np.ndarray) else each
            for each in self._inputs
        ]
        on_device = any(each.kind == "device" for each in buffers)
        kind = "device" if on_device and self._instance.device() is not None else "host"
        results = [
            new_buffer(tensor, self._instance, kind, zeros=False) for tensor in self._tensors
        ]
        self._outputs = results if kind == "device" else [each.array for each in results]
        return context.prepared(0, buffers, results, None)

    def results(self) -> Any:
        """Return what the call returns, after its run."""
        if len(self._outputs) == 1:
            return self._outputs[0]
        keys = [tensor.key for tensor in self._tensors]
        return dict(zip(keys, self._outputs, strict=True))


def ordered(
    tensors: Sequence[Tensor], inputs: Sequence[Any], named: Mapping[str, Any]
) -> list[Any]:
    """Return what is given for each tensor. Raises CompiledModelError unless each is, once."""
    later = [tensor.key for tensor in tensors[len(inputs) :]]
    if len(inputs) > len(tensors) or sorted(later) != sorted(named):
        raise CompiledModelError(
            f"The model takes {[tensor.key for tensor in tensors]}, each once; it was given "
            f"{len(inputs)} in order and {sorted(named)} by name."
        )
    return [*inputs, *(named[key] for key in later)]


def _source(tensor: Tensor, data: Any, keep: bool) -> npt.NDArray[Any] | TensorBuffer:
    """Return what an input of a call is read from, a copy if others may change it and `keep`."""
    if isinstance(data, TensorBuffer):
        return data
    if not isinstance(data, (np.ndarray, list, tuple, int, float)) and adopted(data) is not None:
        buffer = TensorBuffer.of(data)
        _check_shape(tensor, buffer.shape)
        return buffer
    return _fitting(tensor, np.asarray(data), keep)


def _fitting(tensor: Tensor, array: npt.NDArray[Any], keep: bool) -> npt.NDArray[Any]:
    if array.dtype != tensor.dtype and not np.can_cast(array.dtype, tensor.dtype, "same_kind"):
        raise CompiledModelError(
            f"Input '{tensor.key}' is {tensor.dtype}, and was given {array.dtype}. Convert it."
        )
    _check_shape(tensor, array.shape)
    fitting = np.ascontiguousarray(array, tensor.dtype)
    return fitting.copy() if keep and np.may_share_memory(fitting, array) else fitting


def _check_shape(tensor: Tensor, shape: tuple[int, ...]) -> None:
    if shape != tensor.shape:
        raise CompiledModelError(
            f"Input '{tensor.key}' has the shape {[*tensor.shape]}, and was given "
            f"{[*shape]}. Use that shape, or resize_input_tensor."
        )


def holds_strings(tensor: Tensor) -> bool:
    """Whether elements are no numbers, so that no buffer holds them."""
    return tensor.dtype.hasobject or tensor.dtype.kind in "SU"


def new_buffer(
    tensor: Tensor, instance: Instance, memory: str | None, zeros: bool = True
) -> TensorBuffer:
    """Return a buffer for a tensor; `memory` see CompiledModel.create_input_buffers."""
    if holds_strings(tensor):
        raise CompiledModelError(
            f"'{tensor.key}' holds strings, for which there are no buffers. Use the "
            "interpreter for this model."
        )
    if memory is not None and memory not in KINDS:
        hint = did_you_mean(memory, KINDS)
        raise CompiledModelError(f"There is no memory '{memory}'. Use one of {[*KINDS]}.{hint}")
    buffer = TensorBuffer(_allocated(tensor, instance, memory), tensor.dtype, tensor.shape)
    if zeros:
        buffer.write(np.zeros(tensor.shape, tensor.dtype))
    return buffer


def _allocated(tensor: Tensor, instance: Instance, memory: str | None) -> Buffer:
    device = instance.device()
    kind = KINDS[memory] if memory else MemoryKind.PINNED
    if device is not None and kind is not MemoryKind.HOST:
        return device.allocate(tensor.nbytes, kind)
    if kind is MemoryKind.DEVICE:
        raise CompiledModelError(
            "Memory of the device is for models that it runs whole; the report tells what the CPU "
            'runs of this one. Use memory="host".'
        )
    return HostBuffer.allocate(tensor.nbytes)
