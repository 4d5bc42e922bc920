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
    """Nodes that the runtime would replace by one, and the tensors that enter and leave them."""

    nodes: tuple[int, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


Preview = Callable[[Sequence[int]], list[Subset]]
"""Asks the runtime into which partitions it would divide these nodes if they were delegated."""


NO_LIMIT = sys.maxsize
"""A limit that permits any number of partitions."""


class PartitionPolicy(Protocol):
    """Decides which partitions to delegate if a graph is shared between CPU and GPU."""

    @property
    def limit(self) -> int:
        """Maximum number of partitions to delegate, unless a user sets it."""

    def benefit(self, subset: Subset) -> float:
        """Return a number that is larger for the better of two partitions.

        It is infinite for a partition that the CPU cannot run: that is delegated beyond any limit.
        """

    def reason_against(self, subset: Subset) -> str:
        """Return why a partition should stay on the CPU, or an empty text."""

    def takes_whole(self, subsets: Sequence[Subset]) -> bool:
        """Return whether to delegate a graph, all of which the GPU can run, in these partitions."""


@dataclass(frozen=True, slots=True)
class PartitionChoice:
    """The subsets to delegate, the best first, and the subsets left to the CPU, with reasons."""

    delegated: tuple[Subset, ...] = ()
    left: tuple[tuple[Subset, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Candidates:
    """The nodes among which partitions are chosen.

    `folded` are the supported nodes that need no kernel, because their results are constants.
    `states` are the inputs that each node changes in place; `same` maps a value to another one that
    represents the same state. If `called`, other graphs call this graph: then delegating all of it
    must also save time.
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
    """Choose partitions to delegate: the whole graph if possible, else the best ones.

    Folded nodes are added to partitions, so that they do not separate them, but never form a
    partition alone. If the policy accepts the whole graph, it is delegated however many partitions
    the runtime makes of it, unless other graphs call it.
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
    """Give up nodes until the runtime makes few enough partitions of the rest, all accepted."""
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
    """Return the fewest partitions of some nodes that are possible by adding folded nodes."""
    plan = [node.index for node in candidates.graph.nodes]
    found = [
        _cut(plan, real, folded, preview) for folded in dict.fromkeys(_joining(candidates, real))
    ]
    return min(found, key=len)


def _cut(plan: Sequence[int], real: Set[int], folded: Set[int], preview: Preview) -> list[Subset]:
    """Return partitions of the nodes `real` and `folded`, but none with folded nodes only."""
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

    Each node is in one of the subsets only.
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
    """Delegate nothing if the runtime, which knows no states, might run nodes in the wrong order.

    The runtime collects nodes that are ready into as few partitions as it can. Two nodes keep their
    order if one needs the other's results, or if one partition has both.
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
    """Yield the pairs of nodes that share a state and so must keep their order."""
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
    """Whether a node depends on the results of an earlier one; False if the search is too long."""
    written, start = set(other.outputs), places[other.index] + 1
    for between in graph.nodes[start : min(places[node.index] + 1, start + _FURTHEST)]:
        if written.intersection(between.inputs):
            if between is node:
                return True
            written.update(between.outputs)
    return False


def _joining(candidates: Candidates, real: Set[int]) -> Iterator[frozenset[int]]:
    """Yield the sets of folded nodes that may be added to some nodes, the preferred one first.

    A partition copies out, at each invoke, the results that the CPU reads, so nodes with small
    results come first. A folded node is ready before all others, and may make a partition begin too
    early: next come only those that follow from the other nodes, and last none.
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
"""Copying this many bytes takes about as long as running one more node in the runtime."""


def _is_small(graph: Graph, value: int) -> bool:
    return graph.values[value].elements * 4 <= _SMALL_BYTES


def extract(graph: Graph, subset: Subset) -> Graph:
    """Extract a subset from the graph; constants are not inputs of the result.

    Nodes outside of the subset that compute such constants are included, because other shapes may
    change them.
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

    They are inputs and outputs of the model.
    """
    own, inside, outside = set(subset.nodes), set[int](), set[int]()
    for node in graph.nodes:
        touched = inside if node.index in own else outside
        touched.update(node.inputs, node.outputs)
    weights = {v for v in subset.inputs if graph.values[v].is_constant}
    ends = {*subset.inputs, *subset.outputs} - weights
    return frozenset(ends.intersection(inside - outside))


def sources(graph: Graph) -> tuple[int, ...]:
    """Return the values that come from outside, including those of which only the shape is read."""
    written = {v for node in graph.nodes for v in node.outputs}
    read = dict.fromkeys(v for node in graph.nodes for v in node.inputs if v != ABSENT)
    return tuple(v for v in read if v not in written and not graph.values[v].is_constant)


def with_shapes(graph: Graph, shapes: Iterable[tuple[int, tuple[int, ...]]]) -> Graph:
    """Return the graph with other shapes for some of its values."""
    changed = {v: replace(graph.values[v], shape=shape) for v, shape in shapes}
    return replace(graph, values={**graph.values, **changed})
