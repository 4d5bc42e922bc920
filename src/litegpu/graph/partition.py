"""Chooses which nodes go to the GPU, and cuts partitions out of the graph."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
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


class PartitionPolicy(Protocol):
    """Decides about partitions of a graph that the CPU has a part of."""

    def benefit(self, subset: Subset) -> float:
        """Return a figure that is larger for the better of two partitions.

        It is infinite for one that the CPU cannot run: that is taken beyond any limit.
        """

    def reason_against(self, subset: Subset) -> str:
        """Return why the CPU should keep a partition, or an empty text."""


@dataclass(frozen=True, slots=True)
class PartitionChoice:
    """The subsets to delegate, the best first, and those left to the CPU, each with its reason."""

    delegated: tuple[Subset, ...] = ()
    left: tuple[tuple[Subset, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Candidates:
    """What there is to choose from.

    `folded` are the supported nodes that need no kernel, for their results are constants. `states`
    are the values that a node changes although they are its inputs. Of a graph
    that others have `called`, the whole must be worth it as any part must.
    """

    graph: Graph
    supported: Collection[int]
    folded: Collection[int] = ()
    states: Collection[int] = ()
    called: bool = False


def choose(
    candidates: Candidates, preview: Preview, policy: PartitionPolicy, max_partitions: int
) -> PartitionChoice:
    """Choose what to delegate: the whole graph if possible, else the best partitions of it.

    Folded nodes join the partition that reads them, but never make a partition of their own. One
    that the CPU reads too joins only if its result is small, for the partition hands it out at each
    invoke. A whole graph is taken however many partitions the runtime makes of it, unless
    others call it.
    """
    graph, folded = candidates.graph, candidates.folded
    plan = [node.index for node in graph.nodes]
    real = set(candidates.supported).difference(folded)
    if real and len(real) + len(folded) == len(plan) and not candidates.called:
        choice = PartitionChoice(tuple(s for s in preview(plan) if real & set(s.nodes)))
    else:
        choice = _best(plan, real, preview, policy, max_partitions)
    if len(choice.delegated) != 1 or len(choice.delegated[0].nodes) < len(plan):
        choice = _in_order(candidates, choice)
    chosen = {index for subset in choice.delegated for index in subset.nodes}
    joining = _readable_inside(graph, chosen, folded) - chosen
    if not chosen or not joining:
        return choice
    joined = preview([index for index in plan if index in chosen | joining])
    if len(joined) == len(choice.delegated) and all(chosen & set(s.nodes) for s in joined):
        return replace(choice, delegated=_sorted(joined, policy))
    return choice


def _best(
    plan: Sequence[int],
    real: Collection[int],
    preview: Preview,
    policy: PartitionPolicy,
    limit: int,
) -> PartitionChoice:
    """Give nodes up until the runtime makes few enough partitions of the others, all worth it."""
    left: list[tuple[Subset, str]] = []
    remaining = set(real)
    while remaining:
        found = _sorted(preview([index for index in plan if index in remaining]), policy)
        declined = [
            (subset, reason) for subset in found if (reason := policy.reason_against(subset))
        ]
        if not declined:
            # What is given up may let the runtime join others, so this comes last.
            over = [subset for subset in found[limit:] if policy.benefit(subset) < math.inf]
            declined = [(subset, _beyond(limit)) for subset in over]
        if not declined:
            return PartitionChoice(found, tuple(left))
        left += declined
        remaining -= {index for subset, _ in declined for index in subset.nodes}
    return PartitionChoice((), tuple(left))


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
    shared: dict[int, list[Node]] = {}
    for node in graph.nodes if inside else ():
        for v in dict.fromkeys(node.inputs):
            if v in candidates.states or (v in graph.values and graph.values[v].is_variable):
                shared.setdefault(v, []).append(node)
    for v, nodes in shared.items():
        for first, second in itertools.pairwise(nodes):
            together = inside.get(first.index, -1) == inside.get(second.index, -2)
            if not together and not _needs(graph, second, first, places):
                reason = (
                    f"Nodes {first.index} and {second.index} share the state tensor {v}, and the "
                    "runtime might run them in another order if the graph was split."
                )
                left = tuple((subset, reason) for subset in choice.delegated)
                return PartitionChoice((), (*choice.left, *left))
    return choice


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


def _readable_inside(graph: Graph, chosen: Collection[int], folded: Collection[int]) -> set[int]:
    """Return the folded nodes that only the chosen nodes read, and those of small results."""
    outside = {v for n in graph.nodes if n.index not in chosen for v in n.inputs}
    return {
        node.index
        for node in graph.nodes
        if node.index in folded
        and all(v not in outside or _is_small(graph, v) for v in node.outputs)
    }


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


def private_ends(graph: Graph, subset: Subset) -> frozenset[int]:
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
