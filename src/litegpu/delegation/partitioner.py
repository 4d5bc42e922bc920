"""Selects the nodes of a graph to delegate, by the GPU's support and by the options."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from litegpu.backends.base import DeviceInfo
from litegpu.delegation.cost_model import (
    CostModel,
    CostPolicy,
    NodeCountPolicy,
    NothingPolicy,
    RequiredNodes,
)
from litegpu.delegation.report import LeftOut, QuantizedSupport, rejected_nodes
from litegpu.graph import Graph
from litegpu.graph.partition import (
    Candidates,
    PartitionChoice,
    PartitionPolicy,
    Preview,
    Subset,
    choose,
)
from litegpu.numeric_policy import QuantizedMode
from litegpu.ops.common.fold import is_folded
from litegpu.ops.common.support import SupportCheck, check_support
from litegpu.ops.common.types import is_quantized
from litegpu.ops.common.work import states_of, variables_of
from litegpu.ops.while_loop import runs_in_batches
from litegpu.options import QUANTIZED_MODES, GpuDelegateOptions
from litegpu.runtime_abi.opcodes import CUSTOM, code_of
from litegpu.runtime_abi.subgraphs import Runs


class Selection:
    """The nodes that can be delegated, and the policy that selects partitions of these nodes."""

    def __init__(
        self,
        support: SupportCheck,
        options: GpuDelegateOptions,
        device: DeviceInfo,
        threads: int,
        preview: Preview,
        runs: Runs = Runs.INVOKED,
        requested: bool = False,
    ) -> None:
        """Select from a checked graph; `runs` is how it is started, `threads` the CPU thread count.

        A graph that another graph calls is delegated only if that saves time, even if the GPU
        supports all its nodes. The calling graph runs on the CPU, and copies data at each call.
        `requested` is true if the user has named the backend or the device.
        """
        self.support = support
        graph = support.graph
        self.batched = {
            node.index
            for node in graph.nodes
            if node.index not in support.reasons and runs_in_batches(graph, node)
        }
        """The loops whose number of iterations depends on data: each is a separate partition."""
        self.preview = _separated(preview, self.batched)
        able = {node.index for node in graph.nodes} - set(support.reasons)
        nodes = range(options.first_delegate_node_index, options.last_delegate_node_index + 1)
        self.supported = {index for index in able if index in nodes}
        self._outside = tuple(sorted(able - self.supported))
        self._folded = {n.index for n in graph.nodes if is_folded(n, graph.values)}
        self._states = {node.index: states for node in graph.nodes if (states := states_of(node))}
        self._same = variables_of(graph)
        self.costs = CostModel(graph, device.backend, threads, self._folded)
        least = options.min_nodes_per_partition
        self._called = runs is not Runs.INVOKED
        policy: PartitionPolicy
        if least is not None:
            policy = NodeCountPolicy(least)
        elif runs is Runs.ONCE:
            policy = NothingPolicy(
                "The graph runs only once, and compiling it takes longer than running it on the "
                "CPU."
            )
        else:
            policy = CostPolicy(self.costs, device.software and not self._called, requested)
        # The runtime has no kernels for most custom operations: without a delegate that runs them
        # it rejects the model.
        custom = [node.index for node in graph.nodes if code_of(node.op) == CUSTOM]
        self._policy = RequiredNodes(policy, custom)
        most = options.max_delegated_partitions
        self._limit = self._policy.limit if most is None else max(most, 1)

    def choose(self, more: Iterable[int] = (), limit: int | None = None) -> PartitionChoice:
        """Select partitions, as if the nodes `more` were supported, too, or with another limit."""
        supported = self.supported.union(more)
        candidates = Candidates(
            *(self.support.graph, supported, self._folded & supported),
            *(self._states, self._same, self._called),
        )
        return choose(
            candidates, self.preview, self._policy, self._limit if limit is None else limit
        )

    def give_up(self, nodes: Iterable[int]) -> None:
        """Exclude nodes from delegation because the device rejects their kernels."""
        self.supported -= set(nodes)

    def left_out(self, choice: PartitionChoice) -> tuple[LeftOut, ...]:
        """Return the supported nodes that a choice does not delegate, for the report."""
        chosen = nodes_of((*choice.delegated, *(subset for subset, _ in choice.left)))
        constants = tuple(sorted((self._folded & self.supported) - chosen))
        return (
            *(LeftOut(s.nodes, reason, self.costs.estimate(s)) for s, reason in choice.left),
            *([LeftOut(constants, _CONSTANTS)] if constants else []),
            *([LeftOut(self._outside, _OUTSIDE)] if self._outside else []),
        )


def _separated(preview: Preview, alone: Collection[int]) -> Preview:
    """Return a preview in which each node of `alone` is a separate partition."""
    if not alone:
        return preview

    def found(nodes: Sequence[int]) -> list[Subset]:
        subsets = [subset for index in nodes if index in alone for subset in preview([index])]
        others = [index for index in nodes if index not in alone]
        return subsets + (preview(others) if others else [])

    return found


_CONSTANTS = "The results of these nodes are constant, and no partition needs them."
_OUTSIDE = "These nodes are outside of first_delegate_node_index to last_delegate_node_index."


def slow_loops(
    support: SupportCheck, options: GpuDelegateOptions, device: DeviceInfo, threads: int
) -> Mapping[int, str]:
    """Return the loops of a checked graph whose unrolling does not pay off, with reasons."""
    loops = any(node.graphs and node.index not in support.reasons for node in support.graph.nodes)
    if not loops or options.min_nodes_per_partition is not None:
        return {}
    costs = CostModel(support.graph, device.backend, threads)
    return CostPolicy(costs, device.software).slow_loops()


def nodes_of(subsets: Collection[Subset]) -> set[int]:
    """Return the numbers of the nodes in all subsets."""
    return {index for subset in subsets for index in subset.nodes}


def quantized_support(
    graph: Graph, support: SupportCheck, chosen: QuantizedMode | None
) -> tuple[QuantizedSupport, ...]:
    """Return the nodes that the GPU could run in each quantized mode, the selected mode first.

    `support` is the support check with the selected mode. Returns () for a graph without quantized
    tensors.
    """
    if not any(is_quantized(graph, node) for node in graph.nodes):
        return ()
    modes = sorted(QUANTIZED_MODES, key=lambda mode: mode != chosen)
    found = []
    for mode in modes:
        reasons = (support if mode == chosen else check_support(graph, mode)).reasons
        rejected = rejected_nodes(graph, reasons)
        found.append(QuantizedSupport(mode, len(graph.nodes) - len(rejected), rejected))
    return tuple(found)
