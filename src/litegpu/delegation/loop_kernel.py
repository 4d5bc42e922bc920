"""Runs a loop inside the runtime whose number of passes is known only when the model runs."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from litegpu.backends.buffers import Bytes
from litegpu.delegation.cost_model import Estimate
from litegpu.delegation.partition_kernel import PartitionKernel
from litegpu.delegation.report import Partition
from litegpu.engine.compiled import CompiledPartition
from litegpu.engine.loop import DeviceLoop
from litegpu.graph import Graph, Node
from litegpu.ops.while_loop import WHILE, batch_of
from litegpu.runtime_abi.reader import tensor_at


class LoopKernel(PartitionKernel):
    """A compiled batch of passes, bound to the tensors of the loop's node.

    The tensors are written after the last batch only: after a loss of the device, or an overflow
    of half, the loop runs again from the values before it.
    """

    def __init__(self, passes: int, *args: Any, **kwargs: Any) -> None:
        """Compile batches of so many passes; the other arguments are those of PartitionKernel.

        Raises what PartitionKernel does.
        """
        self._passes = passes
        self._loop: DeviceLoop | None = None
        super().__init__(*args, **kwargs)

    @property
    def _node(self) -> Node:
        return next(node for node in self.graph.nodes if node.op == WHILE)

    def _compile(self, graph: Graph) -> CompiledPartition:
        node = next(node for node in graph.nodes if node.op == WHILE)
        self._batch = batch_of(graph, node, self._passes)
        return super()._compile(self._batch.graph)

    def _sizes(self) -> dict[int, int]:
        values = self.graph.values
        ends = (*self.graph.inputs, *self.graph.outputs)
        return {v: values[v].elements * values[v].dtype.size for v in ends}

    def _bind(self, tensors: int) -> None:
        self._release_loop()
        self._loop = DeviceLoop(self._batch, self.compiled, self._device)
        self._run = partial(self._run_loop, self._loop, tensors, self._sizes())
        self._tensors = tensors

    def _run_loop(self, loop: DeviceLoop, tensors: int, sizes: dict[int, int]) -> None:
        node, carried = self._node, self._batch.carried

        def given(v: int) -> Bytes:
            value = self.graph.values[v]
            if value.data is not None:
                return np.ascontiguousarray(value.data).reshape(-1).view(np.uint8)
            source = tensor_at(tensors, v).data or 0
            return np.frombuffer(ctypes.string_at(source, sizes[v]), np.uint8)

        before = {v: given(v) for v in node.inputs}
        results = loop.run([before[node.inputs[i]] for i in carried], before)
        found = dict(zip(carried, results, strict=True))
        for place, (v, source) in enumerate(zip(node.outputs, node.inputs, strict=True)):
            if v in sizes:
                data = found[place] if place in found else before[source]
                ctypes.memmove(tensor_at(tensors, v).data or 0, data.ctypes.data, data.nbytes)

    def _release_loop(self) -> None:
        if self._loop is not None:
            self._loop.close()
        self._loop = None

    def describe(self, nodes: tuple[int, ...], estimate: Estimate | None) -> Partition:
        """Return the report's facts, and how many passes a batch has."""
        return replace(super().describe(nodes, estimate), loop_passes=self._passes)

    def close(self, context: int = 0) -> None:
        """Release everything on the device."""
        self._release_loop()
        super().close(context)
