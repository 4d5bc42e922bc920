"""Chooses which nodes go to the GPU, and cuts partitions out of the graph."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import Protocol

from litegpu.graph.ir import ABSENT, Graph, Node


@dataclass(frozen=True, slots=True)
class Subset:
    """A set of nodes that the runtime would replace by one; tensors that enter and leave it."""

    nodes: tuple[int, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


Preview = Callable[[Sequence[int]], list[Subset]]
"""Asks the runtime how it would cut the graph if these nodes were delegated."""


NO_LIMIT = sys.maxsize
"""As many partitions as a policy accepts."""


class PartitionPolicy(Protocol):
    """Decides about partitions of a graph that the CPU has a part of."""

    @property
    def limit(self) -> int:
        """How many partitions to delegate unless a user sets the number."""

    def benefit(self, subset: Subset) -> float:
        """Return a figure that is larger for the better of two partitions.

        It is infinite for one that the CPU cannot run: that is taken beyond any limit.
        """

    def reason_against(self, subset: Subset) -> str:
        """Return why the CPU should keep a partition, or an empty text."""

    def takes_whole(self, subsets: Sequence[Subset]) -> bool:
        """Return whether to delegate a graph that the GPU can run whole, in these partitions."""


@dataclass(frozen=True, slots=True)
class PartitionChoice:
    """The subsets to delegate, the best first, and those left to the CPU, each with its reason."""

    delegated: tuple[Subset, ...] = ()
    left: tuple[tuple[Subset, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Candidates:
    """What there is to choose from.

    `folded` are the supported nodes that need no kernel, for their results are constants. `states`
    are the values that each node changes although they are its inputs, and `same` has those values
    that stand for the same state as another one. Of a graph that others have `called`, the whole
    must be worth it as any part must.
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
    """Choose what to delegate: the whole graph if possible, else the best partitions of it.

    Folded nodes go with the partitions, so that they cut nothing, but never make one of their own.
    A whole graph that the policy takes is delegated however many partitions the runtime makes of
    it, unless others call it.
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
    """Give nodes up until the runtime makes few enough partitions of the others, all worth it."""
    left: list[tuple[Subset, str]] = []
    remaining = set(real)
    while remaining:
        found = _sorted(_fewest(candidates, remaining, preview), policy)
        declined = [
            (subset, reason) for subset in found if (reason := policy.reason_against(subset))
        ]
        if not declined:
            # What is given up may let the runtime join others, so this comes last.
            over = [subset for subset in found[limit:] if policy.benefit(subset) < math.inf]
            declined = [(subset, _beyond(limit)) for subset in over]
        if not declined:
            return PartitionChoice(found, _without(left, found))
        left += declined
        remaining -= {index for subset, _ in declined for index in subset.nodes}
    return PartitionChoice((), _without(left, ()))


def _fewest(candidates: Candidates, real: Set[int], preview: Preview) -> list[Subset]:
    """Return the partitions of some nodes with those folded nodes that make them the fewest."""
    plan = [node.index for node in candidates.graph.nodes]
    found = [
        _cut(plan, real, folded, preview) for folded in dict.fromkeys(_joining(candidates, real))
    ]
    return min(found, key=len)


def _cut(plan: Sequence[int], real: Set[int], folded: Set[int], preview: Preview) -> list[Subset]:
    """Return the partitions of some nodes with folded ones, of which none is alone."""
    while True:
        found = preview([index for index in plan if index in real or index in folded])
        alone = {index for s in found if real.isdisjoint(s.nodes) for index in s.nodes}
        if not alone:
            return found
        folded = folded - alone


def _without(
    left: Iterable[tuple[Subset, str]], delegated: Iterable[Subset]
) -> tuple[tuple[Subset, str], ...]:
    """Return what is left to the CPU without the folded nodes that joined another partition.

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
    return f"Better partitions use up max_delegated_partitions={limit}."


def _in_order(candidates: Candidates, choice: PartitionChoice) -> PartitionChoice:
    """Delegate nothing if the runtime, which sees no states, might run nodes out of order.

    It moves the nodes that are ready into as few partitions as it can. What orders two nodes is
    that one needs the other's results, or that one partition has both.
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
                    f"Nodes {first.index} and {second.index} share the state tensor {v}, and the "
                    "runtime might run them in another order if the graph was split."
                )
                left = tuple((subset, reason) for subset in choice.delegated)
                return PartitionChoice((), (*choice.left, *left))
    return choice


def _ordered(nodes: Iterable[Node], changes: Collection[int]) -> Iterator[tuple[Node, Node]]:
    """Yield the pairs of nodes that must keep their order, of those that share a state."""
    last, readers = list[Node](), list[Node]()
    for node in nodes:
        if node.index in changes:
            yield from ((each, node) for each in readers or last)
            last, readers = [node], []
        else:
            yield from ((each, node) for each in last)
            readers.append(node)


_FURTHEST = 1024
"""Nodes between two that are looked through for what leads from one to the other."""


def _needs(graph: Graph, node: Node, other: Node, places: Mapping[int, int]) -> bool:
    """Whether a node reads what follows from the results of an earlier one, as far as is known."""
    written, start = set(other.outputs), places[other.index] + 1
    for between in graph.nodes[start : min(places[node.index] + 1, start + _FURTHEST)]:
        if written.intersection(between.inputs):
            if between is node:
                return True
            written.update(between.outputs)
    return False


def _joining(candidates: Candidates, real: Set[int]) -> Iterator[frozenset[int]]:
    """Yield the folded nodes that may join some nodes, the preferred choice first.

    A partition hands a result that the CPU reads out at each invoke, so those with small results
    come first. Ready before all others, a folded node may begin a partition too early: next come
    those that follow from the other nodes, and last none.
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
"""Copying this much takes about as long as the runtime takes to step to one more node."""


def _is_small(graph: Graph, value: int) -> bool:
    return graph.values[value].elements * 4 <= _SMALL_BYTES


def extract(graph: Graph, subset: Subset) -> Graph:
    """Cut a subset out of the graph; constants are not inputs of the result.

    Nodes elsewhere that make such constants come along, for other shapes may change them.
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
    """Return the inputs and outputs of a subset that no other nodes read or write.

    Those are some of the model's own.
    """
    own, inside, outside = set(subset.nodes), set[int](), set[int]()
    for node in graph.nodes:
        touched = inside if node.index in own else outside
        touched.update(node.inputs, node.outputs)
    weights = {v for v in subset.inputs if graph.values[v].is_constant}
    ends = {*subset.inputs, *subset.outputs} - weights
    return frozenset(ends.intersection(inside - outside))


def sources(graph: Graph) -> tuple[int, ...]:
    """Return the values that come from outside, those among them whose shape alone is read."""
    written = {v for node in graph.nodes for v in node.outputs}
    read = dict.fromkeys(v for node in graph.nodes for v in node.inputs if v != ABSENT)
    return tuple(v for v in read if v not in written and not graph.values[v].is_constant)


def with_shapes(graph: Graph, shapes: Iterable[tuple[int, tuple[int, ...]]]) -> Graph:
    """Return the graph with other shapes for some of its values."""
    changed = {v: replace(graph.values[v], shape=shape) for v, shape in shapes}
    return replace(graph, values={**graph.values, **changed})
