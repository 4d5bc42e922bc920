"""Calls of a model on arrays: what they are read from, and what they return."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from litegpu.adopted_memory import adopted
from litegpu.backends.buffers import Buffer, HostBuffer, MemoryKind
from litegpu.compiled_model.arrays import Array, check_shape, fitting
from litegpu.compiled_model.contexts import ModelContext, Run, content
from litegpu.compiled_model.fitting import check
from litegpu.compiled_model.instance import Instance
from litegpu.compiled_model.signatures import Tensor
from litegpu.errors import CompiledModelError, did_you_mean
from litegpu.tensor_buffer import KINDS, TensorBuffer

if TYPE_CHECKING:
    from litegpu.compiled_model.pieces import Pieces


class Call:
    """The buffers of one call of a model's first signature."""

    def __init__(
        self,
        tensors: Sequence[Tensor],
        inputs: Sequence[Any],
        named: Mapping[str, Any],
        keep: bool = False,
    ) -> None:
        """Take arrays in order and by name; with `keep` copies of those that could change.

        Raises CompiledModelError for those that do not fit.
        """
        given = ordered(tensors, inputs, named)
        self._inputs = [_source(*pair, keep) for pair in zip(tensors, given, strict=True)]
        self._tensors: Sequence[Tensor] = ()
        self._outputs: list[Any] = []

    def run_on(self, context: ModelContext, pieces: Pieces | None = None) -> Run:
        """Return the run of this call on a context, in pieces unless a device has its inputs.

        Raises CompiledModelError or BindingError.
        """
        instance = context.instance
        signature = instance.signatures[0]
        # Again, for the model may have been resized since: only now its shapes stay.
        for tensor, source in zip(signature.inputs, self._inputs, strict=True):
            if isinstance(source, np.ndarray):
                check_shape(tensor, source.shape)
        self._tensors = signature.outputs
        for tensor in self._tensors:
            refuse_strings(tensor)
        if any(isinstance(each, TensorBuffer) for each in self._inputs):
            buffers = self._buffers()
            on_device = any(each.kind == "device" for each in buffers)
            if instance.runs_directly(signature) and (on_device or pieces is None):
                return self._on_buffers(context, buffers, "device" if on_device else "host")
            check("Input", signature.inputs, buffers)
        arrays = [
            content(source, tensor) if isinstance(source, TensorBuffer) else source
            for tensor, source in zip(signature.inputs, self._inputs, strict=True)
        ]
        self._outputs = [np.empty(tensor.shape, tensor.dtype) for tensor in self._tensors]
        return (pieces or context).on_arrays(arrays, self._outputs)

    def _buffers(self) -> list[TensorBuffer]:
        return [
            TensorBuffer.create_from_host_memory(each) if isinstance(each, np.ndarray) else each
            for each in self._inputs
        ]

    def _on_buffers(self, context: ModelContext, buffers: list[TensorBuffer], kind: str) -> Run:
        results = [
            new_buffer(tensor, context.instance, kind, zeros=False) for tensor in self._tensors
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


def _source(tensor: Tensor, data: Any, keep: bool) -> Array | TensorBuffer:
    """Return what an input of a call is read from, a copy if others may change it and `keep`."""
    if isinstance(data, TensorBuffer):
        return data
    if not isinstance(data, (np.ndarray, list, tuple, int, float)) and adopted(data) is not None:
        buffer = TensorBuffer.of(data)
        check_shape(tensor, buffer.shape)
        return buffer
    given = np.asarray(data)
    check_shape(tensor, given.shape)
    return fitting(tensor, given, keep)


def refuse_strings(tensor: Tensor) -> None:
    """Raise CompiledModelError where elements are no numbers, so that no buffer holds them."""
    if tensor.dtype.hasobject or tensor.dtype.kind in "SU":
        raise CompiledModelError(
            f"'{tensor.key}' holds strings, for which there are no buffers. Use the "
            "interpreter for this model."
        )


def new_buffer(
    tensor: Tensor, instance: Instance, memory: str | None, zeros: bool = True
) -> TensorBuffer:
    """Return a buffer for a tensor; `memory` see CompiledModel.create_input_buffers."""
    refuse_strings(tensor)
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
