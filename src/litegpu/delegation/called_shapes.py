"""Checks which nodes of a model's graphs the GPU can run, with shapes that depend on callers.

A loop may carry a tensor that grows by a row in each iteration. A branch of an IF may receive a
tensor of another size at each invoke. The file states only one shape for a tensor whose shape
changes. Compiling kernels for each shape would take longer than running the model on the CPU.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Iterator, Mapping, Set
from dataclasses import replace

from litegpu.delegation.variables import Variables
from litegpu.graph import Graph, Value
from litegpu.graph.partition import sources, with_shapes
from litegpu.numeric_policy import QuantizedMode
from litegpu.ops.base import Shape
from litegpu.ops.common import support
from litegpu.ops.common.dynamic import UNKNOWN
from litegpu.ops.common.support import SupportCheck
from litegpu.ops.variables import VARIABLES, shared_values
from litegpu.runtime_abi.cpu_nodes import CpuNodes
from litegpu.runtime_abi.subgraphs import Call, Runs, Subgraphs

_SHARED = "Variables are on the GPU only if all nodes of all graphs with variables run on the GPU."

SlowLoops = Callable[[int, SupportCheck], Mapping[int, str]]


class GraphChecks:
    """The results of the support checks of a model's graphs; each graph is checked once."""

    def __init__(
        self,
        subgraphs: Subgraphs,
        quantized: QuantizedMode | None,
        slow_loops: SlowLoops,
        all_nodes: bool = True,
    ) -> None:
        """Check graphs as read from the runtime; for `quantized` see `check_support`.

        `slow_loops` returns the loops of a graph that stay on the CPU, with reasons. `all_nodes` is
        false if the options leave some nodes to the CPU.
        """
        self._all_nodes = all_nodes
        self._variables: list[Variables | None] = []
        self._slow_loops = slow_loops
        self._subgraphs = subgraphs
        self._quantized = quantized
        self._found = dict[int, SupportCheck]()
        self._started = set[int]()
        self._places = dict[Graph, set[int]]()
        self._shapes = dict[Graph, set[Shape]]()

    def of(self, context: int, applied: int = 0) -> SupportCheck:
        """Return the support check of a context's graph, after checking the graph's callers.

        `applied` is the context to which the delegate is currently applied, if different.
        """
        applied = applied or context
        if context not in self._found:
            self._started.add(context)
            graph = self._subgraphs.graph(context)
            late = {
                v
                for call in self._subgraphs.calls(context)
                for v in self._late(call, graph, applied)
            }
            graph = _without_shapes(graph, late)
            with self._subgraphs.opened(context, applied):
                cpu = CpuNodes(context, graph.nodes)
            try:
                self._found[context] = self._best(context, graph, cpu)
            finally:
                cpu.close()
        return self._found[context]

    def _best(self, context: int, graph: Graph, cpu: CpuNodes) -> SupportCheck:
        """Check a graph; if the file has input dimensions of unknown size, also with likely sizes.

        The result is the check with the fewest unsupported nodes.
        """
        stated = self._check(context, graph, cpu)
        best: SupportCheck | None = None
        for each in likely_shapes(graph):
            found = self._check(context, each, cpu)
            if best is None or len(found.reasons) < len(best.reasons):
                best = found
            if not best.reasons:
                break
        if best is None:
            return stated
        return stated if len(stated.reasons) < len(best.reasons) else replace(best, stated=stated)

    def _check(self, context: int, graph: Graph, cpu: CpuNodes) -> SupportCheck:
        found = support.check_support(graph, self._quantized, cpu_shapes=cpu.shapes)
        on_cpu = dict(self._slow_loops(context, found))
        nodes = [node.index for node in graph.nodes if node.op in VARIABLES]
        if nodes and self.variables() is None:
            on_cpu.update(dict.fromkeys(nodes, _SHARED))
        if on_cpu:
            found = support.check_support(graph, self._quantized, on_cpu, cpu.shapes)
        return found

    def variables(self) -> Variables | None:
        """Return the model's variables; None if a node on the CPU uses any variable.

        Variables run on the GPU only if the GPU runs the whole of each graph that uses any.
        """
        if not self._variables:
            graphs = dict(self._subgraphs.with_nodes(VARIABLES))
            runs = {context: self._subgraphs.runs(context) for context in graphs}
            invoked = {c: graph for c, graph in graphs.items() if runs[c] is not Runs.ONCE}
            whole = self._all_nodes and all(
                runs[c] is Runs.INVOKED and self._is_whole(c, graph) for c, graph in invoked.items()
            )
            values = shared_values(graphs.values()) if whole else None
            self._variables.append(None if values is None else Variables(values))
        return self._variables[0]

    def _is_whole(self, context: int, graph: Graph) -> bool:
        found = support.check_support(graph, self._quantized)
        return not found.reasons and not self._slow_loops(context, found)

    def leave_variables(self, error: BaseException) -> None:
        """Assign all variables to the CPU: graphs with variables then do not run on the GPU."""
        for found in self._variables:
            if found is not None:
                found.fail(error)
        self._variables = [None]

    def done(self, context: int) -> None:
        """Discard all results once the runtime has applied the delegate to all graphs."""
        if self._subgraphs.done(context):
            self._variables.clear()
            for found in (self._found, self._places, self._shapes):
                found.clear()

    def _late(self, call: Call, graph: Graph, applied: int) -> Collection[int]:
        """Return the inputs of a called graph whose shapes are known only when the model runs."""
        places = set[int]()
        if call.body is not None and call.body.outputs:
            places |= self._changing(call.body)
        elif call.body is not None and not self._results(call.body) <= self._given(call):
            places.update(range(len(call.node.inputs)))
        if call.context in self._found or call.context not in self._started:  # avoids recursion
            values = self.of(call.context, applied).graph.values
            given = call.node.inputs[1:] if call.node.op == "IF" else call.node.inputs
            late = (v in values and values[v].shape == UNKNOWN for v in given)
            places.update(itertools.compress(itertools.count(), late))
        if call.called is not None:
            return [v for place, v in enumerate(call.called.inputs) if place in places]
        # Only the file has the order of a graph's inputs.
        return [v for v in sources(graph) if places and graph.values[v].shape != ()]

    def _changing(self, body: Graph) -> Set[int]:
        """Return the positions of the loop's values whose shapes change between iterations."""
        if body not in self._places:
            places, before = set[int](), -1
            while len(places) > before:
                before = len(places)
                late = {v for place, v in enumerate(body.inputs) if place in places}
                values = support.check_support(
                    _without_shapes(body, late), self._quantized
                ).graph.values
                for place, ends in enumerate(zip(body.inputs, body.outputs, strict=False)):
                    shapes = {values[v].shape if v in values else UNKNOWN for v in ends}
                    if len(shapes) > 1:
                        places.add(place)
            self._places[body] = places
        return self._places[body]

    def _results(self, body: Graph) -> Set[Shape]:
        """Return the shapes of the tensors that a loop's body computes and does not read itself."""
        if body not in self._shapes:
            values = support.check_support(body, self._quantized).graph.values
            read = {v for node in body.nodes for v in node.inputs}
            results = (node.outputs[0] for node in body.nodes if len(node.outputs) == 1)
            self._shapes[body] = {values[v].shape for v in results if v in values and v not in read}
        return self._shapes[body]

    def _given(self, call: Call) -> Set[Shape]:
        """Return the shapes of the inputs of a node that calls a graph."""
        values = self._subgraphs.graph(call.context).values
        return {values[v].shape for v in call.node.inputs if v in values}


_LIKELY, _LONG = 128, 16000
"""The assumed size of image and sequence dimensions whose size is unknown (-1) in the file, and
that of a single such dimension if 128 is too short: a second of audio.
"""


def likely_shapes(graph: Graph) -> Iterator[Graph]:
    """Yield the graph with larger sizes for input dimensions of unknown size, most likely first.

    The file stores 1 for an unknown size, which is likely only for the batch: the first of several
    dimensions. The function yields no graph if no other size is unknown, or if the inputs have been
    resized.
    """
    values = (graph.values[v] for v in sources(graph))
    inputs = [value for value in values if value.signature and value.shape != UNKNOWN]
    if any(value.shape[axis] != 1 for value in inputs for axis in _open_axes(value, 0)):
        return
    if not any(_open_axes(value, 1) for value in inputs):
        return
    for likely, first in itertools.product((_LIKELY, _LONG), (1, 0)):
        axes = [_open_axes(value, first) for value in inputs]
        if likely == _LIKELY or max(map(len, axes)) < 2:
            both = zip(inputs, axes, strict=True)
            yield with_shapes(graph, [(v.id, _with_size(v.shape, a, likely)) for v, a in both])


def _open_axes(value: Value, first: int) -> list[int]:
    """Return the axes of unknown size; `first` is the first axis, except for a single axis."""
    axes = enumerate(value.signature)
    return [axis for axis, size in axes if size == -1 and axis >= min(first, len(value.shape) - 1)]


def _with_size(shape: Shape, axes: Collection[int], size: int) -> Shape:
    return tuple(size if axis in axes else each for axis, each in enumerate(shape))


def _without_shapes(graph: Graph, values: Collection[int]) -> Graph:
    """Return a graph in which the shapes of some values are known only when the model runs."""
    unknown = {v: replace(graph.values[v], shape=UNKNOWN) for v in values if v in graph.values}
    return replace(graph, values={**graph.values, **unknown}) if unknown else graph
