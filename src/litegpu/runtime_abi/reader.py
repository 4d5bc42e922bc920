"""Reads the runtime's graph from its C structs into plain data."""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from litegpu.errors import InterpreterError
from litegpu.graph import ABSENT, Blockwise, DType, Graph, Node, Quantization, Value
from litegpu.host.large_arrays import LARGE
from litegpu.runtime_abi.budget import ReadBudget
from litegpu.runtime_abi.enums import DTYPES, AllocationType, QuantizationType, TfLiteType
from litegpu.runtime_abi.opcodes import CUSTOM, name_of
from litegpu.runtime_abi.params import BIAS_TYPE, BIAS_TYPE_SINCE, ParamValue, read_params
from litegpu.runtime_abi.sparse import densify, read_sparsity
from litegpu.runtime_abi.structs import (
    TfLiteAffineQuantization,
    TfLiteBlockwiseQuantization,
    TfLiteContext,
    TfLiteNode,
    TfLiteRegistration,
    TfLiteTensor,
    int_array,
)

UPGRADE = "The supported runtimes are ai-edge-litert 1.0 and newer, and tflite-runtime 2.14."
"""The remedy when the runtime does not support an interface."""

_MAX_ELEMENTS = 1 << 40
_MATRIX = "FULLY_CONNECTED"
_WITH_INTERMEDIATES = frozenset({"LSTM", "UNIDIRECTIONAL_SEQUENCE_LSTM"})
_TENSOR_SIZE = ctypes.sizeof(TfLiteTensor)


def tensor_at(tensors: int, index: int) -> TfLiteTensor:
    """Return the tensor at `index` of the array at address `tensors`."""
    return TfLiteTensor.from_address(tensors + index * _TENSOR_SIZE)


def execution_plan(context: int) -> tuple[int, ...]:
    """Return the node indices in execution order. Raises InterpreterError if that fails."""
    address = ctypes.c_void_p()
    status = TfLiteContext.from_address(context).GetExecutionPlan(context, ctypes.byref(address))
    if status:
        raise InterpreterError(f"Unable to get graph execution plan (status {status}). {UPGRADE}")
    return int_array(address.value)


def thread_count(context: int) -> int:
    """Return the number of threads for CPU kernels; 1 by default."""
    return max(TfLiteContext.from_address(context).recommended_num_threads, 1)


def read_graph(context: int, budget: ReadBudget | None = None) -> Graph:
    """Read all nodes of the execution plan and all tensors that they use.

    `budget` limits the amount of data read from all graphs of a model; the default is a new budget
    for this graph. Raises InterpreterError if the runtime fails, and ModelError if the budget is
    exceeded. Constants are views of the runtime's memory, so they must not outlive the interpreter.
    The graph's inputs and outputs remain empty, because a delegate does not receive them.
    """
    budget = budget or ReadBudget()
    nodes = tuple(_read_node(context, index, budget) for index in execution_plan(context))
    used = {v for node in nodes for v in (*node.inputs, *node.outputs) if v != ABSENT}
    values = _with_empty(nodes, read_values(context, used, budget))
    return Graph(values, nodes, (), ())


def _with_empty(nodes: Sequence[Node], values: dict[int, Value]) -> dict[int, Value]:
    """Return values, plus missing constants without elements, such as the shape of a scalar.

    The runtime allocates no memory for constants without elements, and does not mark them as
    constant.
    """
    computed = {v for node in nodes for v in node.outputs}
    return {
        index: replace(value, data=np.empty(value.shape, value.dtype.value))
        if value.shape == (0,)
        and value.dtype.size
        and index not in computed
        and not (value.is_variable or value.signature or value.is_constant)
        else value
        for index, value in values.items()
    }


def read_values(context: int, indices: Iterable[int], budget: ReadBudget) -> dict[int, Value]:
    """Read tensors by index; skip missing tensors."""
    struct = TfLiteContext.from_address(context)
    present = sorted(index for index in set(indices) if 0 <= index < struct.tensors_size)
    tensors = struct.tensors or 0
    read = {index: tensor_at(tensors, index) for index in present}
    budget.constants((each.data or 0, each.bytes) for each in read.values() if _is_stored(each))
    found = {index: _read_value(index, tensor, budget) for index, tensor in read.items()}
    for index, value in found.items():
        scales = _scales_of_blocks(read[index], struct, value)
        if scales is not None:
            found[index] = replace(value, blockwise=scales)
    return found


def node_at(context: int, index: int) -> tuple[TfLiteNode, TfLiteRegistration]:
    """Return a node and its registration. Raises InterpreterError if that fails."""
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


def _read_node(context: int, index: int, budget: ReadBudget) -> Node:
    budget.operation()
    node, registration = node_at(context, index)
    code = registration.builtin_code
    name = budget.shown_name(registration.custom_name) if code == CUSTOM else name_of(code)
    inputs = budget.integers(node.inputs)
    params = read_params(name, node.builtin_data, registration.version)
    if name == _MATRIX and _sums_without_bias(context, inputs):
        params |= _type_of_sums(node.builtin_data, registration.version)
    if name in _WITH_INTERMEDIATES:
        params |= _intermediates(context, budget.integers(node.intermediates), budget)
    return Node(
        index=index,
        op=name,
        version=registration.version,
        inputs=inputs,
        outputs=budget.integers(node.outputs),
        params=params,
        custom=budget.custom(node.custom_initial_data, node.custom_initial_data_size),
    )


def _intermediates(
    context: int, indices: Sequence[int], budget: ReadBudget
) -> dict[str, ParamValue]:
    """Return scales and zero points of a node's intermediates, 0 where there is not one scale.

    Intermediates are tensors without elements. The result is empty for a node without them.
    """
    struct = TfLiteContext.from_address(context)
    found = []
    for index in indices:
        present = 0 <= index < struct.tensors_size
        quantization = (
            _quantization(tensor_at(struct.tensors or 0, index), budget) if present else None
        )
        if quantization and len(quantization.scale) == 1 == len(quantization.zero_point):
            found.append((quantization.scale[0], quantization.zero_point[0]))
        else:
            found.append((0.0, 0))
    if not found:
        return {}
    scales, zero_points = zip(*found, strict=True)
    return {"intermediate_scales": scales, "intermediate_zero_points": zero_points}


def _sums_without_bias(context: int, inputs: Sequence[int]) -> bool:
    """Whether a matrix product has 16-bit activations and no bias."""
    struct = TfLiteContext.from_address(context)
    if not inputs or not 0 <= inputs[0] < struct.tensors_size or [*inputs[2:3]] not in ([], [-1]):
        return False
    return bool(tensor_at(struct.tensors or 0, inputs[0]).type == TfLiteType.INT16)


def _type_of_sums(address: int | None, version: int) -> dict[str, ParamValue]:
    """Return the accumulator dtype of a matrix product without a bias; NOTYPE if unknown.

    Converters state this dtype even in nodes of versions that do not have the field.
    """
    from litegpu.runtime_abi import kernels

    if kernels.sums_without_bias(TfLiteType.INT64) is None:  # it may not have the parameter
        is_old = kernels.runtime() is not None and version < BIAS_TYPE_SINCE[_MATRIX]
        return {} if is_old else {BIAS_TYPE: TfLiteType.NOTYPE}
    stated: Any = read_params(_MATRIX, address, BIAS_TYPE_SINCE[_MATRIX])[BIAS_TYPE]
    found = kernels.sums_without_bias(stated)
    return {BIAS_TYPE: TfLiteType.NOTYPE if found is None else found}


def _read_value(index: int, tensor: TfLiteTensor, budget: ReadBudget) -> Value:
    dtype = DTYPES.get(tensor.type, DType.OTHER)
    shape = budget.integers(tensor.dims)
    memory = (tensor.data, tensor.bytes, dtype, shape) if _is_large(tensor) else None
    data = budget.arrays.get(memory)
    if data is None and _is_stored(tensor):
        if dtype.packed_bits:
            data = _read_packed(tensor, dtype.packed_bits, shape)
        elif dtype.size:
            data = _read_constant(tensor, dtype, shape, budget)
        if data is not None and memory is not None:
            data.flags.writeable = False
            budget.arrays[memory] = data
    quantization = _quantization(tensor, budget)
    name = budget.name(tensor.name)
    return Value(
        index,
        name,
        shape,
        dtype,
        data,
        bool(tensor.is_variable),
        quantization,
        is_sparse=bool(tensor.sparsity),
        signature=_signature(tensor, shape, budget),
    )


def _is_stored(tensor: TfLiteTensor) -> bool:
    """Whether a tensor is a constant with elements in the file."""
    return bool(tensor.allocation_type == AllocationType.MMAP_RO and tensor.data)


def _is_large(tensor: TfLiteTensor) -> bool:
    """Whether a tensor is a dense constant of many bytes, which signatures may share."""
    return bool(tensor.bytes >= LARGE and _is_stored(tensor) and not tensor.sparsity)


def _signature(tensor: TfLiteTensor, shape: tuple[int, ...], budget: ReadBudget) -> tuple[int, ...]:
    """Return the shape in the file, with -1 for unknown sizes; () if all sizes are known."""
    found = budget.integers(tensor.dims_signature)
    return found if len(found) == len(shape) and -1 in found else ()


def _read_constant(
    tensor: TfLiteTensor, dtype: DType, shape: tuple[int, ...], budget: ReadBudget
) -> npt.NDArray[Any] | None:
    """Return a constant's elements; None if any are missing, or the dense form is too large."""
    if not _is_shape(shape):
        return None
    count = tensor.bytes // dtype.size if tensor.sparsity else math.prod(shape)
    if count * dtype.size > tensor.bytes:
        return None
    buffer = (ctypes.c_uint8 * (count * dtype.size)).from_address(tensor.data or 0)
    stored = np.frombuffer(memoryview(buffer), dtype=dtype.value)
    if tensor.sparsity:
        if not budget.spread(stored.nbytes, math.prod(shape) * dtype.size):
            return None
        return densify(stored, shape, read_sparsity(tensor.sparsity))
    return stored.reshape(shape)


def _read_packed(
    tensor: TfLiteTensor, bits: int, shape: tuple[int, ...]
) -> npt.NDArray[np.int8] | None:
    """Return the elements of a 2-bit or 4-bit constant as int8; None if any are missing."""
    count = math.prod(shape)
    nbytes = -(-count * bits // 8)
    if not _is_shape(shape) or tensor.sparsity or nbytes > tensor.bytes:
        return None
    buffer = (ctypes.c_uint8 * nbytes).from_address(tensor.data or 0)
    stored = np.frombuffer(memoryview(buffer), dtype=np.uint8)
    elements = _elements_of_bytes(bits)[stored].view(np.int8)
    return elements[:count].reshape(shape)


@functools.cache
def _elements_of_bytes(bits: int) -> npt.NDArray[Any]:
    """Map each byte to the integer whose bytes are the sign-extended elements in the byte."""
    stored = np.arange(256, dtype=np.uint8).view(np.int8)
    # The first element of a byte has the lowest bits; right shifts extend the sign.
    lefts = np.arange(8 - bits, -1, -bits, dtype=np.int8)
    elements = np.left_shift(stored[:, None], lefts) >> np.int8(8 - bits)
    return np.ascontiguousarray(elements).view(f"u{8 // bits}")[:, 0]


def _is_shape(shape: tuple[int, ...]) -> bool:
    """Whether an array can have this shape, even without elements."""
    sizes = (max(size, 1) for size in shape)
    return all(size >= 0 for size in shape) and math.prod(sizes) <= _MAX_ELEMENTS


def _quantization(tensor: TfLiteTensor, budget: ReadBudget) -> Quantization | None:
    found = tensor.quantization
    if found.type != QuantizationType.AFFINE or not found.params:
        return None
    affine = TfLiteAffineQuantization.from_address(found.params)
    scale, zero_point = budget.floats(affine.scale), budget.integers(affine.zero_point)
    return Quantization(scale, zero_point, affine.quantized_dimension) if scale else None


def _scales_of_blocks(
    tensor: TfLiteTensor, context: TfLiteContext, value: Value
) -> Blockwise | None:
    """Return a constant matrix's blockwise quantization; None if absent or invalid."""
    found = tensor.quantization
    if found.type != QuantizationType.BLOCKWISE or not found.params or value.data is None:
        return None
    blockwise = TfLiteBlockwiseQuantization.from_address(found.params)
    size, index = blockwise.blocksize, blockwise.scale
    if size < 1 or len(value.shape) != 2 or value.shape[1] % size:
        return None
    if not 0 <= index < context.tensors_size:
        return None
    scales = tensor_at(context.tensors or 0, index)
    count = value.elements // size
    if scales.type != TfLiteType.FLOAT16 or not scales.data:
        return None
    if scales.allocation_type != AllocationType.MMAP_RO or scales.bytes < 2 * count:
        return None
    buffer = (ctypes.c_uint8 * (2 * count)).from_address(scales.data)
    stored = np.frombuffer(memoryview(buffer), np.float16)
    return Blockwise(stored.reshape(value.shape[0], -1), size)
