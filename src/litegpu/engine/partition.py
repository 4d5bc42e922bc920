"""Compiles a partition of the model and runs it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from litegpu import config
from litegpu.backends.base import Device, Recording
from litegpu.engine.layout import Layout, assign
from litegpu.engine.program import BuiltProgram, build_program
from litegpu.engine.states import expose_states
from litegpu.engine.target import DeviceTarget
from litegpu.graph import DType, Graph, Node, Value
from litegpu.ops.base import as_float32, get
from litegpu.ops.conv_tile import rounded_inputs
from litegpu.passes import BEFORE_NORMALIZE, PASSES, TENSOR_CORE_PASSES, Pass

_log = logging.getLogger("litegpu")


@dataclass(frozen=True, slots=True)
class CompiledPartition:
    """A partition on a device. `inputs` and `outputs` are the runtime's tensor numbers.

    A state that a node changes is among both: what is left of it replaces what was there.
    `constants` are outputs that do not depend on any input: dense, by tensor number.
    """

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    recording: Recording
    layout: Layout
    built: BuiltProgram
    constants: Mapping[int, npt.NDArray[Any]]

    def run(self, inputs: Sequence[int], outputs: Sequence[int]) -> None:
        """Run on host addresses of dense tensors, in the order of `inputs` and `outputs`."""
        self.recording.run(inputs, outputs)

    def buffers(self) -> dict[int, npt.NDArray[Any]]:
        """Return zeros for each input and output."""
        values = self.layout.graph.values
        boundary = (*self.inputs, *self.outputs)
        return {v: np.zeros(values[v].shape, values[v].dtype.value) for v in boundary}

    def warm_up(self) -> None:
        """Run once on zeros: drivers leave part of their work to the first run.

        Raises ExecutionError when the device fails.
        """
        held = self.buffers()
        self.run(
            [held[v].ctypes.data for v in self.inputs], [held[v].ctypes.data for v in self.outputs]
        )

    def close(self) -> None:
        """Release everything on the device."""
        self.recording.close()


def compile_partition(
    graph: Graph,
    device: Device,
    half_from: int | None,
    *,
    share_memory: bool = True,
    stage_boundary: bool = False,
    cache_dir: str | None = None,
) -> CompiledPartition:
    """Rewrite, place, lower, compile and record a graph of supported nodes.

    `half_from` see Layout. `share_memory` off gives each value memory of its own;
    `stage_boundary` see layout.assign.
    `cache_dir` is where compiled kernels are kept (None: where the backend keeps them).
    Raises CompilationError or DeviceMemoryError.
    """
    constants = {
        v: _as_runtime(graph.values[v]) for v in graph.outputs if graph.values[v].is_constant
    }
    graph = replace(graph, outputs=tuple(v for v in graph.outputs if v not in constants))
    graph, states = expose_states(graph)
    target = DeviceTarget(device.info, half_from)
    rewritten = rewrite(graph, target.tensor_cores)
    rounded = rounded_inputs(rewritten) if target.tensor_cores and half_from is not None else ()
    layout = assign(rewritten, half_from, stage_boundary, device.info.half_lanes, rounded)
    used = {v for node in layout.graph.nodes for v in node.operands}
    inputs = tuple(v for v in rewritten.inputs if v in used)
    built = build_program(layout, device.info, inputs, rewritten.outputs, share_memory)
    if config.debug_level() >= 2:
        for kernel in built.program.kernels:
            _log.info("%s", device.dialect.kernel(kernel))
    recording = device.record(built.program, cache_dir)
    outputs = tuple(states.get(v, v) for v in rewritten.outputs)
    return CompiledPartition(inputs, outputs, recording, layout, built, constants)


def _as_runtime(value: Value) -> npt.NDArray[Any]:
    """Return a constant as the runtime holds computed tensors: there is no float16."""
    held = as_float32(value) if value.dtype is DType.FLOAT16 else value.data
    return np.ascontiguousarray(held)


def rewrite(graph: Graph, tensor_cores: bool = False) -> Graph:
    """Run all passes, with the ops' own normalization between the first two groups."""
    graph = _run_passes(graph, BEFORE_NORMALIZE)
    graph = normalize(graph)
    graph = _run_passes(graph, PASSES)
    return _run_passes(graph, TENSOR_CORE_PASSES) if tensor_cores else graph


def normalize(graph: Graph) -> Graph:
    """Let every op work out its attributes and replace itself by simpler nodes."""
    values = dict(graph.values)
    fresh = iter(graph.fresh_ids())
    made_for = DType.FLOAT32  # what holds integers in the end must not be rounded on the way

    def new_value(shape: tuple[int, ...], data: npt.NDArray[Any] | None = None) -> int:
        v = next(fresh)
        dtype = made_for if data is None else DType(data.dtype.name)
        values[v] = Value(v, f"litegpu_{v}", shape, dtype, data)
        return v

    nodes: list[Node] = []
    for node in graph.nodes:
        made_for = graph.values[node.outputs[0]].dtype
        nodes += get(node.op).normalize(graph, node, new_value)
    return replace(graph, values=values, nodes=tuple(nodes))


def _run_passes(graph: Graph, passes: Mapping[str, Pass]) -> Graph:
    for name, run in passes.items():
        result = run(graph)
        graph = result.graph
        graph.verify()
        if config.debug_level() >= 1:
            for line in result.applied:
                _log.info("pass %s: %s", name, line)
            for line in result.declined:
                _log.info("pass %s declined: %s", name, line)
    return graph
