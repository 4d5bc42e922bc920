"""Reads the runtime's graph, through its C structs, into plain data."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from litegpu.errors import InterpreterError
from litegpu.graph import ABSENT, DType, Graph, Node, Quantization, Value
from litegpu.runtime_abi.enums import DTYPES, AllocationType, QuantizationType
from litegpu.runtime_abi.opcodes import CUSTOM, name_of
from litegpu.runtime_abi.params import read_params
from litegpu.runtime_abi.sparse import densify, read_sparsity
from litegpu.runtime_abi.structs import (
    TfLiteAffineQuantization,
    TfLiteContext,
    TfLiteNode,
    TfLiteRegistration,
    TfLiteTensor,
    float_array,
    int_array,
)

UPGRADE = "Known to work are ai-edge-litert 1.0 and newer, and tflite-runtime 2.14."
"""What a user can do when the runtime refuses."""

_TENSOR_SIZE = ctypes.sizeof(TfLiteTensor)


def tensor_at(tensors: int, index: int) -> TfLiteTensor:
    """Return tensor number `index` of the array at address `tensors`."""
    return TfLiteTensor.from_address(tensors + index * _TENSOR_SIZE)


def execution_plan(context: int) -> tuple[int, ...]:
    """Return the node indices in execution order. Raises InterpreterError when refused."""
    address = ctypes.c_void_p()
    status = TfLiteContext.from_address(context).GetExecutionPlan(context, ctypes.byref(address))
    if status:
        raise InterpreterError(f"Unable to get graph execution plan (status {status}). {UPGRADE}")
    return int_array(address.value)


def thread_count(context: int) -> int:
    """Return how many threads the CPU's kernels get; 1 unless the interpreter was told."""
    return max(TfLiteContext.from_address(context).recommended_num_threads, 1)


def read_graph(context: int) -> Graph:
    """Read all nodes of the execution plan and all tensors they touch.

    Constants are views of the runtime's memory: they must not outlive the interpreter. Inputs
    and outputs of the graph are left empty, for a delegate does not see them.
    """
    nodes = [_read_node(context, index) for index in execution_plan(context)]
    used = {v for node in nodes for v in (*node.inputs, *node.outputs) if v != ABSENT}
    return Graph(read_values(context, used), tuple(nodes), (), ())


def read_values(context: int, indices: Iterable[int]) -> dict[int, Value]:
    """Read tensors by index; those that the model does not have are left out."""
    held = TfLiteContext.from_address(context)
    present = sorted(index for index in set(indices) if 0 <= index < held.tensors_size)
    return {index: _read_value(index, tensor_at(held.tensors or 0, index)) for index in present}


def node_at(context: int, index: int) -> tuple[TfLiteNode, TfLiteRegistration]:
    """Return a node and its registration. Raises InterpreterError when refused."""
    node_address, registration_address = ctypes.c_void_p(), ctypes.c_void_p()
    status = TfLiteContext.from_address(context).GetNodeAndRegistration(
        context, index, ctypes.byref(node_address), ctypes.byref(registration_address)
    )
    if status or not node_address.value or not registration_address.value:
        raise InterpreterError(
            f"Couldn't get node and registration info for op: {index} (status {status}). {UPGRADE}"
        )
    return (
        TfLiteNode.from_address(node_address.value),
        TfLiteRegistration.from_address(registration_address.value),
    )


def _read_node(context: int, index: int) -> Node:
    node, registration = node_at(context, index)
    code = registration.builtin_code
    if code == CUSTOM:
        name = (registration.custom_name or b"").decode("utf-8", "replace")
    else:
        name = name_of(code)
    custom = b""
    if node.custom_initial_data and node.custom_initial_data_size > 0:
        custom = ctypes.string_at(node.custom_initial_data, node.custom_initial_data_size)
    return Node(
        index=index,
        op=name,
        version=registration.version,
        inputs=int_array(node.inputs),
        outputs=int_array(node.outputs),
        params=read_params(name, node.builtin_data),
        custom=custom,
    )


def _read_value(index: int, tensor: TfLiteTensor) -> Value:
    dtype = DTYPES.get(tensor.type, DType.OTHER)
    shape = int_array(tensor.dims)
    data = None
    is_constant = tensor.allocation_type == AllocationType.MMAP_RO
    if is_constant and dtype is not DType.OTHER and tensor.data:
        data = _read_constant(tensor, dtype, shape)
    name = (tensor.name or b"").decode("utf-8", "replace")
    return Value(index, name, shape, dtype, data, bool(tensor.is_variable), _quantization(tensor))


def _read_constant(
    tensor: TfLiteTensor, dtype: DType, shape: tuple[int, ...]
) -> npt.NDArray[Any] | None:
    """Return a constant's elements; None if they are not all there."""
    count = tensor.bytes // dtype.size if tensor.sparsity else math.prod(shape)
    if count * dtype.size > tensor.bytes:
        return None
    buffer = (ctypes.c_uint8 * (count * dtype.size)).from_address(tensor.data or 0)
    stored = np.frombuffer(memoryview(buffer), dtype=dtype.value)
    if tensor.sparsity:
        return densify(stored, shape, read_sparsity(tensor.sparsity))
    return stored.reshape(shape)


def _quantization(tensor: TfLiteTensor) -> Quantization | None:
    found = tensor.quantization
    if found.type != QuantizationType.AFFINE or not found.params:
        return None
    affine = TfLiteAffineQuantization.from_address(found.params)
    scale, zero_point = float_array(affine.scale), int_array(affine.zero_point)
    return Quantization(scale, zero_point, affine.quantized_dimension) if scale else None
