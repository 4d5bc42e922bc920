"""Calls of a model on arrays: the sources of their inputs, and their results."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from litegpu.backends.adopted_memory import adopted
from litegpu.backends.buffers import Buffer, HostBuffer, MemoryKind
from litegpu.compiled_model.arrays import Array, Remedy, check_shape
from litegpu.compiled_model.contexts import ModelContext, Run, content
from litegpu.compiled_model.conversion import Conversion
from litegpu.compiled_model.fitting import check
from litegpu.compiled_model.instance import Instance
from litegpu.compiled_model.signatures import Signature, Tensor
from litegpu.errors import CompiledModelError, did_you_mean
from litegpu.tensor_buffer import KINDS, TensorBuffer
from litegpu.wording import counted

RunOnArrays = Callable[[Sequence[Array], Sequence[Array]], Run]
"""Returns a run of the model on host arrays that fit its tensors."""


class Call:
    """The buffers of one call of a signature."""

    def __init__(
        self,
        index: int,
        signature: Signature,
        given: Sequence[Any],
        conversion: Conversion,
        remedy: Remedy,
        *,
        keep: bool = False,
        by_name: bool = False,
    ) -> None:
        """Store the arguments for the inputs of signature `index`.

        With `keep`, the call copies arrays that the caller could modify. With `by_name`, the result
        is a dict even for a single output. Raises CompiledModelError for arguments that do not fit.
        """
        self._index, self._conversion = index, conversion
        self._remedy, self._by_name = remedy, by_name
        self._inputs = [
            self._source(number, *pair, keep)
            for number, pair in enumerate(zip(signature.inputs, given, strict=True))
        ]
        self._tensors: Sequence[Tensor] = ()
        self._outputs: list[Any] = []

    def _source(self, number: int, tensor: Tensor, data: Any, keep: bool) -> Array | TensorBuffer:
        """Return an input's array or buffer; with `keep`, copy an array that may change."""
        if isinstance(data, TensorBuffer):
            return data
        if not isinstance(data, _NO_DEVICE) and adopted(data) is not None:
            buffer = TensorBuffer.of(data)
            check_shape(number, tensor, buffer.shape, self._remedy)
            return buffer
        array = self._conversion.array(number, tensor, data)
        check_shape(number, tensor, array.shape, self._remedy)
        return self._conversion.fitting(tensor, array, keep)

    def run_on(self, context: ModelContext, in_chunks: RunOnArrays | None = None) -> Run:
        """Return this call's run on a context; `in_chunks` creates runs on host arrays.

        Raises CompiledModelError or BindingError.
        """
        instance = context.instance
        signature = instance.signatures[self._index]
        # Check again, because another thread may have resized the model; from here on it cannot.
        for number, source in enumerate(self._inputs):
            if isinstance(source, np.ndarray):
                check_shape(number, signature.inputs[number], source.shape, self._remedy)
        self._tensors = signature.outputs
        for tensor in self._tensors:
            refuse_strings(tensor)
        if any(isinstance(each, TensorBuffer) for each in self._inputs):
            buffers = self._buffers()
            on_device = any(each.kind == "device" for each in buffers)
            if instance.runs_directly(signature) and (on_device or in_chunks is None):
                return self._on_buffers(context, buffers, "device" if on_device else "host")
            check("Input", signature.inputs, buffers)
        arrays = [
            content(source, tensor) if isinstance(source, TensorBuffer) else source
            for tensor, source in zip(signature.inputs, self._inputs, strict=True)
        ]
        self._outputs = [np.empty(tensor.shape, tensor.dtype) for tensor in self._tensors]
        if in_chunks is not None:
            return in_chunks(arrays, self._outputs)
        return context.on_arrays(self._index, arrays, self._outputs)

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
        return context.prepared(self._index, buffers, results, None)

    def results(self) -> Any:
        """Return the results of the call, after its run."""
        results = [
            self._conversion.result(tensor, found) if isinstance(found, np.ndarray) else found
            for tensor, found in zip(self._tensors, self._outputs, strict=True)
        ]
        if len(results) == 1 and not self._by_name:
            return results[0]
        return dict(zip((tensor.key for tensor in self._tensors), results, strict=True))


_NO_DEVICE = (np.ndarray, list, tuple, int, float, str, bytes, bytearray, type(None))
"""The types of arguments that are never on a device."""


def ordered(
    tensors: Sequence[Tensor], inputs: Sequence[Any], named: Mapping[str, Any]
) -> list[Any]:
    """Return arguments that were passed in order, by name, or in one dict, in tensor order.

    A name is a name in the signature or a tensor's name. Raises CompiledModelError unless each
    input is passed exactly once.
    """
    if len(inputs) == 1 and isinstance(inputs[0], Mapping):
        named, inputs = {**inputs[0], **named}, ()
    keys = [tensor.key for tensor in tensors]
    if not named and len(inputs) == len(keys):
        return [*inputs]
    if len(inputs) > len(keys):
        raise CompiledModelError(
            f"The model takes {counted(len(keys), 'input')}, {keys}, and was given {len(inputs)}. "
            "Give one array for each input; an array may have several rows."
        )
    also = {tensor.name: tensor.key for tensor in tensors}
    given = dict(zip(keys, inputs, strict=False))
    for name, data in named.items():
        key = name if name in keys else also.get(name)
        if key is None:
            raise CompiledModelError(
                f"The model has no input '{name}'.{did_you_mean(str(name), keys)}"
            )
        if key in given:
            raise CompiledModelError(f"Input '{key}' is given twice. Give it once.")
        given[key] = data
    if missing := [key for key in keys if key not in given]:
        raise CompiledModelError(
            f"The model takes {keys}, and was not given {missing}. Give all in this order, or by "
            f"name: model({{{', '.join(f'{key!r}: ...' for key in keys)}}})."
        )
    return [given[key] for key in keys]


def refuse_strings(tensor: Tensor) -> None:
    """Raise CompiledModelError for a tensor of strings, which buffers cannot store."""
    if tensor.dtype.hasobject or tensor.dtype.kind in "SU":
        raise CompiledModelError(
            f"'{tensor.key}' holds strings, for which there are no buffers. Use the "
            "interpreter for this model."
        )


def new_buffer(
    tensor: Tensor, instance: Instance, memory: str | None, zeros: bool = True
) -> TensorBuffer:
    """Return a new buffer for a tensor; for `memory` see CompiledModel.create_input_buffers."""
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
            "Device memory requires that the GPU runs the whole model; the report lists the nodes "
            'on the CPU. Use memory="host", or compile a small model with '
            "min_nodes_per_partition=0."
        )
    return HostBuffer.allocate(tensor.nbytes)
