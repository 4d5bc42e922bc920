"""Runs a partition with the runtime's CPU kernels, for shapes that the GPU does not support."""

from __future__ import annotations

import ctypes
import logging

from litegpu.errors import InterpreterError, ModelError
from litegpu.graph import Graph
from litegpu.graph.partition import sources
from litegpu.runtime_abi import bridge, structs
from litegpu.runtime_abi.cpu_nodes import CpuNodes
from litegpu.runtime_abi.enums import AllocationType
from litegpu.runtime_abi.reader import tensor_at
from litegpu.wording import counted

_log = logging.getLogger("litegpu")


class CpuFallback:
    """The CPU's kernels for the nodes of a partition, and the outputs that these resize."""

    def __init__(self, cpu: CpuNodes | None) -> None:
        """Use the kernels of `cpu`; None if the runtime has no kernel for some of the nodes."""
        self._cpu = cpu
        self.reason = ""
        """Why the CPU runs the partition for the current shapes; empty if the GPU runs it."""
        self._dynamic = set[int]()
        """Outputs whose shapes are known only during a run, and whose memory is not planned."""

    def shape(self, context: int, graph: Graph, error: ModelError) -> None:
        """Run the partition from now on, for the current shapes, and set the shapes of outputs.

        Raises `error`, which states the GPU's limitation, if the CPU cannot run the partition
        either.
        """
        if self._cpu is None:
            raise error
        try:
            found = self._cpu.prepare(sources(graph), graph.outputs)
        except ModelError as refused:
            raise error from refused
        if found is not None:
            for v, shape in zip(graph.outputs, found, strict=True):
                self.resize(context, v, shape)
        else:
            tensors = structs.TfLiteContext.from_address(context).tensors or 0
            for v in graph.outputs:
                tensor = tensor_at(tensors, v)
                if tensor.allocation_type != AllocationType.DYNAMIC:
                    tensor.data, tensor.allocation_type = None, AllocationType.DYNAMIC
                    self._dynamic.add(v)
        self.reason = str(error)
        _log.info("The CPU runs %s: %s", counted(len(graph.nodes), "node"), error)

    def resize(self, context: int, v: int, shape: tuple[int, ...]) -> None:
        """Set the shape of an output whose memory the runtime plans."""
        tensors = structs.TfLiteContext.from_address(context).tensors or 0
        if v in self._dynamic:
            tensor = tensor_at(tensors, v)
            structs.free_array(tensor.data)
            tensor.data, tensor.allocation_type = None, AllocationType.ARENA_RW
            self._dynamic.discard(v)
        if bridge.tensor_shape(tensors, v) != shape:
            bridge.resize_tensor(context, v, shape)

    def invoke(self, context: int, graph: Graph) -> None:
        """Run the nodes. Raises ModelError if a kernel rejects its input."""
        assert self._cpu is not None, "`shape` raises without kernels"
        outputs = graph.outputs
        tensors = structs.TfLiteContext.from_address(context).tensors or 0
        if not self._dynamic and not any(tensor_at(tensors, v).bytes for v in outputs):
            return  # nothing to compute
        self._cpu.invoke(sources(graph))
        for v in outputs:
            shape, address, size = self._cpu.result(v)
            if bridge.tensor_shape(tensors, v) != shape or v in self._dynamic:
                bridge.resize_tensor(context, v, shape)
            if (tensor := tensor_at(tensors, v)).bytes != size:
                raise InterpreterError(
                    f"Tensor {v} has {tensor.bytes} bytes in the interpreter, and the CPU's "
                    f"kernels compute {size}. Use no delegate."
                )
            if size:
                ctypes.memmove(tensor.data or 0, address, size)
            elif v in self._dynamic:
                # The runtime's Python API accepts an empty tensor only if it has no memory.
                structs.free_array(tensor.data)
                tensor.data = None

    def close(self) -> None:
        """Release the kernels and their memory."""
        if self._cpu is not None:
            self._cpu.close()
