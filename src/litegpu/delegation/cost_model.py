"""Estimates the time that a partition saves and costs, before compilation.

docs/decisions/0013-partition-cost-model.md lists the measurements behind the constants.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from litegpu.graph import Graph
from litegpu.graph.partition import NO_LIMIT, PartitionPolicy, Subset
from litegpu.ops.base import facts_of
from litegpu.ops.common.work import Work, states_of, tensor_bytes, work_of
from litegpu.ops.while_loop import WHILE
from litegpu.wording import shown_size, shown_time


@dataclass(frozen=True, slots=True)
class Rates:
    """The costs of running a partition with one GPU API, in addition to the arithmetic.

    `round_trip` is the time in seconds for the runtime to invoke an empty partition. `launch` is
    the time in seconds of a kernel launch. `copied` is the copy rate between the runtime's tensors
    and the GPU, in bytes per second.
    """

    round_trip: float
    launch: float
    copied: float


RATES: Mapping[str, Rates] = {
    "cuda": Rates(28e-6, 1.7e-6, 17e9),
    "opencl": Rates(40e-6, 8.5e-6, 10e9),
    "webgpu": Rates(100e-6, 10e-6, 5e9),
    "opengl": Rates(60e-6, 8.5e-6, 8e9),
}
"""The rates of each backend."""

_CPU_FLOPS = 100e9
"""Floating-point operations per second of one thread in the runtime's fastest kernels."""
_CPU_NODE = 0.1e-6
"""The runtime's overhead per node, in seconds."""
_CPU_INNER_NODE = 0.4e-6
"""Overhead per node of a loop's condition or body, including copies, in seconds per iteration."""
_LOOP_MARGIN = 2.0
"""A loop runs on the CPU if its estimated GPU time is this many times its CPU time."""
_WHOLE_RATIO, _WHOLE_SECONDS = 1.05, 20e-6
"""A whole graph is delegated if its estimated GPU time is at most CPU time * ratio + seconds.

The estimates for small graphs are not more precise than this tolerance.
"""
_TRIP_RATIO, _MAX_BATCHED = 10, 16
"""Duration of a batch of loop iterations, in round trips; maximum iterations of a batch."""
_THREADS_HELP = 0.75
"""The CPU is estimated to be threads ** 0.75 times as fast as one thread."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Estimated seconds per invoke of a partition's nodes, on the CPU and on the GPU.

    `copied_bytes` is the number of bytes copied to and from the GPU, which `gpu_seconds` includes.
    """

    cpu_seconds: float
    gpu_seconds: float
    copied_bytes: int

    @property
    def saved_seconds(self) -> float:
        """The seconds that the GPU saves per invoke; negative if the GPU is slower."""
        return self.cpu_seconds - self.gpu_seconds


@dataclass(frozen=True, slots=True)
class Split:
    """The transfer cost per invoke of a graph that runs partly on the CPU, partly on the GPU.

    `copied_bytes` counts all inputs and outputs of partitions, including the inputs and outputs of
    the model. `seconds` is the time for all copies and round trips.
    """

    round_trips: int
    copied_bytes: int
    seconds: float


class CostModel:
    """Estimates for the partitions of one checked graph."""

    def __init__(
        self, graph: Graph, backend: str, threads: int = 1, folded: Collection[int] = ()
    ) -> None:
        """Estimate for a GPU of `backend` and a CPU that runs `threads` threads.

        The nodes in `folded` are constant-folded, so they need no kernel.
        """
        self._graph = graph
        self._rates = RATES[backend]
        self._work: dict[int, Work] = {}
        self._folded = frozenset(folded)
        self._nodes = {node.index: node for node in graph.nodes}
        self._speed: float = max(threads, 1) ** _THREADS_HELP

    @property
    def launch_seconds(self) -> float:
        """The minimum time of one kernel, in seconds."""
        return self._rates.launch

    def cpu_seconds(self, nodes: Iterable[int]) -> float:
        """Return the estimated seconds of some nodes on the CPU."""
        return sum(self._cpu_node(index) for index in nodes)

    def _work_of(self, index: int) -> Work:
        if index not in self._work:
            work = work_of(self._graph, self._nodes[index])
            self._work[index] = replace(work, launches=0) if index in self._folded else work
        return self._work[index]

    def _cpu_node(self, index: int) -> float:
        work = self._work_of(index)
        rate = facts_of(self._nodes[index].op).cpu_bytes_per_second
        computing = max(work.flops / _CPU_FLOPS, work.nbytes / rate) / self._speed
        return computing + _CPU_NODE + work.inner_nodes * _CPU_INNER_NODE

    def slow_loops(self) -> dict[int, str]:
        """Return the loops that are much faster on the CPU, with reasons.

        An iteration of a loop depends on the previous iteration, so the kernels run in sequence and
        the GPU is mostly idle.
        """
        found = {}
        for index in (i for i, node in self._nodes.items() if node.op == WHILE and node.graphs):
            work = self._work_of(index)
            gpu, cpu = work.launches * self._rates.launch, self._cpu_node(index)
            if work.inner_nodes and gpu > _LOOP_MARGIN * cpu:
                found[index] = (
                    f"The partition would take about {shown_time(gpu)} on the GPU, in "
                    f"{work.launches} dependent kernels, and {shown_time(cpu)} on the CPU "
                    "(min_nodes_per_partition overrides this)."
                )
        return found

    def passes(self, index: int) -> int:
        """Return the number of iterations in a batch: the host reads the condition once per batch.

        A batch should take long compared to the round trip, but waste little time after the loop's
        end. A loop that ends after one iteration must not be clearly slower than on the CPU.
        """
        pass_seconds = self._work_of(index).launches * self._rates.launch
        trip = self._rates.round_trip
        wanted = math.ceil(_TRIP_RATIO * trip / pass_seconds)
        wasted = _WHOLE_RATIO * self._cpu_node(index) + _WHOLE_SECONDS - 2 * trip
        return max(min(wanted, int(wasted / pass_seconds), _MAX_BATCHED), 1)

    def estimate(self, subset: Subset) -> Estimate:
        """Return the estimated cost of a partition on the CPU and on the GPU."""
        launches = max(sum(self._work_of(index).launches for index in subset.nodes), 1)
        copied = sum(tensor_bytes(self._graph, self._transferred(subset)))
        rates = self._rates
        gpu = rates.round_trip + launches * rates.launch + copied / rates.copied
        return Estimate(self.cpu_seconds(subset.nodes), gpu, copied)

    def _transferred(self, subset: Subset) -> list[int]:
        """Return the tensors to copy: inputs, outputs, and states (copied in both directions)."""
        values = self._graph.values
        states = [v for index in subset.nodes for v in states_of(self._nodes[index])]
        copied = (*subset.inputs, *subset.outputs, *states)
        return [v for v in copied if v in values and not values[v].is_constant]

    def invoke_seconds(self, subsets: Collection[Subset]) -> float:
        """Return the time of an invoke with these partitions and the other nodes on the CPU."""
        delegated = {index for subset in subsets for index in subset.nodes}
        rest = self.cpu_seconds(index for index in self._nodes if index not in delegated)
        return rest + sum(self.estimate(subset).gpu_seconds for subset in subsets)

    def split(self, subsets: Collection[Subset]) -> Split | None:
        """Return the cost of transfers; None if the GPU or the CPU runs all nodes."""
        if not subsets or {len(self._nodes)} == {len(subset.nodes) for subset in subsets}:
            return None
        copied = sum(self.estimate(subset).copied_bytes for subset in subsets)
        seconds = len(subsets) * self._rates.round_trip + copied / self._rates.copied
        return Split(len(subsets), copied, seconds)


class CostPolicy:
    """Delegates the partitions that are faster on the GPU, in descending order of saved time.

    A software device never saves time, so there the policy accepts each partition (for tests) and
    prefers those with the most work. A graph that the GPU supports completely is delegated unless
    it would be clearly slower, and always if its device was `requested`.
    """

    def __init__(self, costs: CostModel, software: bool, requested: bool = False) -> None:
        self._costs = costs
        self._software = software
        self._requested = requested
        self.limit = 1 if software else NO_LIMIT

    def benefit(self, subset: Subset) -> float:
        """Return the seconds saved per invoke; on a software device, the CPU's seconds."""
        found = self._costs.estimate(subset)
        return found.cpu_seconds if self._software else found.saved_seconds

    def slow_loops(self) -> dict[int, str]:
        """Return the loops whose unrolling does not pay off, with reasons."""
        return {} if self._software else self._costs.slow_loops()

    def reason_against(self, subset: Subset) -> str:
        """Return why delegating a partition does not pay off, or an empty text."""
        found = self._costs.estimate(subset)
        if self._software or found.saved_seconds > 0:
            return ""
        return (
            f"The partition would take about {shown_time(found.gpu_seconds)} on the GPU, with "
            f"{shown_size(found.copied_bytes)} copied, and {shown_time(found.cpu_seconds)} on the "
            "CPU (min_nodes_per_partition overrides this)."
        )

    def takes_whole(self, subsets: Sequence[Subset]) -> bool:
        """Return whether a whole graph is not clearly slower on the GPU."""
        if self._software or self._requested:
            return True
        found = [self._costs.estimate(subset) for subset in subsets]
        gpu, cpu = sum(e.gpu_seconds for e in found), sum(e.cpu_seconds for e in found)
        return gpu <= _WHOLE_RATIO * cpu + _WHOLE_SECONDS


class NodeCountPolicy:
    """Delegates partitions of at least `least` nodes, in descending order of node count."""

    limit = NO_LIMIT

    def __init__(self, least: int) -> None:
        self._least = least

    def benefit(self, subset: Subset) -> float:
        """Return the number of nodes."""
        return len(subset.nodes)

    def reason_against(self, subset: Subset) -> str:
        """Return why a partition is too small, or an empty text."""
        if len(subset.nodes) >= self._least:
            return ""
        return f"The partition has fewer nodes than min_nodes_per_partition={self._least}."

    def takes_whole(self, subsets: Sequence[Subset]) -> bool:
        """Return True: a whole graph is never too small."""
        return True


class NothingPolicy:
    """Delegates no partition, with a fixed reason for the report."""

    limit = NO_LIMIT

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def benefit(self, subset: Subset) -> float:
        """Return 0 for all partitions."""
        return 0.0

    def reason_against(self, subset: Subset) -> str:
        """Return the policy's reason."""
        return self._reason

    def takes_whole(self, subsets: Sequence[Subset]) -> bool:
        """Return False: no graph is delegated."""
        return False


class RequiredNodes:
    """Wraps another policy, but always delegates partitions with nodes that have no CPU kernel."""

    def __init__(self, policy: PartitionPolicy, nodes: Collection[int]) -> None:
        self._policy = policy
        self._nodes = frozenset(nodes)

    @property
    def limit(self) -> int:
        """The maximum number of partitions of the wrapped policy."""
        return self._policy.limit

    def benefit(self, subset: Subset) -> float:
        """Return infinity for a partition with nodes without a CPU kernel."""
        return math.inf if self._nodes.intersection(subset.nodes) else self._policy.benefit(subset)

    def reason_against(self, subset: Subset) -> str:
        """Return an empty text: this policy accepts every partition of enough nodes."""
        return "" if self._nodes.intersection(subset.nodes) else self._policy.reason_against(subset)

    def takes_whole(self, subsets: Sequence[Subset]) -> bool:
        """Return True if a node has no CPU kernel, else the wrapped policy's result."""
        required = any(self._nodes.intersection(subset.nodes) for subset in subsets)
        return required or self._policy.takes_whole(subsets)
