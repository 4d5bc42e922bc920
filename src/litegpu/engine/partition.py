"""Compiles a partition of the model and runs it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

import numpy.typing as npt

from litegpu import config
from litegpu.backends.base import Device
from litegpu.engine.budget import ConstantBudget
from litegpu.engine.choices import Choices
from litegpu.engine.compiled import CompiledPartition, constant_outputs
from litegpu.engine.fallback import reject, replacements
from litegpu.engine.layout import keeping
from litegpu.engine.placed import PlacedPartition
from litegpu.engine.selected import Selected, place
from litegpu.engine.states import expose_states
from litegpu.engine.target import DeviceTarget
from litegpu.engine.tuning import Tuner
from litegpu.errors import CompilationError, KernelError
from litegpu.graph import DType, Graph, Node, Value
from litegpu.host.private_files import Folder
from litegpu.kernels.selector import Fusions
from litegpu.numeric_policy import NumericPolicy
from litegpu.ops.base import Target, get
from litegpu.ops.common.bit_view import bit_view
from litegpu.ops.common.float_view import float_view
from litegpu.ops.common.types import is_quantized
from litegpu.ops.conv_2d import merged_values
from litegpu.ops.variables import resolve_variables
from litegpu.ops.while_loop import inline_graphs
from litegpu.passes import BEFORE_NORMALIZE, FUSIONS, PASSES, PassResult
from litegpu.passes.base import without_unused

_log = logging.getLogger("litegpu")


def compile_partition(
    graph: Graph,
    device: Device,
    policy: NumericPolicy,
    *,
    share_memory: bool = True,
    stage_boundary: bool = False,
    cache_dir: Folder | None = None,
    tuner: Tuner | None = None,
    precise: Collection[int] = (),
    fast_compile: bool = False,
) -> CompiledPartition:
    """Rewrite, lay out, lower and compile a graph of supported nodes.

    `policy` defines which values may be rounded to half. Without `share_memory`, each value has
    separate memory; `stage_boundary` has the same meaning as in layout.assign.

    `cache_dir` is the folder of compiled kernels (None: the default folder of the backend). `tuner`
    selects candidate kernels (None: selection by estimates). `precise` are values that must not be
    rounded to half, by their numbers in an earlier layout of the same graph. `fast_compile` has the
    same meaning as in Device.compilation. If the device rejects a kernel, litegpu replaces the
    kernel by another implementation.

    Raises CompilationError if there is no other implementation, or DeviceMemoryError.
    """
    graph, assigned = resolve_variables(inline_graphs(graph))
    constants = constant_outputs(graph)
    graph = replace(graph, outputs=tuple(v for v in graph.outputs if v not in constants))
    if policy.quantized == "float":
        graph = float_view(graph)
    graph, states = expose_states(graph)
    states = {**states, **assigned}
    target = DeviceTarget(device.info, policy, failures=device.failures)
    rejection: KernelError | None = None
    with device.compilation(cache_dir, fast_compile) as compilation:
        compilation.expect(len(graph.nodes))  # compilers start up before they have work
        while True:
            notes: list[str] = []
            rewritten, selected = _rewrite_and_place(graph, target, stage_boundary, precise, notes)
            used = {v for node in selected.layout.graph.nodes for v in node.operands}
            inputs = tuple(v for v in rewritten.inputs if v in used)
            ends = inputs, rewritten.outputs
            placed = PlacedPartition(
                *(device, selected, *ends, states, constants, share_memory), tuple(notes)
            )
            try:
                if tuner is None:
                    built = placed.build(Choices(), compilation)
                else:
                    built = tuner.build(placed, compilation)
            except CompilationError as error:
                if rejection is None:
                    raise
                raise rejection from error
            try:
                return placed.compile(built, compilation)
            except KernelError as error:
                if not reject(error, built, selected, device.failures):
                    raise
                rejection = error


def _rewrite_and_place(
    graph: Graph,
    target: DeviceTarget,
    stage_boundary: bool,
    precise: Collection[int],
    notes: list[str] | None = None,
) -> tuple[Graph, Selected]:
    """Rewrite a graph and lay it out; undo fusions for which that layout has no kernel.

    `notes` receives a line for each implementation that is not used because it failed before.
    """
    fusions = Fusions(target, set[int]())
    while True:
        rewritten = rewrite(keeping(graph, precise), target, fusions)
        padded_channels = target.info.half_lanes
        selected = place(rewritten, target, padded_channels, stage_boundary, precise)
        not_accepted = selected.not_accepted()
        undone = {merged for node in not_accepted for merged in merged_values(node)}
        if undone <= fusions.apart:  # nothing left to unfuse
            if notes is not None:
                notes += replacements((*fusions.failed, *selected.pairs(selected.nodes)))
            return rewritten, selected
        fusions.failed += selected.pairs(not_accepted)
        fusions.apart |= undone


def rewrite(graph: Graph, target: Target | None = None, fusions: Fusions | None = None) -> Graph:
    """Run all passes; ops normalize their nodes after the first group of passes.

    Without a `target`, the function omits passes that depend on the device. `fusions` restricts
    which nodes may be fused (None: all profitable fusions).
    """
    graph = _run_passes(bit_view(graph), BEFORE_NORMALIZE)
    graph = normalize(graph)
    graph = _run_passes(graph, PASSES)
    if target is None:
        return graph
    return _run_passes(graph, FUSIONS, fusions or Fusions(target))


def normalize(graph: Graph) -> Graph:
    """Let every op resolve the attributes of its nodes and replace the nodes by simpler ones."""
    values = dict(graph.values)
    fresh = iter(graph.fresh_ids())
    budget = ConstantBudget.of(graph)
    result_dtype = DType.FLOAT32

    def new_value(
        shape: tuple[int, ...],
        data: npt.NDArray[Any] | None = None,
        *,
        dtype: DType | None = None,
        precise: bool = False,
    ) -> int:
        v = next(fresh)
        if data is not None:
            budget.take(data.nbytes)
        inferred = result_dtype if data is None else DType(data.dtype.name)
        values[v] = Value(v, f"litegpu_{v}", shape, dtype or inferred, data, precise=precise)
        return v

    nodes: list[Node] = []
    for node in graph.nodes:
        result_dtype = graph.values[node.outputs[0]].dtype
        op = get(node.op)
        exact = op.exact if is_quantized(graph, node) else None
        nodes += (exact or op).normalize(graph, node, new_value)
    return replace(graph, values=values, nodes=tuple(nodes))


def _run_passes(
    graph: Graph, passes: Sequence[Callable[..., PassResult]], *arguments: Fusions
) -> Graph:
    graph = without_unused(graph)
    verified: Graph | None = None
    for run in passes:
        result = run(graph, *arguments)
        graph = result.graph
        if graph is not verified:
            graph.verify()
            verified = graph
        if config.debug_level() >= 1:
            for line in result.applied:
                _log.info("pass %s: %s", run.__name__, line)
            for line in result.declined:
                _log.info("pass %s declined: %s", run.__name__, line)
    return graph
