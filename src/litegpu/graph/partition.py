"""Chooses which nodes run on the GPU, and extracts partitions from the graph."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Protocol

from litegpu.graph.ir import ABSENT, Graph, Node


@dataclass(frozen=True, slots=True)
class Subset:
    """Nodes of a partition that the runtime would create, with its input and output tensors."""

    nodes: tuple[int, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


Preview = Callable[[Sequence[int]], list[Subset]]
"""A function that returns the partitions that the runtime would create if it delegated these nodes.
"""


NO_LIMIT = sys.maxsize
"""A limit that permits any number of partitions."""


class PartitionPolicy(Protocol):
    """Selects the partitions to delegate if the CPU and the GPU each run a part of a graph."""

    @property
    def limit(self) -> int:
        """The default for the maximum number of partitions to delegate."""

    def benefit(self, subset: Subset) -> float:
        """Return a number that is larger for the better of two partitions.

        The number is infinite for a partition that the CPU cannot run: such a partition is always
        delegated, even beyond the limit.
        """

    def reason_against(self, subset: Subset) -> str:
        """Return why a partition should stay on the CPU, or an empty text."""

    def takes_whole(self, subsets: Sequence[Subset]) -> bool:
        """Return whether to delegate all partitions of a graph that the GPU can run completely."""


@dataclass(frozen=True, slots=True)
class PartitionChoice:
    """The subsets to delegate, best first, and the subsets that stay on the CPU, with reasons."""

    delegated: tuple[Subset, ...] = ()
    left: tuple[tuple[Subset, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Candidates:
    """The nodes among which partitions are chosen.

    `folded` are the supported nodes that need no kernel, because their results are constants.
    `states` maps each node to the inputs that the node updates in place. `same` maps a value to
    another value that represents the same state. `called` states that other graphs call this graph.
    A called graph is delegated as a whole only if that saves time.
    """

    graph: Graph
    supported: Collection[int]
    folded: Collection[int] = ()
    states: Mapping[int, Collection[int]] = field(default_factory=dict)
    same: Mapping[int, int] = field(default_factory=dict)
    called: bool = False


def choose(
    candidates: Candidates, preview: Preview, policy: PartitionPolicy, max_partitions: int
) -> PartitionChoice:
    """Select the partitions to delegate: the whole graph if possible, else the best partitions.

    Folded nodes join partitions, so that no folded node separates two partitions. A folded node
    never forms a partition alone. If the policy accepts the whole graph, the number of partitions
    is not limited, unless other graphs call the graph.
    """
    graph, folded = candidates.graph, candidates.folded
    plan = [node.index for node in graph.nodes]
    real = set(candidates.supported).difference(folded)
    whole: tuple[Subset, ...] = ()
    if real and len(real) + len(folded) == len(plan) and not candidates.called:
        whole = tuple(s for s in preview(plan) if real & set(s.nodes))
    if whole and policy.takes_whole(whole):
        choice = PartitionChoice(whole)
    else:
        choice = _best(candidates, real, preview, policy, max_partitions)
    if len(choice.delegated) != 1 or len(choice.delegated[0].nodes) < len(plan):
        choice = _in_order(candidates, choice)
    return choice


def _best(
    candidates: Candidates,
    real: Collection[int],
    preview: Preview,
    policy: PartitionPolicy,
    limit: int,
) -> PartitionChoice:
    """Remove nodes until the policy accepts all partitions and their number is within the limit."""
    left: list[tuple[Subset, str]] = []
    remaining = set(real)
    while remaining:
        found = _sorted(_fewest(candidates, remaining, preview), policy)
        declined = [
            (subset, reason) for subset in found if (reason := policy.reason_against(subset))
        ]
        if not declined:
            # Without these nodes the runtime may join other partitions, so this comes last.
            over = [subset for subset in found[limit:] if policy.benefit(subset) < math.inf]
            declined = [(subset, _beyond(limit)) for subset in over]
        if not declined:
            return PartitionChoice(found, _without(left, found))
        left += declined
        remaining -= {index for subset, _ in declined for index in subset.nodes}
    return PartitionChoice((), _without(left, ()))


def _fewest(candidates: Candidates, real: Set[int], preview: Preview) -> list[Subset]:
    """Return the fewest partitions into which some nodes and added folded nodes can be divided."""
    plan = [node.index for node in candidates.graph.nodes]
    found = [
        _cut(plan, real, folded, preview) for folded in dict.fromkeys(_joining(candidates, real))
    ]
    return min(found, key=len)


def _cut(plan: Sequence[int], real: Set[int], folded: Set[int], preview: Preview) -> list[Subset]:
    """Return partitions of the nodes `real` and `folded` that do not have only folded nodes."""
    while True:
        found = preview([index for index in plan if index in real or index in folded])
        alone = {index for s in found if real.isdisjoint(s.nodes) for index in s.nodes}
        if not alone:
            return found
        folded = folded - alone


def _without(
    left: Iterable[tuple[Subset, str]], delegated: Iterable[Subset]
) -> tuple[tuple[Subset, str], ...]:
    """Return the subsets left to the CPU, without folded nodes that a delegated partition includes.

    A node belongs to exactly one of the subsets.
    """
    seen = {index for subset in delegated for index in subset.nodes}
    remaining = []
    for subset, reason in left:
        nodes = tuple(index for index in subset.nodes if index not in seen)
        seen.update(nodes)
        remaining.append((replace(subset, nodes=nodes), reason))
    return tuple(remaining)


def _sorted(subsets: Iterable[Subset], policy: PartitionPolicy) -> tuple[Subset, ...]:
    return tuple(sorted(subsets, key=lambda s: (-policy.benefit(s), -len(s.nodes), s.nodes)))


def _beyond(limit: int) -> str:
    return (
        f"Other partitions, which save more time, reach the limit max_delegated_partitions={limit}."
    )


def _in_order(candidates: Candidates, choice: PartitionChoice) -> PartitionChoice:
    """Delegate nothing if the runtime might run nodes that share a state in the wrong order.

    The runtime ignores states when it groups nodes into as few partitions as possible. Two nodes
    run in the correct order if one reads the other's results, or if both are in one partition.
    """
    graph, inside = candidates.graph, dict[int, int]()
    for number, subset in enumerate(choice.delegated):
        inside.update(dict.fromkeys(subset.nodes, number))
    places = {node.index: place for place, node in enumerate(graph.nodes)}
    same, states = candidates.same, candidates.states
    changed = {same.get(v, v) for found in states.values() for v in found}
    variables = {v for v, value in graph.values.items() if value.is_variable}
    shared: dict[int, list[Node]] = {}
    for node in graph.nodes if inside else ():
        for v in dict.fromkeys(same.get(v, v) for v in node.inputs):
            if v in changed or v in variables:
                shared.setdefault(v, []).append(node)
    for v, nodes in shared.items():
        changes = {
            node.index
            for node in nodes
            if v in variables or v in {same.get(each, each) for each in states.get(node.index, ())}
        }
        for first, second in _ordered(nodes, changes):
            together = inside.get(first.index, -1) == inside.get(second.index, -2)
            if not together and not _needs(graph, second, first, places):
                reason = (
                    f"Nodes {first.index} and {second.index} share the state tensor {v}, so a "
                    "split of the graph might change the order in which the nodes run."
                )
                left = tuple((subset, reason) for subset in choice.delegated)
                return PartitionChoice((), (*choice.left, *left))
    return choice


def _ordered(nodes: Iterable[Node], changes: Collection[int]) -> Iterator[tuple[Node, Node]]:
    """Yield the pairs of nodes whose order is fixed because both use the same state."""
    last, readers = list[Node](), list[Node]()
    for node in nodes:
        if node.index in changes:
            yield from ((each, node) for each in readers or last)
            last, readers = [node], []
        else:
            yield from ((each, node) for each in last)
            readers.append(node)


_FURTHEST = 1024
"""Maximum number of nodes between two nodes to search for a path between them."""


def _needs(graph: Graph, node: Node, other: Node, places: Mapping[int, int]) -> bool:
    """Whether a node depends on an earlier node's results; False if the search is too long."""
    written, start = set(other.outputs), places[other.index] + 1
    for between in graph.nodes[start : min(places[node.index] + 1, start + _FURTHEST)]:
        if written.intersection(between.inputs):
            if between is node:
                return True
            written.update(between.outputs)
    return False


def _joining(candidates: Candidates, real: Set[int]) -> Iterator[frozenset[int]]:
    """Yield sets of folded nodes that may be added to the nodes `real`, the preferred set first.

    At each invoke, a partition downloads the results that the CPU reads. The first set therefore
    leaves out folded nodes whose large results the CPU reads. The second set has all folded nodes.
    Folded nodes have no computed inputs, so the runtime might start a partition too early because
    of them. The third set therefore has only folded nodes of the first set that depend on nodes in
    `real`. The last set is empty.
    """
    graph, folded = candidates.graph, candidates.folded
    small, outside = set[int](), set[int]()
    for node in reversed(graph.nodes):
        if node.index in folded and all(
            v not in outside or _is_small(graph, v) for v in node.outputs
        ):
            small.add(node.index)
        elif node.index not in real:
            outside.update(node.inputs)
    yield frozenset(small)
    yield frozenset(folded)
    late, computed = set[int](), set[int]()
    for node in graph.nodes:
        if node.index in real or not computed.isdisjoint(node.inputs):
            computed.update(node.outputs)
            late.add(node.index)
    yield frozenset(small & late)
    yield frozenset()


_SMALL_BYTES = 1 << 16
"""Number of bytes whose copy takes about as long as one additional node in the runtime."""


def _is_small(graph: Graph, value: int) -> bool:
    return graph.values[value].elements * 4 <= _SMALL_BYTES


def extract(graph: Graph, subset: Subset) -> Graph:
    """Extract a subset from the graph; constants are not inputs of the result.

    The result includes nodes outside of the subset that compute these constants, because the
    constants may change with the shapes.
    """
    wanted, used, nodes = set(subset.nodes), set[int](), []
    for node in reversed(graph.nodes):
        makes = [v for v in node.outputs if v in used and graph.values[v].is_constant]
        if node.index in wanted or makes:
            used.update(v for v in (*node.inputs, *node.outputs) if v != ABSENT)
            nodes.append(node)
    values = {v: graph.values[v] for v in used}
    inputs = tuple(v for v in subset.inputs if v in values and not values[v].is_constant)
    produced = {v for node in nodes for v in node.outputs}
    outputs = tuple(v for v in subset.outputs if v in produced)
    return Graph(values, tuple(reversed(nodes)), inputs, outputs)


def exclusive_io(graph: Graph, subset: Subset) -> frozenset[int]:
    """Return the inputs and outputs of a subset that no other node reads or writes.

    The returned values are inputs and outputs of the model.
    """
    own, inside, outside = set(subset.nodes), set[int](), set[int]()
    for node in graph.nodes:
        touched = inside if node.index in own else outside
        touched.update(node.inputs, node.outputs)
    weights = {v for v in subset.inputs if graph.values[v].is_constant}
    ends = {*subset.inputs, *subset.outputs} - weights
    return frozenset(ends.intersection(inside - outside))


def sources(graph: Graph) -> tuple[int, ...]:
    """Return the values that no node computes, including values of which only the shape is read."""
    written = {v for node in graph.nodes for v in node.outputs}
    read = dict.fromkeys(v for node in graph.nodes for v in node.inputs if v != ABSENT)
    return tuple(v for v in read if v not in written and not graph.values[v].is_constant)


def with_shapes(graph: Graph, shapes: Iterable[tuple[int, tuple[int, ...]]]) -> Graph:
    """Return the graph with other shapes for some of its values."""
    changed = {v: replace(graph.values[v], shape=shape) for v, shape in shapes}
    return replace(graph, values={**graph.values, **changed})
