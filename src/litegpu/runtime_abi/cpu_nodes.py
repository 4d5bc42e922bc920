"""Runs nodes with the runtime's CPU kernels, on copies of the interpreter's tensors.

litegpu uses this module before a run, to infer shapes as the CPU's kernels do. During a run, the
module runs delegated nodes for shapes that the GPU does not support. The kernels use a copy of the
context with a copy of the tensor table. In this table, the results and temporaries of the nodes
have separate memory.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from litegpu.errors import ModelError
from litegpu.graph import ABSENT, Node, Value
from litegpu.runtime_abi import structs
from litegpu.runtime_abi.enums import DTYPES, AllocationType, TfLiteStatus
from litegpu.runtime_abi.opcodes import CUSTOM
from litegpu.runtime_abi.reader import node_at, tensor_at

_SPARE = 256
"""Maximum number of tensors that the kernel of one node may add."""
_ALIGNMENT = 64
_TENSOR_SIZE = ctypes.sizeof(structs.TfLiteTensor)
_ARENA = (AllocationType.ARENA_RW, AllocationType.ARENA_RW_PERSISTENT)
_HEAP = (AllocationType.DYNAMIC, AllocationType.PERSISTENT_RO)

Shape = tuple[int, ...]


class CpuNodes:
    """Some nodes of an interpreter's graph, with separate kernels and tensors."""

    def __init__(self, context: int, nodes: Sequence[Node]) -> None:
        """Copy nodes while a delegate is applied; the first use creates their kernels.

        Raises InterpreterError when the runtime fails.
        """
        self._context = context
        self._kernels = {node.index: _Kernel(context, node) for node in nodes}
        self._own = set[int]()
        self._memory = dict[int, npt.NDArray[np.uint8]]()
        self._copy = structs.TfLiteContext()
        self._table = (ctypes.c_uint8 * 0)()
        self._ready = 0

    @property
    def tensors(self) -> int:
        """The address of the tensor table."""
        return ctypes.addressof(self._table)

    def close(self) -> None:
        """Release the kernels and their memory."""
        for kernel in self._kernels.values():
            kernel.close(ctypes.addressof(self._copy))
        for v in self._own:
            self._release(tensor_at(self.tensors, v))
        self._own.clear()
        self._memory.clear()

    # Shape inference, while a delegate is applied

    def shapes(self, node: Node, values: Mapping[int, Value]) -> Sequence[Shape | None] | None:
        """Return the shapes of a node's results, as the runtime's kernel computes them.

        `values` contains the node's known inputs. The shape of a result is None if the shape
        depends on data. Returns None if the runtime rejects the inputs, or has no kernel.
        """
        kernel = self._kernels.get(node.index)
        if kernel is None or not kernel.is_complete:
            return None
        self._follow()
        for v in node.inputs:
            if v != ABSENT:
                self._state(v, values[v])
        for v in node.outputs:
            self._make_own(v, values[v].shape)
        # Kernels report errors to the copy, and the functions that they call to the original.
        with structs.unheard(ctypes.addressof(self._copy)), structs.unheard(self._context):
            try:
                self._prepare(kernel)
            except ModelError:
                return None
        return [None if self._is_dynamic(v) else self._shape(v) for v in node.outputs]

    def _state(self, v: int, value: Value) -> None:
        """Set the known shape of an input, and its data if it is a constant."""
        row = tensor_at(self.tensors, v)
        if row.allocation_type == AllocationType.MMAP_RO and v not in self._own:
            return
        self._make_own(v, value.shape)
        row.bytes = value.elements * value.dtype.size
        if value.data is not None and DTYPES.get(row.type) is value.dtype:
            self._memory[v] = np.ascontiguousarray(value.data).reshape(-1).view(np.uint8)
            row.data = self._memory[v].ctypes.data
            row.allocation_type = AllocationType.MMAP_RO

    # Runs, when the interpreter prepares and invokes

    def prepare(self, inputs: Iterable[int], outputs: Sequence[int]) -> list[Shape] | None:
        """Prepare all nodes, in order, for the current inputs; return the shapes of the outputs.

        Returns None if the shapes of the outputs are known only after a run. Raises ModelError if
        the runtime rejects a shape.
        """
        self._enter(inputs)
        self._ready = 0
        for kernel in self._kernels.values():
            for v in kernel.node_outputs:
                self._make_own(v, self._shape(v))
            self._prepare(kernel)
            self._ready += 1
            if any(self._is_dynamic(v) for v in kernel.node_outputs):
                break
        if self._ready < len(self._kernels) or any(map(self._is_dynamic, outputs)):
            return None
        return [self._shape(v) for v in outputs]

    def invoke(self, inputs: Iterable[int]) -> None:
        """Run all nodes on the current inputs. Raises ModelError if the runtime rejects any."""
        self._enter(inputs)
        for number, kernel in enumerate(self._kernels.values()):
            if number >= self._ready:
                self._prepare(kernel)
            kernel.run(ctypes.addressof(self._copy))

    def result(self, v: int) -> tuple[Shape, int, int]:
        """Return the shape of a result, and the address and the size of its data."""
        row = tensor_at(self.tensors, v)
        return self._shape(v), row.data or 0, row.bytes

    def _enter(self, inputs: Iterable[int]) -> None:
        """Update the copies of the interpreter's context and of the input tensors."""
        self._follow()
        for v in inputs:
            self._copy_rows(v, 1)

    def _shape(self, v: int) -> Shape:
        return structs.int_array(tensor_at(self.tensors, v).dims)

    def _is_dynamic(self, v: int) -> bool:
        return tensor_at(self.tensors, v).allocation_type == AllocationType.DYNAMIC

    # Both

    def _follow(self) -> None:
        """Copy the interpreter's context, with spare entries for tensors that kernels add."""
        struct = structs.TfLiteContext.from_address(self._context)
        ctypes.memmove(ctypes.addressof(self._copy), self._context, ctypes.sizeof(self._copy))
        count = len(self._table) // _TENSOR_SIZE
        if struct.tensors_size + _SPARE > count:
            larger = struct.tensors_size + 2 * _SPARE
            before, self._table = self._table, (ctypes.c_uint8 * (larger * _TENSOR_SIZE))()
            ctypes.memmove(self.tensors, ctypes.addressof(before), len(before))
            for v in range(count, larger):
                tensor_at(self.tensors, v).buffer_handle = structs.NO_BUFFER_HANDLE
            if not count:
                self._copy_rows(0, struct.tensors_size)
                for kernel in self._kernels.values():
                    for v in kernel.node_outputs:
                        self._make_own(v, self._shape(v))
        self._copy.tensors = self.tensors

    def _copy_rows(self, first: int, count: int) -> None:
        start = first * _TENSOR_SIZE
        tensors = structs.TfLiteContext.from_address(self._context).tensors or 0
        ctypes.memmove(self.tensors + start, tensors + start, count * _TENSOR_SIZE)

    def _make_own(self, v: int, shape: Shape) -> None:
        """Allocate a separate copy of a tensor's dimensions, and clear its data."""
        row = tensor_at(self.tensors, v)
        if v in self._own:
            self._release(row)
        self._own.add(v)
        row.dims = structs.malloc_int_array(shape)
        row.data, row.allocation_type = None, AllocationType.ARENA_RW

    def _release(self, row: structs.TfLiteTensor) -> None:
        structs.free_array(row.dims)
        if row.allocation_type in _HEAP:
            structs.free_array(row.data)
        row.dims = row.data = None

    def _prepare(self, kernel: _Kernel) -> None:
        """Prepare a node and allocate its results. Raises ModelError for rejected inputs."""
        known = kernel.prepare(ctypes.addressof(self._copy))
        for v in () if known else kernel.node_outputs:
            row = tensor_at(self.tensors, v)
            if row.allocation_type != AllocationType.DYNAMIC:
                row.data, row.allocation_type = None, AllocationType.DYNAMIC
        temporaries = kernel.temporaries
        self._own.update(temporaries)
        for v in (*kernel.node_outputs, *temporaries):
            row = tensor_at(self.tensors, v)
            if row.allocation_type in _ARENA and not row.data and row.bytes:
                self._memory[v] = _aligned(row.bytes)
                row.data = self._memory[v].ctypes.data


class _Kernel:
    """The runtime's kernel of a node, with separate state."""

    def __init__(self, context: int, node: Node) -> None:
        """Copy a node of a context. Raises InterpreterError when the runtime fails."""
        struct, registration = node_at(context, node.index)
        self._title = f"node {node.index} ({node.op})"
        self.node_outputs = tuple(v for v in node.outputs if v != ABSENT)
        self._node = structs.TfLiteNode.from_buffer_copy(struct)
        self._node.user_data = None
        self._node.temporaries = None
        self._started = False
        custom = registration.builtin_code == CUSTOM
        self._options = (
            (struct.custom_initial_data, struct.custom_initial_data_size)
            if custom
            else (struct.builtin_data, 0)
        )
        # The runtime moves its registrations, and fields share their memory.
        self._init = structs.INIT(_address(registration.init))
        self._free = structs.FREE(_address(registration.free))
        self._do_prepare = structs.NODE(_address(registration.prepare))
        self._do_invoke = structs.NODE(_address(registration.invoke))
        calls = any(name.endswith("subgraph_index") for name in node.params) or node.graphs
        self.is_complete = bool(self._do_prepare) and bool(self._do_invoke) and not calls
        """Whether the kernel can run on copies, which a kernel that runs other graphs cannot."""

    @property
    def temporaries(self) -> tuple[int, ...]:
        """The tensors that the kernel has added."""
        return structs.int_array(self._node.temporaries)

    def prepare(self, context: int) -> bool:
        """Initialize if necessary, and prepare; return whether the results' shapes are known.

        Raises ModelError if the kernel rejects the current shapes.
        """
        if not self.is_complete:
            raise ModelError(
                f"The runtime has no kernel that can run {self._title} outside the interpreter. "
                "Use other shapes, or the interpreter without the delegate."
            )
        if not self._started:
            self._node.temporaries = structs.malloc_int_array(())
            if self._init:
                self._node.user_data = self._init(context, *self._options)
            self._started = True
        status = self._do_prepare(context, ctypes.addressof(self._node))
        if status == TfLiteStatus.OUTPUT_SHAPE_NOT_KNOWN:
            return False
        self._check(status, "prepare")
        return True

    def run(self, context: int) -> None:
        """Compute the results."""
        self._check(self._do_invoke(context, ctypes.addressof(self._node)), "run")

    def _check(self, status: int, what: str) -> None:
        if status:
            raise ModelError(
                f"The runtime cannot {what} {self._title} for the current shapes (status {status})."
                " Use other shapes."
            )

    def close(self, context: int) -> None:
        """Free the kernel."""
        if self._started and self._free and self._node.user_data:
            self._free(context, self._node.user_data)
        structs.free_array(self._node.temporaries)
        self._node.user_data = self._node.temporaries = None
        self._started = False


def _address(function: Callable[..., Any]) -> int:
    return ctypes.cast(cast("Any", function), ctypes.c_void_p).value or 0


def _aligned(size: int) -> npt.NDArray[np.uint8]:
    """Return memory with an alignment that is sufficient for the kernels of any machine."""
    memory = np.zeros(size + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    return memory[start : start + size]
