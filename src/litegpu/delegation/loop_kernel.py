"""Runs a loop whose number of iterations depends on data."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from litegpu.backends.buffers import Bytes
from litegpu.delegation.cost_model import Estimate
from litegpu.delegation.partition_kernel import PartitionKernel, data_field
from litegpu.delegation.report import Partition
from litegpu.engine.compiled import CompiledPartition
from litegpu.engine.loop import DeviceLoop
from litegpu.graph import Graph
from litegpu.ops.while_loop import WHILE, batch_of


class LoopKernel(PartitionKernel):
    """A compiled batch of loop iterations, bound to the tensors of the loop's node.

    The kernel writes the tensors only after the last batch. After a loss of the device or a float16
    overflow, the kernel restarts the loop from its initial values.
    """

    def __init__(self, passes: int, *args: Any, **kwargs: Any) -> None:
        """Compile batches of `passes` iterations; PartitionKernel has the other parameters.

        Raises the errors of PartitionKernel.
        """
        self._passes = passes
        self._loop: DeviceLoop | None = None
        super().__init__(*args, **kwargs)

    def _compile(self, graph: Graph) -> CompiledPartition:
        self._node = next(node for node in graph.nodes if node.op == WHILE)
        self._batch = batch_of(graph, self._node, self._passes)
        return super()._compile(self._batch.graph)

    def _sizes(self) -> dict[int, int]:
        values = self.graph.values
        ends = (*self.graph.inputs, *self.graph.outputs)
        return {v: values[v].elements * values[v].dtype.size for v in ends}

    def _bind(self, tensors: int) -> None:
        """Look up the addresses of the loop's inputs and outputs in the runtime's tensor table."""
        self._release_loop()
        self._loop = loop = DeviceLoop(self._batch, self.compiled, self._device)
        node, carried, sizes = self._node, self._batch.carried, self._sizes()

        def reader(v: int) -> Callable[[], Bytes]:
            data = self.graph.values[v].data
            if data is None:
                return partial(_bytes_at, data_field(tensors, v), sizes[v])
            constant = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
            return lambda: constant

        readers = [reader(v) for v in node.inputs]
        of_value = dict(zip(node.inputs, readers, strict=True))
        first = [readers[i] for i in carried]
        others = {v: of_value[v] for v in loop.others}
        fields = {i: data_field(tensors, v) for i, v in enumerate(node.outputs) if v in sizes}
        results = [(place, fields[i]) for place, i in enumerate(carried) if i in fields]
        unchanged = [(readers[i], fields[i]) for i in fields if i not in carried]

        def run() -> None:
            before = [(read(), field) for read, field in unchanged]
            found = loop.run([read() for read in first], {v: r() for v, r in others.items()})
            for data, field in (*before, *((found[place], field) for place, field in results)):
                ctypes.memmove(field, data.ctypes.data, data.nbytes)

        self._run, self._tensors = run, tensors

    def _release_loop(self) -> None:
        if self._loop is not None:
            self._loop.close()
        self._loop = None

    def describe(self, nodes: tuple[int, ...], estimate: Estimate | None) -> Partition:
        """Return the partition's entry in the report, with the number of iterations per batch."""
        return replace(super().describe(nodes, estimate), loop_passes=self._passes)

    def close(self, context: int = 0) -> None:
        """Release all device memory."""
        self._release_loop()
        super().close(context)


def _bytes_at(field: ctypes.c_void_p, size: int) -> Bytes:
    """Return a copy of the bytes that a tensor's field refers to."""
    return np.frombuffer(ctypes.string_at(field.value or 0, size), np.uint8)
