"""Binds buffers to tensors of an interpreter, so that the GPU reads and writes the buffers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from litegpu.backends.buffers import Buffer
from litegpu.delegation.partition_kernel import PartitionKernel
from litegpu.errors import BindingError
from litegpu.tensor_buffer import TensorBuffer, stream_number


def bind_tensor(
    interpreter: Any, kernels: Sequence[PartitionKernel], tensor: int, buffer: Any, stream: Any
) -> None:
    """Bind a buffer to a tensor of the kernel that reads or writes it. See GpuDelegate.bind_buffer.

    Raises BindingError.
    """
    for kernel in kernels:
        if tensor in kernel.bindable:
            memory = None if buffer is None else _memory(interpreter, tensor, buffer)
            kernel.bind_buffer(tensor, memory, None if stream is None else stream_number(stream))
            return
    known = sorted(v for kernel in kernels for v in kernel.bindable)
    raise BindingError(
        f"Tensor {tensor} cannot be bound: only inputs and outputs that no CPU node reads or "
        f"writes can be bound, {known}."
        + (" min_nodes_per_partition=0 puts small models on the GPU, too." if not kernels else "")
    )


def _memory(interpreter: Any, tensor: int, buffer: Any) -> Buffer:
    found = buffer if isinstance(buffer, TensorBuffer) else TensorBuffer.of(buffer)
    inputs, outputs = (
        {each["index"]: each for each in details()}
        for details in (interpreter.get_input_details, interpreter.get_output_details)
    )
    detail = {**inputs, **outputs}[tensor]
    dtype, shape = np.dtype(detail["dtype"]), tuple(map(int, detail["shape"]))
    if found.dtype != dtype or found.shape != shape:
        raise BindingError(
            f"Tensor {tensor} is {dtype} of {[*shape]}, and its buffer {found.dtype} of "
            f"{[*found.shape]}. Bind a buffer of the tensor's type and shape."
        )
    if tensor in outputs and not found.writable:
        raise BindingError(
            f"Tensor {tensor} is an output, but its buffer is read-only. Bind a writable buffer."
        )
    memory: Buffer = found.memory
    return memory
